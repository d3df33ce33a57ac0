"""Messages between the head server and a party: their kinds, the parts of each, and its answer.

``frame.py`` writes messages as bytes. Tensor payloads are frames of ``codec.py``; control parts are JSON whose types
are in ``control.py``, ``session.py`` and ``matching.py``. Nothing is ever unpickled.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

Buffer = bytes | memoryview
"""Bytes received or to be sent; received bytes are read in place, never copied."""
MESSAGE_BYTES, PART_BYTES = 12, 5
"""Bytes that the ledger counts of a frame's header (version, kind, round, exchange, number of parts), and of a part's.
The rest of a frame's header is about processes and sessions, which parties in one process do not have."""


class MessageError(ValueError):
    """Error about bytes that are not a message of this protocol, or a message that is not due."""


class CodecError(MessageError):
    """A received frame is malformed, or is not of the agreed shape: the only error that its bytes can cause."""


class Kind(IntEnum):
    """Kind of a message: the request that it makes or answers."""

    __hash__ = int.__hash__  # that of an enumeration is a function in Python, called at every look-up by kind

    START_ROUND = 1
    """Begins a round: its alpha and beta, with head_sync replay the head, and the party's samples if not all."""
    EMBED = 2
    """Asks for the embedding of the exchange's batch, after the update of the previous exchange, which it brings: the
    input of a party's local iterations, the others' embeddings or its gradient. With staleness s it is the update of s
    exchanges earlier."""
    EMBEDDING = 3
    UPDATE = 4
    """Brings an update when no exchange is left to embed: s of them in a round, before END_ROUND."""
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
    MODEL_COSTS = 13
    """Asks for the costs of the party's model at some ratios alpha."""
    PRICED = 14
    LOOK_UP = 15
    """Asks for the embeddings of the rows that the party serves under some keys."""
    FOUND = 16
    COLUMNS = 17
    """Asks for the number of columns that the party would permute, one at a time."""
    COUNTED = 18
    IMPORTANCE = 19
    """Gives a party what the test loses when each of its columns is permuted."""
    MATCH = 20
    """Begins a match: asks for a party's input."""
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
    """A part of the result: the samples' indices in the party's list; for the label owner also masks of the samples for
    which each other party has a row."""
    PROVE = 28
    """Asks for a proof that points were raised by the party's scalar."""
    PROVED = 29
    TRAIN_ALONE = 30
    """Asks for rounds that a party trains alone on its own classifier: their ratios."""
    LEARNED = 31
    """The reports of these rounds, and the classifier."""
    OFFER = 32
    """Asks what a party discloses of the reasons of scores, column by column."""
    OFFERED = 33
    EXPLAIN = 34
    """Asks for the embeddings of the paths from the party's reference to some samples, or to the rows of some keys."""
    PATHS = 35
    ATTRIBUTE = 36
    """Brings the score's gradients along these paths; asks what each column moved."""
    ATTRIBUTED = 37
    HELLO = 40
    """A party's first message: its name, and the values that must agree with the server's."""
    WELCOME = 41
    """The party is admitted."""
    REFUSAL = 42
    """Either side's last message: the error."""
    HEARTBEAT = 43
    RESTORE = 44
    """Begins a session: asks to restore the initial state, or that after a round from the party's own checkpoint."""
    RESTORED = 45
    SAVE = 46
    """Asks to save the state after a round."""
    SAVED = 47
    LEAVING = 48
    """The party's operator stops it; it leaves once a checkpoint is committed."""
    GOODBYE = 49
    """The training is over for this party."""


class PartKind(IntEnum):
    """Kind of a part of a message; its name is the ledger's kind."""

    __hash__ = int.__hash__

    EMBEDDING = 1
    GRADIENT = 2
    HEAD = 3
    CONTROL = 4
    POINTS = 5
    PLACES = 6
    PRESENCE = 7
    """Bits over the samples of a round's batches: those in which a party takes part (``vfl/core/presence.py``)."""
    PROOF = 8
    KEYS = 9
    """Keys of rows to be scored (``vfl/messages/keys.py``)."""
    REASONS = 10
    """What each column moved, or its rank, a row per sample."""


