"""Messages are packed, cut and put together again, and what is no frame is refused by what is wrong with it."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shorthand import examples

from scripts.lab.benchmarks.memory import peak_bytes
from vfl.config import ConfigError
from vfl.messages.messages import PARTS, Kind, Message, MessageError, Part, PartKind
from vfl.parties.network.wire import frame
from vfl.parties.network.wire.frame import (
    HEADER_BYTES,
    MAX_PARTS,
    MAX_SETTINGS_BYTES,
    MIB,
    ROUTE_BYTES,
    Assembler,
    check_size,
    cut,
    pack,
    unpack,
)

RUN = "0123456789abcdef"
SMALL = 64
"""Bytes of a piece, in place of PIECE_BYTES."""
uint32 = st.integers(0, 2**32 - 1)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "PIECE_BYTES", SMALL)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Any message with any number of the parts that its kind may have."""
    kind = draw(st.sampled_from(Kind))
    part = st.builds(Part, st.sampled_from(PARTS[kind]), st.binary(max_size=200)) if PARTS[kind] else st.nothing()
    parts = draw(st.lists(part, max_size=5)) if PARTS[kind] else []
    run = draw(st.sampled_from(["", RUN, "f" * 16, "0" * 15 + "1"]))
    return Message(kind, draw(uint32), draw(uint32), tuple(parts), run, draw(uint32), draw(uint32))


any_message = messages()


@given(any_message)
def test_unpack_inverts_pack(message: Message):
    packed = pack(message)
    assert unpack(packed) == message
    assert len(packed) == message.size + ROUTE_BYTES == HEADER_BYTES + sum(part.size for part in message.parts)


def test_the_layout_is_the_one_that_is_written_down():
    message = Message(Kind.SAVE, 2, 3, (Part(PartKind.CONTROL, b"{}"),), RUN, 4, 5)
    header = struct.pack("<BBIIH", 4, 46, 2, 3, 1) + bytes.fromhex(RUN) + struct.pack("<III", 4, 5, 7)
    assert pack(message) == header + b"\x04" + struct.pack("<I", 2) + b"{}"


