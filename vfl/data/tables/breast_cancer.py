"""Scikit-learn's breast cancer table (569 samples, 30 numbers) as two owners' tables: a source that needs no files.

The clinic has the mean of each measurement and the diagnosis, the laboratory their standard errors and worst values.
"""

import csv
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from vfl.config.data import DataConfig
from vfl.config.tables import ColumnKind, TableConfig
from vfl.data.tables.arrow import pa
from vfl.data.tables.columns import Categories, Numbers, Table
from vfl.data.tables.source import Tables
from vfl.runs.checkpoint import State

KEY = ("patient",)
LABEL = "diagnosis"
MEASURED = (
    *("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points"),
    *("symmetry", "fractal dimension"),
)
OWNERS = {
    "clinic": [f"mean {each}" for each in MEASURED],
    "laboratory": [*(f"{each} error" for each in MEASURED), *(f"worst {each}" for each in MEASURED)],
}
"""Columns of each owner, in the order of the table."""


class BreastCancer(Tables):
    """Two owners of the embedded table; `data.tables` is not used."""

    def __init__(self, data: DataConfig, seed: int) -> None:
        own = TableConfig(file=Path("breast cancer"), key=KEY)
        tables = {owner: own.model_copy(update={"label": LABEL if owner == "clinic" else None}) for owner in OWNERS}
        super().__init__(data.model_copy(update={"tables": tables, "group": None}), seed)

    def features(self, owner: str) -> Mapping[str, ColumnKind]:
        """Return the owner's numbers; there are no categories."""
        number: ColumnKind = "number"
        return dict.fromkeys(OWNERS[owner], number)

    def keep_names(self, party: str, names: State) -> None:
        """Do nothing: the columns are always these."""

    def _read(self, owner: str, owners: Sequence[str], new: Path | None = None) -> Table:
        if new is not None:
            return super()._read(owner, owners, new)
        classes, rows = _embedded()
        columns: dict[str, Numbers | Categories] = {
            name: Numbers(np.array([float(row[place]) for row in rows]))
            for place, name in enumerate(name for names in OWNERS.values() for name in names)
            if name in OWNERS[owner]
        }
        if owner == self.leader:
            columns[LABEL] = Categories(np.array([int(row[-1]) for row in rows], np.int32), tuple(classes))
        keys = [f"{row:03}" for row in range(len(rows))]
        return Table(Path("breast cancer"), columns, {KEY: pa.array(keys)}, np.arange(len(rows)))


def _embedded() -> tuple[list[str], list[list[str]]]:
    """Return the names of the classes, and the table's rows, the class last.

    Read as the file that it is in scikit-learn's package, whose import takes over a second.
    """
    package = find_spec("sklearn")
    assert package is not None, "scikit-learn is a requirement"
    file = Path(str(package.origin)).parent / "datasets/data/breast_cancer.csv"
    (_count, _width, *classes), *rows = csv.reader(file.read_text(encoding="utf-8").splitlines())
    return classes, rows
