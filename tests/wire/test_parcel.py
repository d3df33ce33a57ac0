"""Envelopes are cut and put together again, and what is no parcel is refused by what is wrong with it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.lab.benchmarks.memory import peak_bytes
from vfl.config import ConfigError
from vfl.wire import parcel
from vfl.wire.envelope import PROTOCOL_VERSION, Envelope, EnvelopeError, Heartbeat, Save
from vfl.wire.parcel import MIB, Assembler, check_size, cut

SMALL = 16
"""Bytes of a piece, in place of PIECE_BYTES."""


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parcel, "PIECE_BYTES", SMALL)
        yield


def header(**changes: Any) -> Envelope:
    fields: dict[str, Any] = {"version": PROTOCOL_VERSION, "run": "r", "sequence": 3, "round": 1000, "request": b""}
    return Envelope(**fields | changes)


def with_content(content: bytes) -> Envelope:
    return header(request=content)


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_what_is_cut_comes_together_and_is_protobuf(content: list[bytes]):
    joined = b"".join(content)
    sent = list(cut(header(), content))
    assert Envelope.FromString(b"".join(sent)) == with_content(joined)
    assert all(len(piece) == SMALL for piece in sent[:-1])
    assembler = Assembler(1)
    came = [assembler.add(piece) for piece in sent]
    assert came[:-1] == [None] * (len(sent) - 1)
    assert came[-1] is not None
    assert (came[-1].envelope, bytes(came[-1].content)) == (header(), joined)


def test_parcels_follow_one_another():
    beat, save = Envelope(version=2, heartbeat=Heartbeat()), Envelope(version=2, run="r", save=Save(round=2))
    assembler = Assembler(1)
    pieces = [*cut(beat), *cut(header(), [bytes(50)]), *cut(save), *cut(header(), [b"x"])]
    came = [each for each in map(assembler.add, pieces) if each is not None]
    assert [each.envelope for each in came] == [beat, header(), save, header()]
    assert [bytes(each.content) for each in came] == [b"", bytes(50), b"", b"x"]


OTHERS = header(request=None).SerializeToString()
WHOLE = with_content(b"abc").SerializeToString()
BEAT = Envelope(version=2, heartbeat=Heartbeat()).SerializeToString()
REFUSED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "a piece is cut short": (lambda p: [p[0], p[1][:-1]], "15 bytes of a request came where 16 are due"),
    "a piece is too long": (lambda p: [p[0] + b"x"], "15 bytes of a request came where 14 are due"),
    "an empty piece": (lambda p: [p[0], b""], "0 bytes of a request came where 16 are due"),
    "the last piece is cut short": (lambda p: [*p[:-1], p[-1][:5]], "5 bytes of a request came where 10 are due"),
    "a short parcel is cut short": (lambda p: [b"\x72\x0912345"], "5 bytes of a request came where 9 are due"),
    "a heartbeat in between": (lambda p: [p[0], BEAT], "4 bytes of a request came where 16 are due"),
    "a length that does not end": (lambda p: [b"\x72" + b"\xff" * 9], "a length that does not end"),
    "no length": (lambda p: [b"\x72"], "a length that does not end"),
    "nothing": (lambda p: [b""], "protocol version 0 came"),
    "above the limit": (
        lambda p: [b"\x7a\x81\x80\x40" + bytes(12)],
        "a reply of 1048577 bytes came, network.max_message_mb allows 1 MiB here; raise it on both sides",
    ),
    "content behind other fields": (lambda p: [WHOLE], "a request whose content is not its first field"),
    "content twice": (lambda p: [b"\x72\x01x" + WHOLE], "a request with more than one content"),
    "two kinds": (lambda p: [b"\x72\x01x" + BEAT], "a request with more than one content"),
    "no envelope behind it": (lambda p: [b"\x72\x01x\xff\xff"], "are no envelope of this protocol"),
    "another version behind it": (lambda p: [b"\x72\x01x\x08\x03"], "protocol version 3 came, this side speaks 2"),
    "a number where text is due": (lambda p: [b"\x72\x01x" + OTHERS + b"\x10\x05"], "or of another type"),
    "text where a number is due": (lambda p: [b"\x72\x01x" + OTHERS + b"\x2a\x01x"], "or of another type"),
    "an unknown field": (lambda p: [b"\x72\x01x" + OTHERS + b"\xa0\x06\x01"], "that version 2 does not have"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str):
    change, message = REFUSED[case]
    pieces = change(list(cut(header(), [bytes(40)])))
    assembler = Assembler(1)
    with pytest.raises(EnvelopeError, match=message):
        assert [assembler.add(piece) for piece in pieces] == [None] * len(pieces)


def test_the_limit_is_taken_and_one_byte_more_is_not_sent():
    check_size("request", MIB, 1)
    with pytest.raises(
        ConfigError, match=r"^network\.max_message_mb: a request of 1048577 bytes is above the 1 MiB allowed; raise it"
    ):
        check_size("request", MIB + 1, 1)


def test_a_length_that_is_only_announced_takes_no_memory():
    before = peak_bytes()
    piece = b"\x72" + bytes([0x80, 0x80, 0x80, 0x80, 0x04])  # 1 GiB
    assembler = Assembler(1024)
    assert assembler.add(piece + bytes(SMALL - len(piece))) is None
    assert peak_bytes() - before < 16 * MIB
