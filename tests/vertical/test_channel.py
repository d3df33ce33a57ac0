"""What arrives is decoded, and refused where a single value is not finite."""

import math

import pytest
import torch

from vfl.vertical.channel import decode_finite
from vfl.wire.codec import encode


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_is_refused(value: float):
    frame = encode(torch.ones(2, 3).index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(value)))
    with pytest.raises(ValueError, match=r"^party_1's embedding has values that are not finite"):
        decode_finite(frame, (2, 3), "float32", "party_1's embedding")


def test_the_largest_finite_values_pass():
    largest = torch.tensor([[torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max, 0.0]])
    assert torch.equal(decode_finite(encode(largest), (1, 3), "float32", "party_1's embedding"), largest)
