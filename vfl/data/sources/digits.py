"""The 1,797 8 x 8 digits within scikit-learn: a data set that needs no files."""
# pyright: reportUnknownMemberType=false
# torch.from_numpy is partly untyped.

import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from vfl.base.random import generator
from vfl.data.sources.images import ImageGrid
from vfl.data.sources.pooled import Pools, in_memory

DIGITS_TEST_SAMPLES = 397
"""Test samples among the 1,797 digits: the same for every seed, so that no run trains on another's test images."""


def load_digits(root: Path | None, image_size: int | None) -> Pools:
    """Return the digits with one channel, 32 pixels wide unless image_size is given.

    The split is a plain shuffle, so digits of one writer are on both sides.
    """
    if root is not None:
        warnings.warn("data.dataset.root is ignored: the digits are part of scikit-learn", stacklevel=3)
    rows = _read_rows()  # [1797, 65]: 64 levels from 0 to 16, then the label
    levels = torch.from_numpy(rows[:, :-1]).reshape(-1, 1, 8, 8)
    images = (levels * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(rows[:, -1]).to(torch.int64)
    order = torch.randperm(len(labels), generator=generator(0, "digits_split"))
    test, train = order[:DIGITS_TEST_SAMPLES], order[DIGITS_TEST_SAMPLES:]
    return Pools(
        train=in_memory(images[train], labels[train], image_size or 32),
        test=in_memory(images[test], labels[test], image_size or 32),
        classes=tuple("0123456789"),
    )


def _read_rows() -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Read scikit-learn's file as its ``load_digits`` does, without the second that its import takes."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    return np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")


digits = partial(ImageGrid, pools=load_digits)
