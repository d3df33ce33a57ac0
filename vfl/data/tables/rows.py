"""An owner's rows as raw samples: numbers unchanged, categories as hashes.

Shapes: N samples, F numbers, K columns of categories.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vfl.data.samples import Samples
from vfl.data.tables.cells import TableError
from vfl.data.tables.columns import Categories, Numbers, Table
from vfl.data.tables.join import text_hash
from vfl.data.tables.keys import Rows

MISSING = -1
"""Hash of a missing category; all others are at least 0."""


def raw_samples(table: Table, rows: Rows, ids: Tensor, numbers: Sequence[str], categories: Sequence[str]) -> Samples:
    """Return some rows of a table: float64 [N, F] and int64 [N, K], columns in the order given; -1 is a missing row."""
    values = torch.empty(len(rows), len(numbers), dtype=torch.float64)
    hashes = torch.empty(len(rows), len(categories), dtype=torch.int64)
    for place, name in enumerate(numbers):
        column = table.columns[name]
        assert isinstance(column, Numbers)
        values.numpy()[:, place] = column.values[rows]  # for row -1 the last row's: `present` marks it as missing
    for place, name in enumerate(categories):
        column = table.columns[name]
        assert isinstance(column, Categories)
        hash_of = np.array([*map(text_hash, column.names), MISSING], np.int64)  # the last one is for code -1
        hashes.numpy()[:, place] = hash_of[column.codes[rows]]
    return Samples(ids, values, more=(hashes,), present=unless_all(rows >= 0))


def unless_all(held: npt.NDArray[np.bool_]) -> Tensor | None:
    """Return the mask, bool of any shape; None if all are True, as samples and labels have it."""
    return None if held.all() else torch.from_numpy(held)  # pyright: ignore[reportUnknownMemberType]  # unannotated


def check_columns(table: Table, train: Rows, numbers: Sequence[str], categories: Sequence[str]) -> None:
    """Raise TableError if there is no column, or one has no value in the training rows; warn of constant ones."""
    if not (numbers or categories):
        raise TableError(f"{table.path}: no column is left as a feature; name some under features")
    for name in (*numbers, *categories):
        column = table.columns[name]
        values = column.values[train] if isinstance(column, Numbers) else column.codes[train]
        missing = np.isnan(values) if isinstance(column, Numbers) else values < 0
        where = f"{table.path}: column {name!r}"
        if missing.all():
            raise TableError(f"{where}: has no value in the training rows; make it ignore under features")
        if not missing.any() and (values == values[0]).all():
            warnings.warn(f"{where}: is constant in the training rows", stacklevel=3)
