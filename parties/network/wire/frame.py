"""The frame: every message between two processes as bytes. This docstring is the specification.

    offset  bytes  field
    0       1      version of the protocol (4); both sides must speak the same
    1       1      kind of message (``messages.Kind``)
    2       4      round
    6       4      exchange within the round
    10      2      number of parts
    12      8      id of the run; zeros: none yet
    20      4      session
    24      4      sequence
    28      4      length: bytes of all parts
    32      ...    parts: 1 byte kind (``messages.PartKind``), 4 bytes length of the payload, payload

Numbers are little endian. A frame travels in pieces of PIECE_BYTES, the last one shorter: cuts of these bytes and
nothing else, one after another, each a message of gRPC. gRPC for Python holds several copies of what it receives: so
they are copies of a piece. Frames of a session's kinds (``messages.SESSION``) are one piece.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, TypeVar

import numpy as np

from vfl.config import ConfigError
from vfl.messages.messages import (
    MESSAGE_BYTES,
    PART_BYTES,
    PARTS,
    SESSION,
    Buffer,
    Kind,
    Message,
    MessageError,
    Part,
    PartKind,
)

VERSION = 4
PIECE_BYTES = 1 << 20
MIB = 1 << 20
MAX_PARTS = 4096
MAX_SETTINGS_BYTES = 1 << 20
E = TypeVar("E", bound=IntEnum)
_HEADER = struct.Struct("<BBIIH8sIII")
_PART = struct.Struct("<BI")
HEADER_BYTES, ROUTE_BYTES = _HEADER.size, _HEADER.size - MESSAGE_BYTES
"""Bytes of the whole header, and of its fields from the run on, which the ledger does not count."""
assert _PART.size == PART_BYTES


class TooLargeError(ConfigError):
    """Error about a message that exceeds the other side's limit."""


class _Header(NamedTuple):
    """Fields of a frame's header, unchecked."""

    version: int
    kind: int
    round_index: int
    exchange: int
    parts: int
    run: bytes
    session: int
    sequence: int
    length: int


def check_size(message: Message, max_message_mb: int) -> None:
    """Raise TooLargeError for a message that exceeds the other side's limit."""
    size = frame_bytes(message)
    if message.kind in SESSION and size > PIECE_BYTES:
        raise TooLargeError(f"a {message.kind.name} of {size} bytes is above {PIECE_BYTES}: shorten the settings")
    if size > max_message_mb * MIB:
        raise TooLargeError(
            f"network.max_message_mb: a {message.kind.name} of {size} bytes is above the {max_message_mb} MiB allowed; "
            "raise it on both sides or lower training.batch_size"
        )


def frame_bytes(message: Message) -> int:
    """Return the length of a message's frame."""
    return HEADER_BYTES + PART_BYTES * len(message.parts) + sum([len(part.payload) for part in message.parts])


def pack(message: Message) -> bytes:
    """Serialize a message."""
    return b"".join(_buffers(message))


def cut(message: Message) -> Iterator[bytes]:
    """Yield the pieces of a serialized message, each created when it is needed."""
    buffers = _buffers(message)
    if sum(map(len, buffers)) <= PIECE_BYTES:
        yield b"".join(buffers)
        return
    batch, room = list[Buffer](), PIECE_BYTES
    # `batch` holds views until it fills a piece, so that payloads are copied once, into the piece.
    for each in buffers:
        left = memoryview(each)
        while len(left) > room:
            yield b"".join((*batch, left[:room]))
            left = left[room:]
            batch, room = [], PIECE_BYTES
        batch.append(left)
        room -= len(left)
    yield b"".join(batch)


def unpack(data: Buffer) -> Message:
    """Read a message, whose payloads are views of ``data``. Raises MessageError for any other bytes than ``pack``'s."""
    header = _read_header(data)
    return _read_parts(memoryview(data), header, _member(Kind, header.kind))


