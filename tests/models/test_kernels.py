"""Which form is chosen, as a function of shape, dtype and what the CPU has; docs/results/benchmark says why."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from vfl.models.kernels import DENSE_SIDE, convolution_form

sizes = st.integers(1, 600)
sides = st.integers(1, 40)


def form(channels: int, side: int, dtype: torch.dtype, amx: bool) -> str:
    return convolution_form(torch.Size((256, channels, side, side)), dtype, amx=amx)


@given(sizes, sides, st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_full_precision_keeps_the_kernels_its_bits_come_from(channels: int, side: int, amx: bool, dtype: torch.dtype):
    assert form(channels, side, dtype, amx) == ("dense" if side <= DENSE_SIDE else "own")


@given(sizes, sides)
def test_bfloat16_gathers_patches_of_4x4_maps_only_with_amx(channels: int, side: int):
    assert form(channels, side, torch.bfloat16, amx=False) == ("dense" if side <= 2 else "own")
    with_amx = "dense" if side <= 2 else "gathered" if side <= 4 else "own"
    assert form(channels, side, torch.bfloat16, amx=True) == with_amx
