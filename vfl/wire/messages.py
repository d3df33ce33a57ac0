"""What travels between the head server and a party: one envelope around labelled parts.

    offset  bytes  field
    0       1      version (1)
    1       1      message kind
    2       4      round, little endian
    6       4      exchange within the round
    10      2      number of parts
    12      ...    parts: 1 byte kind, 4 bytes length, payload

Tensor payloads are frames of ``vfl.wire.codec``, settings and reports JSON (``vfl.wire.control``). Nothing is ever
unpickled.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

VERSION = 1
MAX_PARTS = 4096
MAX_SETTINGS_BYTES = 1 << 20
E = TypeVar("E", bound=IntEnum)
Buffer = bytes | memoryview
"""Bytes as they came or will travel; what was received is looked at where it lies, never copied."""
_ENVELOPE = struct.Struct("<BBIIH")
_PART = struct.Struct("<BI")
ENVELOPE_BYTES, PART_BYTES = _ENVELOPE.size, _PART.size
"""Of a message without parts, and of a part without payload."""


class MessageError(ValueError):
    """Bytes that are no message of this protocol, or a message that does not belong here."""


class CodecError(MessageError):
    """A received frame is malformed, or is not of the agreed shape: the only error that its bytes can cause."""


class Kind(IntEnum):
    """What a message asks for or answers."""

    START_ROUND = 1
    """Settings of the round (alpha, beta), with head_sync replay the head, and who takes part where it is not all."""
    EMBED = 2
    """Asks for the embedding of the exchange's batch. First comes the update of the exchange before, which this
    brings: what a party needs for its local iterations, the others' embeddings or its gradient. With staleness s that
    is the update of s exchanges before."""
    EMBEDDING = 3
    UPDATE = 4
    """Brings an update where no exchange is left to embed: s of them in a round, before END_ROUND."""
    END_ROUND = 5
    """Asks for the round's report; brings the last exchange's update."""
    REPORT = 6
    EVALUATE = 7
    """Asks for the embedding of a range of test samples."""
    EVALUATION = 8
    DESCRIBE = 9
    """Asks for the digest of the party's weights."""
    DONE = 10
    DESCRIPTION = 11
    MEAN = 12
    """Asks for the mean of the embeddings of all training samples; answered by an EVALUATION of one row."""
    PRICES = 13
    """Asks what the party's model would cost at some ratios alpha."""
    PRICED = 14
    LOOK_UP = 15
    """Asks for the embeddings of the rows that the party serves under some keys."""
    FOUND = 16
    MATCH = 20
    """Begins a match: asks for what a party brings to it."""
    BROUGHT = 21
    LIST = 22
    """Asks for a part of the party's own list, as points."""
    RAISE = 23
    """Asks for points times the party's scalar."""
    POINTS = 24
    PLACES = 25
    """Asks the label owner for its samples' places in one of its lists."""
    PLACED = 26
    MATCHED = 27
    """A part of the result: the places in the party's list that stand for the samples; to the label owner also which
    samples each other party has a row for."""
    PROVE = 28
    """Asks for a proof that points were raised by the party's scalar."""
    PROVED = 29


class PartKind(IntEnum):
    """What a part of a message holds; its name is the ledger's kind."""

    EMBEDDING = 1
    GRADIENT = 2
    HEAD = 3
    CONTROL = 4
    POINTS = 5
    PLACES = 6
    PRESENCE = 7
    """Of the round's batches, in which samples a party takes part (``vfl/vertical/presence.py``), or to replicas of the
    head which are easy (``sample_pruning.py`` beside it), as bits."""
    PROOF = 8
    KEYS = 9
    """Of rows to be scored (``vfl/wire/keys.py``)."""


REPLIES: Mapping[Kind, Kind] = {
    Kind.START_ROUND: Kind.DONE,
    Kind.EMBED: Kind.EMBEDDING,
    Kind.UPDATE: Kind.DONE,
    Kind.END_ROUND: Kind.REPORT,
    Kind.EVALUATE: Kind.EVALUATION,
    Kind.MEAN: Kind.EVALUATION,
    Kind.DESCRIBE: Kind.DESCRIPTION,
    Kind.PRICES: Kind.PRICED,
    Kind.LOOK_UP: Kind.FOUND,
    Kind.MATCH: Kind.BROUGHT,
    Kind.LIST: Kind.POINTS,
    Kind.RAISE: Kind.POINTS,
    Kind.PLACES: Kind.PLACED,
    Kind.MATCHED: Kind.DONE,
    Kind.PROVE: Kind.PROVED,
}
"""What answers what."""
MEASURING = frozenset(
    {Kind.EVALUATE, Kind.EVALUATION, Kind.MEAN, Kind.DESCRIBE, Kind.DESCRIPTION, Kind.PRICES, Kind.PRICED}
    | {Kind.LOOK_UP, Kind.FOUND}
)
"""Messages that look at the model and do not train it."""
UPDATE = PartKind.EMBEDDING, PartKind.GRADIENT, PartKind.HEAD
"""Of an exchange's update."""
PARTS: Mapping[Kind, tuple[PartKind, ...]] = {
    Kind.START_ROUND: (PartKind.CONTROL, PartKind.HEAD, PartKind.PRESENCE),
    Kind.EMBED: UPDATE,
    Kind.EMBEDDING: (PartKind.EMBEDDING,),
    Kind.UPDATE: UPDATE,
    Kind.END_ROUND: UPDATE,
    Kind.REPORT: (PartKind.CONTROL,),
    Kind.EVALUATE: (PartKind.CONTROL,),
    Kind.EVALUATION: (PartKind.EMBEDDING,),
    Kind.DESCRIBE: (),
    Kind.DONE: (),
    Kind.DESCRIPTION: (PartKind.CONTROL,),
    Kind.MEAN: (),
    Kind.PRICES: (PartKind.CONTROL,),
    Kind.PRICED: (PartKind.CONTROL,),
    Kind.LOOK_UP: (PartKind.KEYS,),
    Kind.FOUND: (PartKind.CONTROL, PartKind.PRESENCE, PartKind.EMBEDDING, PartKind.KEYS),
    Kind.MATCH: (),
    Kind.BROUGHT: (PartKind.CONTROL, PartKind.POINTS),
    Kind.LIST: (PartKind.CONTROL,),
    Kind.RAISE: (PartKind.CONTROL, PartKind.POINTS),
    Kind.POINTS: (PartKind.POINTS,),
    Kind.PLACES: (PartKind.CONTROL,),
    Kind.PLACED: (PartKind.PLACES,),
    Kind.MATCHED: (PartKind.CONTROL, PartKind.PLACES, PartKind.PRESENCE),
    Kind.PROVE: (PartKind.CONTROL, PartKind.POINTS),
    Kind.PROVED: (PartKind.PROOF,),
}
"""The kinds of part that a message may have; a reply has one of each."""


