import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfl.wire.messages import (
    ENVELOPE_BYTES,
    MAX_PARTS,
    MAX_SETTINGS_BYTES,
    PARTS,
    Kind,
    Message,
    MessageError,
    Part,
    PartKind,
    check_reply,
    control,
    pack,
    unpack,
)

uint32 = st.integers(0, 2**32 - 1)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Any message with any number of the parts that its kind may have."""
    kind = draw(st.sampled_from(Kind))
    part = st.builds(Part, st.sampled_from(PARTS[kind]), st.binary(max_size=40)) if PARTS[kind] else st.nothing()
    parts = draw(st.lists(part, max_size=5)) if PARTS[kind] else []
    return Message(kind, draw(uint32), draw(uint32), tuple(parts))


any_message = messages()


@given(any_message)
def test_unpack_inverts_pack(message: Message):
    packed = pack(message)
    assert unpack(packed) == message
    assert len(packed) == message.size == ENVELOPE_BYTES + sum(part.size for part in message.parts)


@settings(max_examples=2000)
@given(any_message, st.data())
def test_mutated_bytes_give_a_message_or_the_typed_error(message: Message, data: st.DataObject):
    mutated = bytearray(pack(message))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(mutated) - 1))
        mutated[position] = data.draw(st.integers(0, 255))
    cut = bytes(mutated[: data.draw(st.integers(0, len(mutated)))])
    for received in (bytes(mutated), cut):
        try:
            again = pack(unpack(received))
        except MessageError:
            continue
        assert again == received


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes are no message"),
        (b"\x02" + pack(Message(Kind.EMBED))[1:], "protocol version 2, this side speaks 1"),
        (b"\x01\x63" + pack(Message(Kind.EMBED))[2:], "99 is no Kind"),
        (pack(Message(Kind.EMBED)) + b"x", "1 bytes after the last part"),
        (pack(Message(Kind.END_ROUND, parts=(Part(PartKind.HEAD, b"abc"),)))[:-1], "truncated in a part's payload"),
        (pack(Message(Kind.END_ROUND, parts=(Part(PartKind.HEAD, b""),)))[:-1], "truncated in a part's header"),
        (pack(Message(Kind.EMBED))[:10] + (MAX_PARTS + 1).to_bytes(2, "little"), "at most 4096 are allowed"),
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


REQUEST = Message(Kind.END_ROUND, 4, 1)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Message(Kind.DONE, 4, 1), "DONE of round 4, exchange 1 came where REPORT of round 4, exchange 1 is due"),
        (Message(Kind.REPORT, 5, 1, (control({}),)), "REPORT of round 5, exchange 1 came where"),
        (Message(Kind.REPORT, 4, 0, (control({}),)), "REPORT of round 4, exchange 0 came where"),
        (Message(Kind.REPORT, 4, 1), "REPORT with 0 parts instead of 1"),
        (Message(Kind.REPORT, 4, 1, (control({}), control({}))), "REPORT with 2 parts instead of 1"),
    ],
)
def test_a_reply_that_does_not_answer(reply: Message, text: str):
    check_reply(REQUEST, Message(Kind.REPORT, 4, 1, (control({}),)))
    with pytest.raises(MessageError, match=text):
        check_reply(REQUEST, reply)
