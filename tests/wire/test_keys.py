import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfl.messages.keys import LONGEST_KEY, key_bytes, keys_part, presence_part, read_keys, read_presence
from vfl.messages.messages import MessageError

KEYS = st.lists(st.binary(min_size=1, max_size=LONGEST_KEY), min_size=1, max_size=50)
CELLS = st.lists(st.text(st.characters(codec="utf-8"), max_size=20), min_size=1, max_size=3)


@given(KEYS)
def test_keys_come_as_they_were_sent(keys):
    assert read_keys(keys_part(keys).payload) == keys


@given(KEYS, st.data())
def test_other_bytes_are_refused_or_are_other_keys(keys, data):
    sent = bytearray(keys_part(keys).payload)
    place = data.draw(st.integers(0, len(sent) - 1))
    sent[place] ^= data.draw(st.integers(1, 255))
    changed = bytes(sent[: data.draw(st.integers(0, len(sent)))])
    try:
        came = read_keys(changed)
    except MessageError:
        return
    assert keys_part(came).payload == changed != keys_part(keys).payload


@given(CELLS, CELLS)
def test_keys_are_equal_where_their_cells_are(one, other):
    for secret in (None, b"a secret of all owners"):
        assert (key_bytes(one, secret) == key_bytes(other, secret)) == (one == other)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_presence_comes_as_it_was_sent(there):
    payload = bytes(presence_part(np.asarray(there)).payload)
    assert read_presence(payload, len(there)) == there
    for wrong in (payload + b"\0", payload[:-1]):
        with pytest.raises(MessageError):
            read_presence(wrong, len(there))
    if len(there) % 8:
        with pytest.raises(MessageError, match="after the last"):
            read_presence(bytes([*payload[:-1], payload[-1] | 1]), len(there))
