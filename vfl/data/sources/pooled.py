"""Which samples of an origin an experiment uses: drawn once for all origins of images and text.

An origin (one file each here) only says how many samples there are, their labels, and how to read some of them. So an
image that was not chosen is never decoded.
"""

from pathlib import Path

import torch
from torch import Tensor

from vfl.data.config import DataConfig
from vfl.data.samples import Dataset, Samples
from vfl.data.source import Source
from vfl.data.sources.pools import Loader
from vfl.errors import one_line
from vfl.random import generator

TEST_ID_START = 1_000_000_000
"""Ids of training samples are their rows in the full training set; those of test samples start here."""


class PooledSource(Source):
    """Whole samples of an origin: `load`. Its images and its text differ in what can be done with them further."""

    def __init__(self, data: DataConfig, seed: int, *, pools: Loader) -> None:
        super().__init__(data, seed)
        self.pools = pools

    def load(self) -> Dataset:
        """Load the origin and draw `data.train_samples` and `data.test_samples`; see `draw_samples`."""
        dataset = self.data.dataset
        return draw_samples(
            self.pools,
            dataset.root,
            train_samples=self.data.train_samples,
            test_samples=self.data.test_samples,
            seed=self.seed,
            image_size=dataset.image_size,
        )


def draw_samples(
    pools: Loader,
    root: str | Path | None,
    *,
    train_samples: int | None,
    test_samples: int | None,
    seed: int,
    image_size: int | None = None,
) -> Dataset:
    """Load an origin and choose the samples of an experiment.

    root: where the files are (`text`: the file), or for torchvision's sets will be downloaded to (default `data/`).
    image_size: the side in pixels that images are resized to, squares whatever they were; None keeps their own
    (digits: 32).

    train_samples: how many to draw, without replacement, by `seed`; None takes all. A larger draw by the same seed
    contains the smaller one. test_samples: the same, but never by `seed`: all seeds are evaluated on the same samples.
    Rows come in ascending order of their ids (see `TEST_ID_START`), not shuffled.

    Raises ValueError, naming the field, for anything that cannot be had.
    """
    if image_size is not None and image_size < 1:
        raise ValueError(f"data.dataset.image_size: must be at least 1 pixel, got {image_size}")
    try:
        folder = None if root is None else Path(root).expanduser()
    except RuntimeError as error:
        raise ValueError(f"data.dataset.root: {root}: {one_line(error)}") from None
    origin = pools(folder, image_size)
    train_draw = generator(seed, "train_subset")
    test_draw = generator(0, "test_subset")
    train_rows = _choose_rows("data.train_samples", train_samples, len(origin.train.labels), train_draw)
    test_rows = _choose_rows("data.test_samples", test_samples, len(origin.test.labels), test_draw)
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


def _choose_rows(field: str, wanted: int | None, available: int, draw: torch.Generator) -> Tensor:
    """Return `wanted` of the rows 0 .. available - 1 (all for None), ascending int64."""
    if wanted is None:
        return torch.arange(available)
    if not 1 <= wanted <= available:
        raise ValueError(f"{field}: {wanted} asked for; choose from 1 to {available}, or leave it out for all")
    return torch.randperm(available, generator=draw)[:wanted].sort().values
