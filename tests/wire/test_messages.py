import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfl.wire.messages import (
    MAX_PARTS,
    MAX_SETTINGS_BYTES,
    Kind,
    Message,
    MessageError,
    Part,
    PartKind,
    control,
    pack,
    unpack,
)

uint32 = st.integers(0, 2**32 - 1)
parts = st.lists(st.builds(Part, st.sampled_from(PartKind), st.binary(max_size=40)), max_size=5).map(tuple)
any_message = st.builds(Message, st.sampled_from(Kind), uint32, uint32, parts)


@given(any_message)
def test_unpack_inverts_pack(message: Message):
    assert unpack(pack(message)) == message


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
        (pack(Message(Kind.EMBED, parts=(Part(PartKind.HEAD, b"abc"),)))[:-1], "truncated in a part's payload"),
        (pack(Message(Kind.EMBED, parts=(Part(PartKind.HEAD, b""),)))[:-1], "truncated in a part's header"),
        (pack(Message(Kind.EMBED))[:10] + (MAX_PARTS + 1).to_bytes(2, "little"), "at most 4096 are allowed"),
        (
            pack(Message(Kind.EMBED, parts=(Part(PartKind.CONTROL, bytes(MAX_SETTINGS_BYTES + 1)),))),
            "control part of 1048577 bytes",
        ),
    ],
)
def test_each_malformation_has_its_own_text(data: bytes, text: str):
    with pytest.raises(MessageError, match=text):
        unpack(data)


def test_settings_keep_all_bits_of_a_float():
    message = Message(Kind.START_ROUND, parts=(control({"alpha": 0.1 + 0.2, "name": "ü"}),))
    assert unpack(pack(message)).settings == {"alpha": 0.1 + 0.2, "name": "ü"}


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((), "with 0 control parts instead of 1"),
        ((control({}), control({})), "with 2 control parts instead of 1"),
        ((Part(PartKind.CONTROL, b"{"),), "is not JSON"),
        ((Part(PartKind.CONTROL, b"[1]"),), "is not a JSON object"),
        ((Part(PartKind.CONTROL, b"\xff\xfe"),), "is not JSON"),
    ],
)
def test_settings_that_are_none_are_refused(parts: tuple[Part, ...], text: str):
    with pytest.raises(MessageError, match=text):
        _ = Message(Kind.REPORT, parts=parts).settings
