"""An envelope and the packed message in it, on their way through gRPC: cut by the sender, put together here.

A gRPC message is a serialized Envelope, in which a packed message (its field ``request`` or ``reply``, here called the
content) comes first:

    tag | length, a varint | content | the other fields

Protobuf reads that as any Envelope, in whatever order its fields are; nobody has to copy the content, as protobuf does
several times. Where the content ends beyond PIECE_BYTES, the same bytes are cut into several gRPC messages: of
PIECE_BYTES each, but for the last, which holds what is left of the content and all other fields. gRPC for Python holds
several copies of what it receives: so they are copies of a piece.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vfl.config import ConfigError
from vfl.wire.envelope import Envelope, EnvelopeError, kind_of, read_envelope
from vfl.wire.messages import Buffer

PIECE_BYTES = 1 << 20
MIB = 1 << 20
_TAGS = {kind: Envelope.DESCRIPTOR.fields_by_name[kind].number << 3 | 2 for kind in ("request", "reply")}
"""First byte of the fields that hold a packed message: number and wire type, as protobuf writes them."""
_KINDS = {tag: kind for kind, tag in _TAGS.items()}
_LONGEST_VARINT = 5
"""Bytes; enough for every length below 2**32."""


class TooLargeError(ConfigError):
    """A message that the other side would not take."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """What came: an envelope, whose content is not in its field but here."""

    envelope: Envelope
    content: Buffer = b""


def check_size(kind: str, size: int, max_message_mb: int) -> None:
    """Raise TooLargeError for content that the other side would not take."""
    if size > max_message_mb * MIB:
        raise TooLargeError(
            f"network.max_message_mb: a {kind} of {size} bytes is above the {max_message_mb} MiB allowed; "
            "raise it on both sides or lower training.batch_size"
        )


def cut(envelope: Envelope, content: Sequence[Buffer] = ()) -> Iterator[bytes]:
    """Serialize into gRPC messages, each made when it is asked for.

    ``content`` is a packed message's bytes; where there is any, the envelope is an empty ``request`` or ``reply``.
    """
    kind = kind_of(envelope)
    if kind not in _TAGS:
        assert not content, kind
        yield envelope.SerializeToString()
        return
    others = Envelope()
    others.CopyFrom(envelope)
    others.ClearField(kind)
    batch: list[Buffer] = [bytes([_TAGS[kind]]) + _varint(sum(map(len, content)))]
    room = PIECE_BYTES - len(batch[0])
    # `batch` holds views until it fills a piece, so that content is copied once, into the piece.
    for part in content:
        left = memoryview(part)
        while len(left) > room:
            yield b"".join((*batch, left[:room]))
            left = left[room:]
            batch, room = [], PIECE_BYTES
        batch.append(left)
        room -= len(left)
    yield b"".join((*batch, others.SerializeToString()))


class Assembler:
    """Puts together what ``cut`` has cut, and trusts none of it.

    Memory is spent on what came: a length that is only announced costs none, and one above the limit is refused.
    """

    def __init__(self, max_message_mb: int) -> None:
        self.max_message_mb = max_message_mb
        self._tag = 0
        """Of the content that is coming; 0 for none."""
        self._content = memoryview(b"")
        self._came = 0

    def add(self, piece: bytes) -> Parcel | None:
        """Take the next gRPC message; return the parcel that is complete with it.

        Raises EnvelopeError for a malformed envelope, and for content above the limit.
        """
        if self._tag:
            return self._go_on(memoryview(piece), PIECE_BYTES)
        if not piece or piece[0] not in _KINDS:
            envelope = read_envelope(piece)
            if kind_of(envelope) in _TAGS:
                raise EnvelopeError(f"a {kind_of(envelope)} whose content is not its first field")
            return Parcel(envelope)
        tag, (size, start) = piece[0], _read_varint(piece)
        if size > self.max_message_mb * MIB:
            raise EnvelopeError(
                f"a {_KINDS[tag]} of {size} bytes came, network.max_message_mb allows {self.max_message_mb} MiB here; "
                "raise it on both sides"
            )
        # Whole, and nothing to put together. As in `cut`, content that ends beyond PIECE_BYTES goes on in a next piece.
        if start + size <= min(PIECE_BYTES, len(piece)):
            return Parcel(_read_others(tag, piece[start + size :]), memoryview(piece)[start : start + size])
        self._tag, self._came = tag, 0
        self._content = np.empty(size, np.uint8).data  # the system gives pages as they are written
        return self._go_on(memoryview(piece)[start:], PIECE_BYTES - start)

    def _go_on(self, piece: memoryview, room: int) -> Parcel | None:
        """Take a piece in which there is ``room`` for content."""
        tag, content = self._tag, self._content
        due = min(room, len(content) - self._came)
        last = self._came + due == len(content)
        # Every piece is full but for the last, which alone may go on: with the other fields.
        if len(piece) < due or (len(piece) > due and not last):
            raise EnvelopeError(f"{len(piece)} bytes of a {_KINDS[tag]} came where {due} are due")
        content[self._came : self._came + due] = piece[:due]
        self._came += due
        if not last:
            return None
        self._tag, self._content = 0, memoryview(b"")
        return Parcel(_read_others(tag, bytes(piece[due:])), content)


def _read_others(tag: int, fields: bytes) -> Envelope:
    """Read the fields that follow the content, as if that were empty."""
    envelope = read_envelope(bytes((tag, 0)) + fields)
    # In protobuf the last of several wins: a second content among the fields would otherwise be taken silently.
    kind = _KINDS[tag]
    if kind_of(envelope) != kind or getattr(envelope, kind):
        raise EnvelopeError(f"a {kind} with more than one content")
    return envelope


def _varint(value: int) -> bytes:
    """Protobuf's integers: seven bits a byte, the lowest first; the eighth bit says that more follow."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _read_varint(piece: bytes) -> tuple[int, int]:
    """Return the integer after a tag of one byte, and where it ends."""
    value = 0
    # Bounded: a stranger's varint could go on for the whole piece.
    for place, digit in enumerate(piece[1 : 1 + _LONGEST_VARINT]):
        value |= (digit & 0x7F) << 7 * place
        if digit < 0x80:
            return value, place + 2
    raise EnvelopeError("a length that does not end")
