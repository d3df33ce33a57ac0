"""Convolutions of small maps, and which form of them is chosen."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shorthand import examples
from torch import nn
from torch.nn import functional as F

from vfl.models import small_map
from vfl.models.kernels import DENSE_SIDE, convolution_form
from vfl.models.small_map import GatheredConvolution, SmallMapConv2d

sides = st.integers(1, DENSE_SIDE + 1)
channels = st.integers(1, 5)


def reference(conv: SmallMapConv2d) -> nn.Conv2d:
    plain = nn.Conv2d(conv.in_channels, conv.out_channels, 3, padding=1, bias=conv.bias is not None)
    plain.load_state_dict(conv.state_dict())
    return plain.to(conv.weight.dtype)


@examples(60)
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


@examples(40)
@given(st.integers(0, 3), st.integers(1, 5), st.integers(1, 5), channels, channels, st.booleans())
def test_products_over_patches_equal_the_convolution(
    batch: int, height: int, width: int, c: int, o: int, channels_last: bool
):
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(batch, c, height, width, dtype=torch.float64).contiguous(memory_format=memory_format)
    weight = torch.randn(o, c, 3, 3, dtype=torch.float64).contiguous(memory_format=memory_format)
    grad_output = torch.randn(batch, o, height, width, dtype=torch.float64)
    seen = []
    for convolve in (GatheredConvolution.apply, lambda x, w: F.conv2d(x, w, padding=1)):
        inputs = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        y = convolve(*inputs)
        seen.append([y.detach(), *torch.autograd.grad(y, inputs, grad_output)])
    torch.testing.assert_close(*seen)


@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize(("c", "o", "side"), [(16, 8, 1), (16, 8, 2), (51, 102, 4), (64, 64, 4), (26, 51, 8)])
def test_bfloat16_rounds_no_worse_than_pytorchs_own(
    monkeypatch: pytest.MonkeyPatch, c: int, o: int, side: int, amx: bool
):
    monkeypatch.setattr(small_map, "has_amx", lambda: amx)
    conv = SmallMapConv2d(c, o, bias=True)
    plain, exact = reference(conv), reference(conv).double()
    x, grad_output = torch.randn(16, c, side, side), torch.randn(16, o, side, side).bfloat16()
    seen = []
    for module in (conv, plain, exact):
        inputs = x.to(module.weight.dtype).clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=module is not exact):
            y = module(inputs)
        seen.append([y.detach(), *torch.autograd.grad(y, [inputs, *module.parameters()], grad_output.to(y.dtype))])
    for ours, theirs, true in zip(*seen, strict=True):
        assert ours.dtype == theirs.dtype
        floor = torch.finfo(torch.bfloat16).eps * true.abs().max()
        assert (ours - true).abs().max() <= 2 * (theirs - true).abs().max() + floor


sizes = st.integers(1, 600)
any_side = st.integers(1, 40)


def form(channels: int, side: int, dtype: torch.dtype, amx: bool) -> str:
    return convolution_form(torch.Size((256, channels, side, side)), dtype, amx=amx)


@given(sizes, any_side, st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_full_precision_keeps_the_kernels_its_bits_come_from(channels: int, side: int, amx: bool, dtype: torch.dtype):
    assert form(channels, side, dtype, amx) == ("dense" if side <= DENSE_SIDE else "own")


@given(sizes, any_side)
def test_bfloat16_gathers_patches_of_4x4_maps_only_with_amx(channels: int, side: int):
    assert form(channels, side, torch.bfloat16, amx=False) == ("dense" if side <= 2 else "own")
    with_amx = "dense" if side <= 2 else "gathered" if side <= 4 else "own"
    assert form(channels, side, torch.bfloat16, amx=True) == with_amx
