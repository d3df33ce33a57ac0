"""Choice of the form of a layer that is fastest on the CPU, by its shape, its dtype and the CPU's instructions.

The choices follow from measurements (docs/results/benchmark/README.md). Those for float32 do not change: they are part
of the bits of training.
"""

from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

DENSE_SIDE = 2
"""Largest side of a map on which a 3x3 kernel reaches from every pixel to every other."""
GATHERED_SIDE = 4
"""Largest side on which gathering nine values per pixel costs little relative to computing with them."""
VECTOR = 32
"""Entries of the widest vector (512 bits of bfloat16)."""
MANY_CHANNELS = 64
"""Channels from which the partly filled last vector of a pixel is a small share."""
FEW_ENTRIES = 1 << 18
"""Entries up to which the calls of a narrow normalization cost more than the vectors."""
FEW_PIXELS = 1 << 15
"""Pixels up to which it does not pay in bfloat16: 16x16 maps gain 2 to 65 %, 8x8 maps lose up to a tenth (batch
256)."""
PIXELS = 16
"""Pixels that a narrow normalization reads as one."""

ConvolutionForm = Literal["dense", "gathered", "own"]
"""dense: one product from all pixels to all pixels; gathered: products over gathered patches; own: PyTorch's own kernel
in channels_last."""


def convolution_form(shape: torch.Size, dtype: torch.dtype, *, amx: bool) -> ConvolutionForm:
    """Return the form of a 3x3 convolution with padding 1 of images [B, C, H, W] that is computed in `dtype`."""
    side = max(shape[2:])
    if side <= DENSE_SIDE:
        return "dense"
    # 256 channels on 4x4, forwards and backwards: with AMX 66 ms by the kernel and 27 by the products; without it the
    # products gain a tenth at best, and lose at other widths.
    return "gathered" if amx and dtype == torch.bfloat16 and side <= GATHERED_SIDE else "own"


@lru_cache
def has_amx() -> bool:
    """Return whether the CPU multiplies matrices of bfloat16 in tiles."""
    return torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]  # nothing public before 2.14


def is_narrow(images: Tensor) -> bool:
    """Return whether to normalize several pixels of [B, C, H, W] at once: few channels, channels_last, on the CPU."""
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