REPLIES: Mapping[Kind, Kind] = {
    Kind.START_ROUND: Kind.DONE,
    Kind.EMBED: Kind.EMBEDDING,
    Kind.UPDATE: Kind.DONE,
    Kind.END_ROUND: Kind.REPORT,
    Kind.TRAIN_ALONE: Kind.LEARNED,
    Kind.EVALUATE: Kind.EVALUATION,
    Kind.MEAN: Kind.EVALUATION,
    Kind.DESCRIBE: Kind.DESCRIPTION,
    Kind.MODEL_COSTS: Kind.PRICED,
    Kind.LOOK_UP: Kind.FOUND,
    Kind.COLUMNS: Kind.COUNTED,
    Kind.IMPORTANCE: Kind.DONE,
    Kind.OFFER: Kind.OFFERED,
    Kind.EXPLAIN: Kind.PATHS,
    Kind.ATTRIBUTE: Kind.ATTRIBUTED,
    Kind.MATCH: Kind.BROUGHT,
    Kind.LIST: Kind.POINTS,
    Kind.RAISE: Kind.POINTS,
    Kind.PLACES: Kind.PLACED,
    Kind.MATCHED: Kind.DONE,
    Kind.PROVE: Kind.PROVED,
    Kind.RESTORE: Kind.RESTORED,
    Kind.SAVE: Kind.SAVED,
}
"""Kind of the reply, by the kind of the request."""
MEASURING = frozenset(
    {Kind.EVALUATE, Kind.EVALUATION, Kind.MEAN, Kind.DESCRIBE, Kind.DESCRIPTION, Kind.MODEL_COSTS, Kind.PRICED}
    | {Kind.LOOK_UP, Kind.FOUND, Kind.COLUMNS, Kind.COUNTED, Kind.IMPORTANCE}
    | {Kind.OFFER, Kind.OFFERED, Kind.EXPLAIN, Kind.PATHS, Kind.ATTRIBUTE, Kind.ATTRIBUTED}
)
"""Kinds of messages that evaluate the model and do not train it."""
SESSION = frozenset(kind for kind in Kind if Kind.HELLO <= kind <= Kind.GOODBYE)
"""Messages between processes alone, about joining, sessions and checkpoints. Not counted."""
UPDATE = PartKind.EMBEDDING, PartKind.GRADIENT, PartKind.HEAD
"""Kinds of the parts of an exchange's update."""
_CONTROL_ALONE = (
    *(Kind.REPORT, Kind.TRAIN_ALONE, Kind.EVALUATE, Kind.DESCRIPTION, Kind.MODEL_COSTS, Kind.PRICED, Kind.COUNTED),
    *(Kind.IMPORTANCE, Kind.OFFERED, Kind.LIST, Kind.PLACES, Kind.HELLO, Kind.WELCOME, Kind.REFUSAL, Kind.RESTORE),
    *(Kind.SAVE, Kind.SAVED, Kind.GOODBYE),
)
PARTS: Mapping[Kind, tuple[PartKind, ...]] = {
    **dict.fromkeys(Kind, ()),
    **dict.fromkeys(_CONTROL_ALONE, (PartKind.CONTROL,)),
    Kind.START_ROUND: (PartKind.CONTROL, PartKind.HEAD, PartKind.PRESENCE),
    Kind.EMBED: UPDATE,
    Kind.EMBEDDING: (PartKind.EMBEDDING,),
    Kind.UPDATE: UPDATE,
    Kind.END_ROUND: UPDATE,
    Kind.LEARNED: (PartKind.CONTROL, PartKind.HEAD),
    Kind.EVALUATION: (PartKind.EMBEDDING,),
    Kind.LOOK_UP: (PartKind.KEYS,),
    Kind.FOUND: (PartKind.CONTROL, PartKind.PRESENCE, PartKind.EMBEDDING, PartKind.KEYS),
    Kind.EXPLAIN: (PartKind.CONTROL, PartKind.KEYS),
    Kind.PATHS: (PartKind.EMBEDDING,),
    Kind.ATTRIBUTE: (PartKind.CONTROL, PartKind.GRADIENT),
    Kind.ATTRIBUTED: (PartKind.CONTROL, PartKind.REASONS),
    Kind.BROUGHT: (PartKind.CONTROL, PartKind.POINTS),
    Kind.RAISE: (PartKind.CONTROL, PartKind.POINTS),
    Kind.POINTS: (PartKind.POINTS,),
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
    """Bytes of the payload's tensor as a dense float32 frame, set where a compressed one is encoded or decoded. It is
    not sent; None: the payload is its own baseline."""

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return PART_BYTES + len(self.payload)

    @property
    def dense_size(self) -> int:
        """Bytes on the wire without compression."""
        return self.size if self.dense is None else PART_BYTES + self.dense


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``exchange`` counts from 0 within the round."""

    kind: Kind
    round_index: int = 0
    exchange: int = 0
    parts: tuple[Part, ...] = ()
    run: str = ""
    """Separate processes only: id of the run, 16 hexadecimal digits; "" until a party has one."""
    session: int = 0
    """Separate processes only: count of the server's starts from a checkpoint, from 1; earlier sessions' messages are
    void."""
    sequence: int = 0
    """Separate processes only: count of a session's orders, from 1; an answer has its order's number. 0 outside a
    session."""

    def numbered(self, run: str, session: int, sequence: int) -> "Message":
        """Return the message as one of a session; `dataclasses.replace` takes several times as long."""
        return Message(self.kind, self.round_index, self.exchange, self.parts, run, session, sequence)

    @property
    def size(self) -> int:
        """Bytes that the ledger counts."""
        return MESSAGE_BYTES + sum(part.size for part in self.parts)

    def payloads(self, kind: PartKind) -> list[Buffer]:
        """Return the payloads of one kind, in order."""
        return [part.payload for part in self.parts if part.kind == kind]

    def only(self, kind: PartKind) -> Buffer:
        """Return the only payload of a kind. Raises as ``part``."""
        return self.part(kind).payload

    def part(self, kind: PartKind) -> Part:
        """Return the only part of a kind. Raises MessageError unless there is exactly one."""
        found, count = None, 0
        for part in self.parts:
            if part.kind == kind:
                found, count = part, count + 1
        if found is None or count > 1:
            raise MessageError(f"{self.kind.name} message with {count} {kind.name} parts instead of 1")
        return found


def control(settings: Mapping[str, Any]) -> Part:
    """Return a part with settings as JSON; floats keep all their bits."""
    return Part(PartKind.CONTROL, json.dumps(settings, separators=(",", ":"), sort_keys=True).encode())


def place_of(kind: Kind, round_index: int, exchange: int) -> str:
    """Return the name of a place in the training for people, who count rounds and exchanges from 1."""
    return f"{kind.name} of round {round_index + 1}, exchange {exchange + 1}"


def check_reply(request: Message, reply: Message) -> None:
    """Raise MessageError for a reply to another request, or with other parts than one of each kind that is due."""
    came = reply.kind, reply.round_index, reply.exchange
    due = REPLIES[request.kind], request.round_index, request.exchange
    if came != due:
        raise MessageError(f"{place_of(*came)} came where {place_of(*due)} is due")
    if tuple(part.kind for part in reply.parts) != PARTS[reply.kind]:
        raise MessageError(f"{reply.kind.name} with {len(reply.parts)} parts instead of {len(PARTS[reply.kind])}")