@examples(500)
@given(any_message, st.data())
def test_mutated_bytes_give_a_message_or_the_typed_error(message: Message, data: st.DataObject):
    mutated = bytearray(pack(message))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(mutated) - 1))
        mutated[position] = data.draw(st.integers(0, 255))
    short = bytes(mutated[: data.draw(st.integers(0, len(mutated)))])
    for received in (bytes(mutated), short):
        try:
            again = pack(unpack(received))
        except MessageError:
            continue
        assert again == received


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.release
def test_any_bytes_in_any_pieces_give_messages_or_the_typed_error():
    @examples(2000)
    @given(st.lists(st.one_of(st.binary(max_size=2 * SMALL), any_message), max_size=4), st.data())
    def check(sent: list[bytes | Message], data: st.DataObject) -> None:
        assembler = Assembler(1)
        for each in sent:
            for piece in [each] if isinstance(each, bytes) else [*cut(each)]:
                piece = piece[: data.draw(st.sampled_from([None, None, None, len(piece) // 2]))]
                try:
                    came = assembler.add(piece)
                except MessageError:
                    return  # the stream ends
                assert came is None or unpack(pack(came)) == came

    check()


@pytest.mark.usefixtures("small_pieces")
def test_pieces_are_cuts_of_the_frame_and_come_together():
    @given(any_message.filter(lambda message: message.kind < Kind.HELLO))
    def check(message: Message) -> None:
        sent = list(cut(message))
        assert b"".join(sent) == pack(message)
        assert all(len(piece) == SMALL for piece in sent[:-1])
        assert 0 < len(sent[-1]) <= SMALL
        assembler = Assembler(1)
        assert [assembler.add(piece) for piece in sent] == [None] * (len(sent) - 1) + [message]

    check()


def carrying(size: int) -> Message:
    """A message whose frame is longer by the header and 5 bytes."""
    return Message(Kind.EMBEDDING, 1000, parts=(Part(PartKind.EMBEDDING, bytes(size)),), run=RUN, sequence=3)


@pytest.mark.usefixtures("small_pieces")
def test_frames_follow_one_another():
    sent = [Message(Kind.HEARTBEAT), carrying(150), Message(Kind.RESTORED, run=RUN), carrying(1)]
    assembler = Assembler(1)
    came = [assembler.add(piece) for message in sent for piece in cut(message)]
    assert [each for each in came if each is not None] == sent


BEAT = pack(Message(Kind.HEARTBEAT))
VAST = pack(carrying(0))[:28] + struct.pack("<I", MIB) + b"\x01" + bytes(4)
REFUSED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "a piece is cut short": (lambda p: [p[0], p[1][:-1]], "63 bytes of a EMBEDDING came where 64 are due"),
    "a piece is too long": (lambda p: [p[0] + b"x"], "65 bytes of a EMBEDDING came where 64 are due"),
    "an empty piece": (lambda p: [p[0], b""], "0 bytes of a EMBEDDING came where 64 are due"),
    "the last piece is cut short": (lambda p: [*p[:-1], p[-1][:5]], "5 bytes of a EMBEDDING came where 9 are due"),
    "the last piece is too long": (lambda p: [*p[:-1], p[-1] + b"x"], "10 bytes of a EMBEDDING came where 9 are due"),
    "a short frame is cut short": (lambda p: [pack(carrying(3))[:-1]], "39 bytes of a EMBEDDING came where 40 are due"),
    "a short frame is too long": (lambda p: [BEAT + b"x"], "33 bytes of a HEARTBEAT came where 32 are due"),
    "two frames in one": (lambda p: [BEAT + BEAT], "64 bytes of a HEARTBEAT came where 32 are due"),
    "a heartbeat in between": (lambda p: [p[0], BEAT], "32 bytes of a EMBEDDING came where 64 are due"),
    "a first piece cut short": (lambda p: [p[0][:40]], "40 bytes of a EMBEDDING came where 64 are due"),
    "half a header": (lambda p: [p[0][:31]], "31 bytes are no frame"),
    "nothing": (lambda p: [b""], "0 bytes are no frame"),
    "above the limit": (
        lambda p: [VAST],
        "a EMBEDDING of 1048608 bytes came, network.max_message_mb allows 1 MiB here; raise it on both sides",
    ),
    "another version": (lambda p: [b"\x02" + p[0][1:]], "protocol version 2 came, this side speaks 4"),
    "a session's message of several pieces": (
        lambda p: [pack(Message(Kind.HELLO, parts=(Part(PartKind.CONTROL, bytes(40)),)))],
        "a HELLO of 77 bytes came, at most 64 are allowed",
    ),
}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str):
    change, text = REFUSED[case]
    pieces = change(list(cut(carrying(100))))
    assembler = Assembler(1)
    with pytest.raises(MessageError, match=text):
        assert [assembler.add(piece) for piece in pieces] == [None] * len(pieces)


def with_header(message: Message, place: int, form: str, value: int) -> bytes:
    data = bytearray(pack(message))
    struct.pack_into(form, data, place, value)
    return bytes(data)


HEAD = Message(Kind.END_ROUND, parts=(Part(PartKind.HEAD, b"abc"),))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes are no frame"),
        (with_header(HEAD, 0, "<B", 2), "protocol version 2 came, this side speaks 4; install the same release"),
        (with_header(HEAD, 1, "<B", 99), "99 is no Kind"),
        (with_header(HEAD, 32, "<B", 99), "99 is no PartKind"),
        (with_header(HEAD, 32, "<B", 4), "END_ROUND message with a CONTROL part"),
        (with_header(HEAD, 33, "<I", 4), "truncated in a part's payload"),
        (with_header(HEAD, 33, "<I", 2), "1 bytes after the last part"),
        (with_header(HEAD, 10, "<H", 2), "truncated in a part's header"),
        (with_header(HEAD, 10, "<H", 0), "8 bytes after the last part"),
        (with_header(HEAD, 10, "<H", MAX_PARTS + 1), "4097 parts, at most 4096 are allowed"),
        (pack(HEAD) + b"x", "41 bytes of a END_ROUND came where 40 are due"),
        (pack(HEAD)[:-1], "39 bytes of a END_ROUND came where 40 are due"),
        (
            pack(Message(Kind.REPORT, parts=(Part(PartKind.CONTROL, bytes(MAX_SETTINGS_BYTES + 1)),))),
            "control part of 1048577 bytes",
        ),
    ],
)
def test_each_malformation_has_its_own_text(data: bytes, text: str):
    with pytest.raises(MessageError, match=text):
        unpack(data)


def test_a_part_that_the_kind_of_message_cannot_have():
    with pytest.raises(MessageError, match="DONE message with a EMBEDDING part"):
        unpack(pack(Message(Kind.DONE, parts=(Part(PartKind.EMBEDDING, b""),))))


def test_the_limit_is_taken_and_one_byte_more_is_not_sent():
    check_size(carrying(MIB - HEADER_BYTES - 5), 1)
    with pytest.raises(
        ConfigError,
        match=r"^network\.max_message_mb: a EMBEDDING of 1048577 bytes is above the 1 MiB allowed; raise it",
    ):
        check_size(carrying(MIB - HEADER_BYTES - 4), 1)


def test_a_length_that_is_only_announced_takes_no_memory(monkeypatch: pytest.MonkeyPatch):
    before = peak_bytes()
    piece = pack(carrying(0))[:28] + struct.pack("<I", 1023 * MIB)  # about 1 GiB
    monkeypatch.setattr(frame, "PIECE_BYTES", SMALL)
    assert Assembler(1024).add(piece + bytes(SMALL - len(piece))) is None
    assert peak_bytes() - before < 16 * MIB
