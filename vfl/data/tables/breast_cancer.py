"""Scikit-learn's breast cancer table (569 samples, 30 numbers) as two owners' tables: a source that needs no files.

The clinic has the mean of each measurement and the diagnosis, the laboratory their standard errors and worst values.
"""

import csv
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from vfl.config.data import DataConfig
from vfl.config.tables import ColumnKind, TableConfig
from vfl.data.tables.arrow import pa
from vfl.data.tables.cells import FrameTable
from vfl.data.tables.own_columns import OwnColumns
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
        file, number = Path("breast cancer"), cast(ColumnKind, "number")
        tables, columns = dict[str, TableConfig](), dict[str, OwnColumns]()
        for owner, names in OWNERS.items():
            tables[owner] = TableConfig(file=file, key=KEY, label=LABEL if owner == "clinic" else None)
            columns[owner] = OwnColumns(dict.fromkeys(names, number))
        super().__init__(data.model_copy(update={"tables": tables, "group": None}), seed)
        self._columns = columns

    def keep_names(self, party: str, names: State) -> None:
        """Do nothing: the columns are always these."""

    def table(self, owner: str) -> FrameTable:
        """Return the owner's columns of the embedded table, keys and at the clinic the diagnosis."""
        classes, rows = _embedded()
        columns = {
            name: [float(row[place]) for row in rows]
            for place, name in enumerate(name for names in OWNERS.values() for name in names)
            if name in OWNERS[owner]
        }
        keys = {name: [f"{row:03}" for row in range(len(rows))] for name in KEY}
        label = {LABEL: [classes[int(row[-1])] for row in rows]} if owner == self.leader else {}
        return FrameTable("breast cancer", pa.table({**keys, **columns, **label}))


def _embedded() -> tuple[list[str], list[list[str]]]:
    """Return the names of the classes, and the table's rows, the class last.

    Read as the file that it is in scikit-learn's package, whose import takes over a second.
    """
    package = find_spec("sklearn")
    assert package is not None, "scikit-learn is a requirement"
    file = Path(str(package.origin)).parent / "datasets/data/breast_cancer.csv"
    (_count, _width, *classes), *rows = csv.reader(file.read_text(encoding="utf-8").splitlines())
    return classes, rows