@dataclass(slots=True)
class Part:
    """A labelled payload."""

    kind: PartKind
    payload: Buffer
    dense: int | None = field(default=None, compare=False)
    """Bytes of the payload's tensor as a dense float32 frame, noted by who has encoded or decoded a compressed one. It
    does not travel; None: the payload is its own baseline."""

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return PART_BYTES + len(self.payload)

    @property
    def dense_size(self) -> int:
        """Bytes on the wire, had nothing been compressed."""
        return self.size if self.dense is None else PART_BYTES + self.dense


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``exchange`` counts from 0 within the round."""

    kind: Kind
    round_index: int = 0
    exchange: int = 0
    parts: tuple[Part, ...] = ()

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return _ENVELOPE.size + sum(part.size for part in self.parts)

    def payloads(self, kind: PartKind) -> list[Buffer]:
        """Return the payloads of one kind, in order."""
        return [part.payload for part in self.parts if part.kind == kind]

    def only(self, kind: PartKind) -> Buffer:
        """Return the one payload of a kind. Raises as ``part``."""
        return self.part(kind).payload

    def part(self, kind: PartKind) -> Part:
        """Return the one part of a kind. Raises MessageError where there is not just one."""
        parts = [part for part in self.parts if part.kind == kind]
        if len(parts) != 1:
            raise MessageError(f"{self.kind.name} message with {len(parts)} {kind.name} parts instead of 1")
        return parts[0]


def control(settings: Mapping[str, Any]) -> Part:
    """Return a part with settings as JSON; floats keep all their bits."""
    return Part(PartKind.CONTROL, json.dumps(settings, separators=(",", ":"), sort_keys=True).encode())


def pieces(message: Message) -> list[Buffer]:
    """Serialize a message without copying its payloads: what, one after another, ``pack`` returns."""
    header = _ENVELOPE.pack(VERSION, message.kind, message.round_index, message.exchange, len(message.parts))
    return [
        header,
        *(each for part in message.parts for each in (_PART.pack(part.kind, len(part.payload)), part.payload)),
    ]


def pack(message: Message) -> bytes:
    """Serialize a message."""
    return b"".join(pieces(message))


def unpack(data: Buffer) -> Message:
    """Read a message, whose payloads are views of ``data``. Raises MessageError for any other bytes than ``pack``'s."""
    data = memoryview(data)
    if len(data) < _ENVELOPE.size:
        raise MessageError(f"{len(data)} bytes are no message")
    version, kind, round_index, exchange, count = _ENVELOPE.unpack_from(data)
    if version != VERSION:
        raise MessageError(f"protocol version {version}, this side speaks {VERSION}")
    if count > MAX_PARTS:
        raise MessageError(f"{count} parts, at most {MAX_PARTS} are allowed")
    parts: list[Part] = []
    offset = _ENVELOPE.size
    for _ in range(count):
        if offset + _PART.size > len(data):
            raise MessageError("truncated in a part's header")
        part_kind, size = _PART.unpack_from(data, offset)
        offset += _PART.size
        if offset + size > len(data):  # before the slice, which would silently be shorter
            raise MessageError("truncated in a part's payload")
        if part_kind == PartKind.CONTROL and size > MAX_SETTINGS_BYTES:
            raise MessageError(f"control part of {size} bytes, at most {MAX_SETTINGS_BYTES} are allowed")
        parts.append(Part(_member(PartKind, part_kind), data[offset : offset + size]))
        offset += size
    if offset != len(data):
        raise MessageError(f"{len(data) - offset} bytes after the last part")
    message = Message(_member(Kind, kind), round_index, exchange, tuple(parts))
    if strange := {part.kind for part in parts} - {*PARTS[message.kind]}:
        raise MessageError(f"{message.kind.name} message with a {min(strange).name} part")
    return message


def check_reply(request: Message, reply: Message) -> None:
    """Raise MessageError for a reply to something else, or with other parts than one of each that is due."""
    came = reply.kind, reply.round_index, reply.exchange
    due = REPLIES[request.kind], request.round_index, request.exchange
    if came != due:
        name = "{0.name} of round {1}, exchange {2}".format
        raise MessageError(f"{name(*came)} came where {name(*due)} is due")
    if tuple(part.kind for part in reply.parts) != PARTS[reply.kind]:
        raise MessageError(f"{reply.kind.name} with {len(reply.parts)} parts instead of {len(PARTS[reply.kind])}")


def _member(enum: type[E], value: int) -> E:
    try:
        return enum(value)
    except ValueError:
        raise MessageError(f"{value} is no {enum.__name__}") from None
