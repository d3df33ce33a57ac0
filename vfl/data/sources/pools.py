"""What an origin of images or text offers: all samples of both splits, read only where they are chosen."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vfl.data.samples import Owners


@dataclass(frozen=True)
class Pool:
    """All samples of one split."""

    labels: Tensor
    """int64 [N], or [N, T] for text with a label per character."""
    read: Callable[[Tensor], Tensor]
    """rows int64 [M] -> images uint8 [M, C, H, W] or characters int64 [M, T]"""


@dataclass(frozen=True)
class Pools:
    """Both splits, the names of the classes, and who wrote the training samples where that is known."""

    train: Pool
    test: Pool
    classes: tuple[str, ...]
    owners: Owners | None = None


Loader = Callable[[Path | None, int | None], Pools]
"""data.dataset.root and data.dataset.image_size (None where not set) -> all samples."""


def in_memory(features: Tensor, labels: Tensor, image_size: int | None = None) -> Pool:
    """Return a pool of images uint8 [N, C, H, W] of any strides, or of characters int64 [N, T]."""
    return Pool(labels, lambda rows: resize(features[rows].contiguous(), image_size))


def resize(images: Tensor, size: int | None) -> Tensor:
    """Resize uint8 [N, C, H, W] to squares of `size` pixels, bilinear and antialiased; None leaves them."""
    if size is None or images.shape[-2:] == (size, size):
        return images
    resized = torch.empty((*images.shape[:2], size, size), dtype=torch.uint8)
    for start in range(0, len(images), 1024):  # in pieces, for float copies take four times the memory
        piece = images[start : start + 1024].float()
        exact = interpolate(piece, (size, size), mode="bilinear", align_corners=False, antialias=True)
        resized[start : start + 1024] = exact.round()
    return resized
