"""The 1,797 8 x 8 digits within scikit-learn: a data set that needs no files."""
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# scikit-learn ships no stubs.

import warnings
from pathlib import Path
from typing import Any, cast

import torch

from vfl.data.sources.source import Source, in_memory
from vfl.random import generator

DIGITS_TEST_SAMPLES = 397
"""Of the 1,797 digits: always the same ones, whatever the seed, so that no run trains on another's test images."""


def load_digits(root: Path | None, image_size: int | None) -> Source:
    """Return the digits with one channel, 32 pixels wide unless image_size says otherwise.

    The split is a plain shuffle, so digits of one writer are on both sides.
    """
    from sklearn import datasets  # over a second to import: only those who use it wait

    if root is not None:
        warnings.warn("data.dataset.root is ignored: the digits are part of scikit-learn", stacklevel=3)
    digits = cast(Any, datasets.load_digits())
    levels = torch.from_numpy(digits.images)[:, None]  # [1797, 1, 8, 8], 0 to 16
    images = (levels * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(digits.target).to(torch.int64)
    order = torch.randperm(len(labels), generator=generator(0, "digits_split"))
    test, train = order[:DIGITS_TEST_SAMPLES], order[DIGITS_TEST_SAMPLES:]
    return Source(
        train=in_memory(images[train], labels[train], image_size or 32),
        test=in_memory(images[test], labels[test], image_size or 32),
        classes=tuple(str(name) for name in digits.target_names),
    )
