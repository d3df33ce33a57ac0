"""One row of an owner's table that came by itself, from a query or a service: the bits are those of the same row in
Parquet.

Shapes: F numbers, K columns of categories.
"""
# pyright: reportUnknownMemberType=false
# torch's own signatures are partly untyped.

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch

from vfl.config.tables import ColumnKind
from vfl.data.samples import Samples
from vfl.data.tables.cells import TableError, block_of
from vfl.data.tables.columns import KEY_SEPARATOR, key_cells, key_of, keys_of, table_of_blocks
from vfl.data.tables.own_columns import OwnColumns, raw_samples, reading_of
from vfl.data.tables.source import Tables


@dataclass(frozen=True, eq=False)
class OneRow:
    """A row as it was read."""

    samples: Samples
    """Its raw sample: float64 [1, F] and int64 [1, K]."""
    known_as: tuple[list[str], ...]
    """Its key at each other owner that uses other keys, in the order of the owners' names."""


@dataclass(frozen=True, eq=False)
class RowReader:
    """Reads an owner's rows one by one, as its columns were in the training."""

    source: Tables
    owner: str
    where: str = field(init=False)
    """Setting that errors begin with."""
    key: tuple[str, ...] = field(init=False)
    """Columns of the key."""

    @property
    def columns(self) -> OwnColumns:
        """The owner's columns."""
        return self.source.columns(self.owner)

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", f"data.tables.{self.owner}.serve")
        object.__setattr__(self, "key", key_of(self.source.data.tables[self.owner]))

    def read(self, key: Sequence[str], rows: Any) -> OneRow | None:
        """Return the row of a key in an Arrow table, which has no or few rows; None if it has none.

        Raises TableError for two rows of the key unless the settings keep the first, and for a row that cannot be used.
        """
        config, kinds = self.source.data.tables[self.owner], self.columns.kinds
        if rows.num_rows == 0:
            return None
        keys = keys_of(config, self.source.owners)
        reading = reading_of(self.source.data, self.owner, self.columns.found)
        used: dict[str, ColumnKind] = {name: kind for name, kind in kinds.items() if kind != "ignore"}
        block = block_of(self.where, rows, [*used, *chain.from_iterable(keys)], reading)
        table = table_of_blocks(self.where, [block], used, keys, reading)
        mine = np.flatnonzero(np.array(table.keys[self.key].to_pylist()) == KEY_SEPARATOR.join(key))
        if len(mine) == 0:
            return None
        if len(mine) > 1 and config.duplicates == "refuse":
            fix = f"give one, or set {reading.settings}.duplicates=first"
            raise TableError(f"{self.where}: gives {len(mine)} rows of the key; {fix}")
        chosen = [(mine[:1], torch.arange(1))]
        columns = self.columns
        (samples,) = raw_samples(table, chosen, columns)
        others = [config.keys[other] for other in sorted(config.keys) if other in self.source.owners]
        known_as = tuple(key_cells(table.keys[other].take(mine[:1]))[0] for other in others)
        return OneRow(samples, known_as)

    def join(self, rows: Sequence[OneRow]) -> Samples:
        """Return the raw samples of rows, in their order; their ids are 0 to N - 1."""
        numbers, categories = self.columns.numbers, self.columns.categories
        none = torch.zeros(0, len(numbers), dtype=torch.float64), torch.zeros(0, len(categories), dtype=torch.int64)
        return Samples(
            torch.arange(len(rows)),
            torch.cat([none[0], *(row.samples.features for row in rows)]),
            more=(torch.cat([none[1], *(row.samples.more[0] for row in rows)]),),
        )
