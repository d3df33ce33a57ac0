"""The label column: class indices or amounts, and what must not stand beside it."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Signatures of torch and numpy are partly untyped.

import numpy as np
import torch
from torch import Tensor

from vfl.data.tables.cells import TableError
from vfl.data.tables.columns import Categories, Numbers, Table
from vfl.data.tables.join import Rows

MOST_CLASSES = 1000
"""A label with more values is rather an amount."""


def read_labels(table: Table, name: str, rows: Rows) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels [N] of some rows, int64 with the names of the classes or float32 without any.

    Classes are in the order of whole numbers, or of their names; of two the second one is what is predicted. Raises
    TableError for a missing label, or too many classes.
    """
    column = table.columns[name]
    where = f"{table.path}: label column {name!r}"
    missing = np.isnan(column.values[rows]) if isinstance(column, Numbers) else column.codes[rows] < 0
    if missing.any():
        raise TableError(f"{where}, row {table.rows[rows[missing.argmax()]]}: is missing; remove the row")
    if isinstance(column, Numbers):
        return torch.from_numpy(column.values[rows]).float(), ()
    used = [column.names[code] for code in np.unique(column.codes[rows])]
    if len(used) > MOST_CLASSES:
        raise TableError(f"{where}: has {len(used)} different values; is it an amount? then set task: regression")
    whole = all(name.removeprefix("-").isdecimal() for name in used)
    classes = tuple(sorted(used, key=int) if whole else sorted(used))
    places = {name: place for place, name in enumerate(classes)}
    index = np.array([places.get(name, 0) for name in column.names], np.int64)
    return torch.from_numpy(index[column.codes[rows]]), classes


def refuse_copies(table: Table, label: str, rows: Rows) -> None:
    """Raise TableError for a feature that is the label: the same amounts, or classes one for one."""
    wanted = table.columns[label]
    for name, column in table.columns.items():
        if name == label:
            continue
        if isinstance(wanted, Numbers):
            same = isinstance(column, Numbers) and np.array_equal(column.values[rows], wanted.values[rows])
        else:
            same = _one_for_one(_places(wanted, rows), _places(column, rows))
        if same:
            raise TableError(f"{table.path}: column {name!r} is the label {label!r} under another name; make it ignore")


def _places(column: Numbers | Categories, rows: Rows) -> Rows:
    """Return each row's place among the column's different values."""
    values = column.values if isinstance(column, Numbers) else column.codes
    return np.unique(values[rows], return_inverse=True)[1].astype(np.int64)


def _one_for_one(a: Rows, b: Rows) -> bool:
    different = int(a.max()) + 1
    return int(b.max()) + 1 == different and len(np.unique(a * different + b)) == different
