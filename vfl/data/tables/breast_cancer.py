"""Scikit-learn's breast cancer table (569 samples, 30 numbers) as two owners' tables: a source that needs no files.

The clinic has the mean of each measurement and the diagnosis, the laboratory their standard errors and worst values.
"""
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# scikit-learn ships no stubs.

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from vfl.config.data import DataConfig
from vfl.config.tables import ColumnKind, TableConfig
from vfl.data.tables.arrow import pa
from vfl.data.tables.columns import Categories, Numbers, Table
from vfl.data.tables.source import Tables

KEY = ("patient",)
LABEL = "diagnosis"
OWNERS = {"clinic": slice(0, 10), "laboratory": slice(10, 30)}
"""Columns of each owner, of the table's 30."""


class BreastCancer(Tables):
    """Two owners of the embedded table; `data.tables` is not used."""

    def __init__(self, data: DataConfig, seed: int) -> None:
        own = TableConfig(file=Path("breast cancer"), key=KEY)
        tables = {owner: own.model_copy(update={"label": LABEL if owner == "clinic" else None}) for owner in OWNERS}
        super().__init__(data.model_copy(update={"tables": tables, "group": None}), seed)

    def features(self, owner: str) -> Mapping[str, ColumnKind]:
        """Return the owner's numbers; there are no categories."""
        number: ColumnKind = "number"
        return {str(name): number for name in _bunch().feature_names[OWNERS[owner]]}

    def _read(self, owner: str, owners: Sequence[str], new: Path | None = None) -> Table:
        if new is not None:
            return super()._read(owner, owners, new)
        bunch = _bunch()
        columns: dict[str, Numbers | Categories] = {
            name: Numbers(np.ascontiguousarray(values))
            for name, values in zip(self.features(owner), bunch.data[:, OWNERS[owner]].T, strict=True)
        }
        if owner == self.leader:
            columns[LABEL] = Categories(bunch.target.astype(np.int32), tuple(map(str, bunch.target_names)))
        rows = np.arange(len(bunch.target))
        return Table(Path("breast cancer"), columns, {KEY: pa.array([f"{row:03}" for row in rows])}, rows)


def _bunch() -> Any:
    from sklearn.datasets import load_breast_cancer  # over a second to import: only those who use it wait

    return cast(Any, load_breast_cancer())
