"""Pools of images or text, and the draw of the samples that an experiment uses.

An origin (one file each here) has the number of samples, their labels, and a function that reads some of them. So an
image that was not chosen is never decoded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vfl.base.errors import one_line
from vfl.base.random import generator
from vfl.config.data import DataConfig
from vfl.data.samples import Dataset, Owners, Samples, draw_rows
from vfl.data.source import Source

TEST_ID_START = 1_000_000_000
"""First id of test samples. Ids of training samples are their rows in the full training set."""


@dataclass(frozen=True)
class Pool:
    """All samples of one split."""

    labels: Tensor
    """int64 [N], or [N, T] for text with a label per character."""
    read: Callable[[Tensor], Tensor]
    """rows int64 [M] -> images uint8 [M, C, H, W] or characters int64 [M, T]"""


@dataclass(frozen=True)
class Pools:
    """Both splits, the names of the classes, and the owners of the training samples if known."""

    train: Pool
    test: Pool
    classes: tuple[str, ...]
    owners: Owners | None = None


Loader = Callable[[Path | None, int | None], Pools]
"""data.dataset.root and data.dataset.image_size (None where not set) -> all samples."""


class PooledSource(Source):
    """Whole samples of an origin; subclasses handle images or text."""

    def __init__(self, data: DataConfig, seed: int, *, pools: Loader) -> None:
        super().__init__(data, seed)
        self.pools = pools

    def load(self) -> Dataset:
        """Load the origin and draw `data.train_samples` and `data.test_samples`, in ascending order of their ids.

        Training samples are drawn by the seed, and a larger draw contains the smaller one. Test samples are the same
        for all seeds. Raises ValueError, naming the field, for anything that cannot be had.
        """
        data, origin = self.data, self.pools(self._root(), self.data.dataset.image_size)
        train_draw, test_draw = generator(self.seed, "train_subset"), generator(0, "test_subset")
        train_rows = draw_rows("data.train_samples", data.train_samples, len(origin.train.labels), train_draw)
        test_rows = draw_rows("data.test_samples", data.test_samples, len(origin.test.labels), test_draw)
        train, test = origin.train.read(train_rows), origin.test.read(test_rows)
        if train.shape[1:] != test.shape[1:]:
            raise ValueError(
                f"data.dataset.root: training images are [C, H, W] {list(train.shape[1:])} and test images "
                f"{list(test.shape[1:])}; set data.dataset.image_size to resize them all"
            )
        return Dataset(
            train=Samples(train_rows, train, origin.train.labels[train_rows]),
            test=Samples(test_rows + TEST_ID_START, test, origin.test.labels[test_rows]),
            classes=origin.classes,
            owners=None if origin.owners is None else origin.owners.take(train_rows),
        )

    def _root(self) -> Path | None:
        root = self.data.dataset.root
        try:
            return None if root is None else root.expanduser()
        except RuntimeError as error:
            raise ValueError(f"data.dataset.root: {root}: {one_line(error)}") from None


def in_memory(features: Tensor, labels: Tensor, image_size: int | None = None) -> Pool:
    """Return a pool of images uint8 [N, C, H, W] of any strides, or of characters int64 [N, T]."""
    return Pool(labels, lambda rows: resize(features[rows].contiguous(), image_size))


def resize(images: Tensor, size: int | None) -> Tensor:
    """Resize uint8 [N, C, H, W] to squares of `size` pixels, bilinear and antialiased; None keeps the size."""
    if size is None or images.shape[-2:] == (size, size):
        return images
    resized = torch.empty((*images.shape[:2], size, size), dtype=torch.uint8)
    for start in range(0, len(images), 1024):  # in pieces, for float copies take four times the memory
        piece = images[start : start + 1024].float()
        exact = interpolate(piece, (size, size), mode="bilinear", align_corners=False, antialias=True)
        resized[start : start + 1024] = exact.round()
    return resized
