"""Which form is chosen, as a function of shape, dtype and what the CPU has; docs/results/benchmark says why."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.kernels import DENSE_SIDE, convolution_form, is_narrow_backwards

sizes = st.integers(1, 600)


def form(channels: int, out_channels: int, side: int, dtype: torch.dtype = torch.bfloat16, amx: bool = False) -> str:
    return convolution_form(torch.Size((256, channels, side, side)), out_channels, dtype, amx=amx)


@given(sizes, sizes, st.integers(1, 40), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_full_precision_keeps_the_kernels_its_bits_come_from(c: int, o: int, side: int, amx: bool, dtype: torch.dtype):
    assert form(c, o, side, dtype, amx) == ("dense" if side <= DENSE_SIDE else "own")
    assert is_narrow_backwards(c, dtype)


GATHERED = "gathered for the weight"


@pytest.mark.parametrize(
    ("c", "o", "side", "without_amx", "with_amx"),
    [
        (3, 26, 16, "own", "own"),
        (26, 26, 16, "own", "own"),
        (51, 51, 8, "own", "own"),
        (26, 51, 4, GATHERED, "gathered"),
        (51, 102, 4, GATHERED, "gathered"),
        (102, 102, 4, GATHERED, "gathered"),
        (112, 112, 4, GATHERED, "gathered"),
        (179, 179, 4, GATHERED, "gathered"),
        (205, 205, 4, "own", "gathered"),
        (96, 96, 4, "own", "gathered"),
        (128, 256, 4, "own", "gathered"),
        (256, 256, 4, "own", "gathered"),
        (512, 512, 2, "dense", "dense"),
        (205, 205, 1, "dense", "dense"),
    ],
)
def test_bfloat16_takes_the_form_that_was_measured_fastest(c: int, o: int, side: int, without_amx: str, with_amx: str):
    assert form(c, o, side) == without_amx
    assert form(c, o, side, amx=True) == with_amx


@pytest.mark.parametrize(("channels", "narrow"), [(13, True), (16, True), (20, False), (26, False), (51, False)])
def test_few_channels_only_have_a_narrow_gradient_in_bfloat16(channels: int, narrow: bool):
    assert is_narrow_backwards(channels, torch.bfloat16) == narrow
