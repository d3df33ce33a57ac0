"""The samples of an experiment, of every kind that `data.dataset.kind` names.

A source (`vfl/data/sources/`) only says how many samples there are, their labels, and how to read some of them;
which ones an experiment uses is decided here, once, for all kinds. So an image that was not chosen is never decoded.
"""

import difflib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vfl.data.samples import Owners, Samples
from vfl.data.sources.digits import load_digits
from vfl.data.sources.image_folder import load_image_folder
from vfl.data.sources.leaf import load_leaf
from vfl.data.sources.published import PUBLISHED, load_published
from vfl.data.sources.source import Loader, one_line
from vfl.data.sources.text import load_text
from vfl.random import generator

TEST_ID_START = 1_000_000_000
"""Ids of training samples are their rows in the full training set; those of test samples start here."""

LOADERS: dict[str, Loader] = {
    "digits": load_digits,
    **{kind: partial(load_published, kind) for kind in PUBLISHED},
    "image_folder": load_image_folder,
    "leaf": load_leaf,
    "text": load_text,
}
"""By `data.dataset.kind`."""


@dataclass(frozen=True)
class Dataset:
    """Training and test samples (uint8 images or int64 characters, no id in both)."""

    train: Samples
    test: Samples
    classes: tuple[str, ...]
    """Names of the classes that labels index; of text, the characters."""
    owners: Owners | None = None
    """Who each training sample comes from, where the data tell: LEAF's users, the speaking roles of a play."""


def load_dataset(
    kind: str,
    root: str | Path | None,
    *,
    train_samples: int | None,
    test_samples: int | None,
    seed: int,
    image_size: int | None = None,
) -> Dataset:
    """Load a data set and choose the samples of an experiment.

    kind: one of `LOADERS`. root: where the files are (`text`: the file), or for torchvision's sets will be downloaded
    to (default `data/`). image_size: the side in pixels that images are resized to, squares whatever they were;
    None keeps their own (digits: 32).

    train_samples: how many to draw, without replacement, by `seed`; None takes all. A larger draw by the same seed
    contains the smaller one. test_samples: the same, but never by `seed`: all seeds are evaluated on the same samples.
    Rows come in ascending order of their ids (see `TEST_ID_START`), not shuffled.

    Raises ValueError, naming the field, for anything that cannot be had.
    """
    if kind not in LOADERS:
        near = difflib.get_close_matches(kind, LOADERS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"data.dataset.kind: there is no {kind!r}{hint}; choose one of {', '.join(LOADERS)}")
    if image_size is not None and image_size < 1:
        raise ValueError(f"data.dataset.image_size: must be at least 1 pixel, got {image_size}")
    try:
        folder = None if root is None else Path(root).expanduser()
    except RuntimeError as error:
        raise ValueError(f"data.dataset.root: {root}: {one_line(error)}") from None
    source = LOADERS[kind](folder, image_size)
    train_draw = generator(seed, "train_subset")
    test_draw = generator(0, "test_subset")
    train_rows = _choose_rows("data.train_samples", train_samples, len(source.train.labels), train_draw)
    test_rows = _choose_rows("data.test_samples", test_samples, len(source.test.labels), test_draw)
    train, test = source.train.read(train_rows), source.test.read(test_rows)
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"data.dataset.root: training images are [C, H, W] {list(train.shape[1:])} and test images "
            f"{list(test.shape[1:])}; set data.dataset.image_size to resize them all"
        )
    return Dataset(
        train=Samples(train_rows, train, source.train.labels[train_rows]),
        test=Samples(test_rows + TEST_ID_START, test, source.test.labels[test_rows]),
        classes=source.classes,
        owners=None if source.owners is None else source.owners.take(train_rows),
    )


def _choose_rows(field: str, wanted: int | None, available: int, draw: torch.Generator) -> Tensor:
    """Return `wanted` of the rows 0 .. available - 1 (all for None), ascending int64."""
    if wanted is None:
        return torch.arange(available)
    if not 1 <= wanted <= available:
        raise ValueError(f"{field}: {wanted} asked for; choose from 1 to {available}, or leave it out for all")
    return torch.randperm(available, generator=draw)[:wanted].sort().values
