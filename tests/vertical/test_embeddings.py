"""What arrives is decoded, and refused where it is not as agreed or a single value is not finite."""

import math

import numpy as np
import pytest
import torch

from vfl.compression.codec import CodecError, encode
from vfl.config.wire import WireConfig
from vfl.core.compressors import magnitude
from vfl.core.embeddings import EmbeddingReceiver, decode_finite


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_is_refused(value: float):
    frame = encode(torch.ones(2, 3).index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(value)))
    with pytest.raises(ValueError, match=r"^party_1's embedding has values that are not finite"):
        decode_finite(frame, (2, 3), "float32", "party_1's embedding")


FRAME = encode(torch.ones(2, 3))
REFUSED = {
    "of another value type": (encode(torch.ones(2, 3), "float16"), "its values are float16, float32 was agreed"),
    "of another shape": (encode(torch.ones(3, 2)), "frame holds a tensor of shape (3, 2), expected (2, 3)"),
    "for another batch": (encode(torch.ones(5, 3)), "frame holds a tensor of shape (5, 3), expected (2, 3)"),
    "truncated": (FRAME[:-1], "dense frame of shape (2, 3) has a body of 23 bytes"),
    "truncated in its header": (FRAME[:11], "frame declares 2 dimensions: above 8, or cut short"),
    "of another version": (b"\x02" + FRAME[1:], "frame is of version 2, this program reads version 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_frame_that_is_not_as_agreed_is_refused_by_what_differs(case: str):
    frame, text = REFUSED[case]
    with pytest.raises(CodecError) as refused:
        EmbeddingReceiver("party_1", 3, magnitude(WireConfig())).receive(frame, torch.arange(2))
    assert str(refused.value) == f"party_1's embedding: {text}"


def test_what_can_be_written_is_decoded_where_it_lies_and_nothing_else():
    values_BD = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    for frame, shared in ((encode(values_BD), False), (bytearray(encode(values_BD)), True)):
        decoded_BD = decode_finite(memoryview(frame), (2, 3), "float32", "party_1's embedding")
        assert torch.equal(decoded_BD, values_BD)
        assert (decoded_BD.data_ptr() - address_of(frame) == len(frame) - 24) == shared


def address_of(buffer: bytes | bytearray) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def test_the_largest_finite_values_pass():
    largest = torch.tensor([[torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max, 0.0]])
    assert torch.equal(decode_finite(encode(largest), (1, 3), "float32", "party_1's embedding"), largest)
