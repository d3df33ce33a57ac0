from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Envelope(_message.Message):
    __slots__ = ("version", "run", "session", "sequence", "round", "exchange", "hello", "welcome", "refusal", "heartbeat", "request", "reply", "restore", "restored", "save", "saved", "leaving", "goodbye")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    version: int
    run: str
    session: int
    sequence: int
    round: int
    exchange: int
    hello: Hello
    welcome: Welcome
    refusal: Refusal
    heartbeat: Heartbeat
    request: bytes
    reply: bytes
    restore: Restore
    restored: Restored
    save: Save
    saved: Saved
    leaving: Leaving
    goodbye: Goodbye
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., session: _Optional[int] = ..., sequence: _Optional[int] = ..., round: _Optional[int] = ..., exchange: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., request: _Optional[bytes] = ..., reply: _Optional[bytes] = ..., restore: _Optional[_Union[Restore, _Mapping]] = ..., restored: _Optional[_Union[Restored, _Mapping]] = ..., save: _Optional[_Union[Save, _Mapping]] = ..., saved: _Optional[_Union[Saved, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("party", "instance", "embedding_width", "agreement", "train_ids", "test_ids", "labels", "rounds", "only_asks")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_WIDTH_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    TRAIN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEST_IDS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ONLY_ASKS_FIELD_NUMBER: _ClassVar[int]
    party: str
    instance: str
    embedding_width: int
    agreement: str
    train_ids: str
    test_ids: str
    labels: str
    rounds: _containers.RepeatedScalarFieldContainer[int]
    only_asks: bool
    def __init__(self, party: _Optional[str] = ..., instance: _Optional[str] = ..., embedding_width: _Optional[int] = ..., agreement: _Optional[str] = ..., train_ids: _Optional[str] = ..., test_ids: _Optional[str] = ..., labels: _Optional[str] = ..., rounds: _Optional[_Iterable[int]] = ..., only_asks: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("heartbeat_s", "silence_s", "terms")
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    SILENCE_S_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    heartbeat_s: float
    silence_s: float
    terms: str
    def __init__(self, heartbeat_s: _Optional[float] = ..., silence_s: _Optional[float] = ..., terms: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "again")
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    reason: str
    again: bool
    def __init__(self, reason: _Optional[str] = ..., again: _Optional[bool] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Restore(_message.Message):
    __slots__ = ("round", "digest", "as_of")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    round: int
    digest: str
    as_of: int
    def __init__(self, round: _Optional[int] = ..., digest: _Optional[str] = ..., as_of: _Optional[int] = ...) -> None: ...

class Restored(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Save(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Saved(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("exit_code", "reason")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    reason: str
    def __init__(self, exit_code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
