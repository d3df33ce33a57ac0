"""An owner's rows as raw samples: numbers unchanged, categories as hashes.

Shapes: N samples, F numbers, K columns of categories.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vfl.data.samples import Samples
from vfl.data.tables.cells import TableError
from vfl.data.tables.columns import Categories, Numbers, Rows, Table
from vfl.data.tables.join import text_hashes

MISSING = -1
"""Hash of a missing category; all others are at least 0."""


def raw_samples(
    table: Table,
    chosen: Sequence[tuple[Rows, Tensor]],
    numbers: Sequence[str],
    categories: Sequence[str],
    spelling: Callable[[str], str],
) -> list[Samples]:
    """Return samples of some rows and their ids, for each of ``chosen``: float64 [N, F] and int64 [N, K].

    A category is the hash of its ``spelling``. Columns are in the order given, and are taken out of the table: no more
    than one is in memory twice. Row -1 is a missing one.
    """
    # Each column in one piece of memory: preparations go through columns.
    values = [torch.empty(len(numbers), len(rows), dtype=torch.float64).T for rows, _ in chosen]
    hashes = [torch.empty(len(categories), len(rows), dtype=torch.int64).T for rows, _ in chosen]
    for place, name in enumerate(numbers):
        column = table.columns.pop(name)
        assert isinstance(column, Numbers)
        for (rows, _), values_NF in zip(chosen, values, strict=True):
            values_NF.numpy()[:, place] = column.values[rows]  # row -1 is the last row; `present` marks it as missing
    for place, name in enumerate(categories):
        column = table.columns.pop(name)
        assert isinstance(column, Categories)
        hash_of = np.append(text_hashes(map(spelling, column.names)), MISSING)  # the last one is for code -1
        for (rows, _), hashes_NK in zip(chosen, hashes, strict=True):
            hashes_NK.numpy()[:, place] = hash_of[column.codes[rows]]
    return [
        Samples(ids, values_NF, more=(hashes_NK,), present=unless_all(rows >= 0))
        for (rows, ids), values_NF, hashes_NK in zip(chosen, values, hashes, strict=True)
    ]


def unless_all(held: npt.NDArray[np.bool_]) -> Tensor | None:
    """Return the mask, bool of any shape; None if all are True, as samples and labels have it."""
    return None if held.all() else torch.from_numpy(held)  # pyright: ignore[reportUnknownMemberType]  # unannotated


def no_features(ids: Tensor) -> Samples:
    """Return samples of an owner whose rows are not here."""
    return Samples(ids, torch.empty(len(ids), 0, dtype=torch.float64), more=(ids.new_empty(len(ids), 0),))


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
            warnings.warn(f"{where}: is constant in the training rows, and taken so in all others", stacklevel=3)
