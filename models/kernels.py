"""Which form of a layer is the fastest on the CPU: by its shape, its dtype and what the CPU has.

Choices follow from measurements (docs/results/benchmark/README.md). Those for float32 do not change: they are part of
the bits of training.
"""

from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

DENSE_SIDE = 2
"""A 3x3 kernel reaches from every pixel to every other up to this side."""
GATHERED_SIDE = 4
"""Up to here gathering nine values per pixel costs little beside what is done with them."""
VECTOR = 32
"""Entries of the widest vector (512 bits of bfloat16)."""
MANY_CHANNELS = 64
"""From here on the last vector of a pixel is too small a part of it."""
FEW_ENTRIES = 1 << 18
"""Up to here the calls of a narrow normalization cost more than the vectors."""
FEW_PIXELS = 1 << 15
"""Nor does it pay in bfloat16 up to here: 16x16 maps gain 2 to 65 %, 8x8 maps lose up to a tenth (batch 256)."""
PIXELS = 16
"""That a narrow normalization reads as one."""

ConvolutionForm = Literal["dense", "gathered", "own"]
"""One product from all pixels to all pixels; products over gathered patches; PyTorch's own kernel in channels_last."""


def convolution_form(shape: torch.Size, dtype: torch.dtype, *, amx: bool) -> ConvolutionForm:
    """Return the form of a 3x3 convolution with padding 1 of images [B, C, H, W] that computes in `dtype`."""
    side = max(shape[2:])
    if side <= DENSE_SIDE:
        return "dense"
    # 256 channels on 4x4, forwards and backwards: with AMX 66 ms by the kernel and 27 by the products; without it the
    # products gain a tenth at best, and lose at other widths.
    return "gathered" if amx and dtype == torch.bfloat16 and side <= GATHERED_SIDE else "own"


@lru_cache
def has_amx() -> bool:
    """Whether the CPU multiplies matrices of bfloat16 in tiles."""
    return torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]  # nothing public before 2.14


def is_narrow(images: Tensor) -> bool:
    """Whether to normalize [B, C, H, W] by several pixels at once: few channels, in channels_last, on the CPU."""
    channels = images.shape[1]
    pixels = images.numel() // channels
    return (
        images.device.type == "cpu"
        and channels < MANY_CHANNELS
        and channels % VECTOR != 0
        and images.numel() > FEW_ENTRIES
        and (images.dtype != torch.bfloat16 or pixels > FEW_PIXELS)
        and pixels % PIXELS == 0
        and images.is_contiguous(memory_format=torch.channels_last)
    )
