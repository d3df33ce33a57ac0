import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from models.small_map import LARGEST_SIDE, SmallMapConv2d

sides = st.integers(1, LARGEST_SIDE + 1)
channels = st.integers(1, 5)


def reference(conv: SmallMapConv2d) -> nn.Conv2d:
    plain = nn.Conv2d(conv.in_channels, conv.out_channels, 3, padding=1, bias=conv.bias is not None)
    plain.load_state_dict(conv.state_dict())
    return plain.to(conv.weight.dtype)


@settings(max_examples=60)
@given(st.integers(0, 4), sides, sides, channels, channels, st.booleans(), st.booleans())
def test_values_and_gradients_equal_conv2d(
    batch: int, height: int, width: int, c: int, o: int, bias: bool, channels_last: bool
):
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    conv = SmallMapConv2d(c, o, bias=bias).double().to(memory_format=memory_format)
    plain = reference(conv).to(memory_format=memory_format)
    x = torch.randn(batch, c, height, width, dtype=torch.float64, requires_grad=True)
    seen = []
    for module in (conv, plain):
        y = module(x.contiguous(memory_format=memory_format))
        y.pow(2).sum().backward()
        seen.append([y.detach(), x.grad, *(parameter.grad for parameter in module.parameters())])
        x.grad = None
    for ours, theirs in zip(*seen, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_pixels_of_the_small_map_go_through_the_matrix_product():
    y = SmallMapConv2d(3, 4, bias=False)(torch.randn(2, 3, 2, 2))
    assert "SmallMap" in type(y.grad_fn).__name__
    y = SmallMapConv2d(3, 4, bias=False)(torch.randn(2, 3, 4, 4))
    assert "SmallMap" not in type(y.grad_fn).__name__


def test_larger_maps_come_out_channels_last_and_equal_conv2d():
    conv = SmallMapConv2d(3, 4, bias=True)
    x = torch.randn(2, 3, 4, 5)
    y = conv(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, nn.functional.conv2d(x, conv.weight, conv.bias, padding=1))


@pytest.mark.parametrize("side", [1, 2])
def test_autocast_computes_in_its_dtype_and_gives_float32_gradients(side: int):
    conv = SmallMapConv2d(16, 8, bias=True)
    plain = copy.deepcopy(conv)
    x = torch.randn(6, 16, side, side)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv(x)
        z = nn.Conv2d.forward(plain, x)
    assert y.dtype == z.dtype == torch.bfloat16
    torch.testing.assert_close(y, z, rtol=2e-2, atol=2e-2)
    y.float().pow(2).sum().backward()
    z.float().pow(2).sum().backward()
    for ours, theirs in zip(conv.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert ours.grad.dtype == torch.float32
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=5e-2, atol=2e-1)