def _read_parts(data: memoryview, header: _Header, kind: Kind) -> Message:
    if header.parts > MAX_PARTS:
        raise MessageError(f"{header.parts} parts, at most {MAX_PARTS} are allowed")
    if HEADER_BYTES + header.length != len(data):
        raise MessageError(f"{len(data)} bytes of a {kind.name} came where {HEADER_BYTES + header.length} are due")
    parts: list[Part] = []
    offset = HEADER_BYTES
    for _ in range(header.parts):
        if offset + PART_BYTES > len(data):
            raise MessageError("truncated in a part's header")
        part_kind, size = _PART.unpack_from(data, offset)
        offset += PART_BYTES
        if offset + size > len(data):  # before the slice, which would silently be shorter
            raise MessageError("truncated in a part's payload")
        if part_kind == PartKind.CONTROL and size > MAX_SETTINGS_BYTES:
            raise MessageError(f"control part of {size} bytes, at most {MAX_SETTINGS_BYTES} are allowed")
        parts.append(Part(_member(PartKind, part_kind), data[offset : offset + size]))
        offset += size
    if offset != len(data):
        raise MessageError(f"{len(data) - offset} bytes after the last part")
    if strange := {part.kind for part in parts} - {*PARTS[kind]}:
        raise MessageError(f"{kind.name} message with a {min(strange).name} part")
    run = header.run.hex() if any(header.run) else ""
    return Message(kind, header.round_index, header.exchange, tuple(parts), run, header.session, header.sequence)


class Assembler:
    """Joins the pieces of ``cut``, trusting none of them.

    Memory grows only with bytes received: an announced length costs none, and one above the limit is refused.
    """

    def __init__(self, max_message_mb: int) -> None:
        self.max_message_mb = max_message_mb
        self._frame = memoryview(b"")
        """The frame that is arriving; empty for none."""
        self._kind = Kind.HEARTBEAT
        self._came = 0

    def add(self, piece: Buffer) -> Message | None:
        """Add the next piece; return the message that it completes, if any.

        Raises MessageError for anything but a frame, and for one above the limit.
        """
        if not self._frame:
            header = _read_header(piece)
            self._kind, size = self._announced(header)
            if size <= PIECE_BYTES:
                return _read_parts(memoryview(piece), header, self._kind)
            self._frame, self._came = np.empty(size, np.uint8).data, 0  # the system gives pages as they are written
        frame = self._frame
        due = min(PIECE_BYTES, len(frame) - self._came)
        if len(piece) != due:
            raise MessageError(f"{len(piece)} bytes of a {self._kind.name} came where {due} are due")
        frame[self._came : self._came + due] = piece
        self._came += due
        if self._came < len(frame):
            return None
        self._frame = memoryview(b"")
        return unpack(frame)

    def _announced(self, header: _Header) -> tuple[Kind, int]:
        """Return kind and length of the frame that begins with this header."""
        kind, size = _member(Kind, header.kind), HEADER_BYTES + header.length
        if kind in SESSION and size > PIECE_BYTES:
            raise MessageError(f"a {kind.name} of {size} bytes came, at most {PIECE_BYTES} are allowed")
        if size > self.max_message_mb * MIB:
            raise MessageError(
                f"a {kind.name} of {size} bytes came, network.max_message_mb allows {self.max_message_mb} MiB here; "
                "raise it on both sides"
            )
        return kind, size


def _buffers(message: Message) -> list[Buffer]:
    """Return a message's bytes without copying its payloads."""
    assert len(message.run) in (0, 16), message.run
    header = _HEADER.pack(
        VERSION,
        message.kind,
        message.round_index,
        message.exchange,
        len(message.parts),
        bytes.fromhex(message.run) or bytes(8),
        message.session,
        message.sequence,
        frame_bytes(message) - HEADER_BYTES,
    )
    buffers: list[Buffer] = [header]
    for part in message.parts:
        buffers += (_PART.pack(part.kind, len(part.payload)), part.payload)
    return buffers


def _read_header(data: Buffer) -> _Header:
    # Before the length: what another version begins with has any.
    if len(data) and data[0] != VERSION:
        raise MessageError(f"protocol version {data[0]} came, this side speaks {VERSION}; install the same release")
    if len(data) < HEADER_BYTES:
        raise MessageError(f"{len(data)} bytes are no frame")
    return _Header(*_HEADER.unpack_from(data))


def _member(enum: type[E], value: int) -> E:
    try:
        return enum(value)
    except ValueError:
        raise MessageError(f"{value} is no {enum.__name__}") from None
