"""Tables of several owners as a data source: rows joined by key, split, and given to their owners.

A raw sample has two tensors: its numbers, float64 [F] with NaN for missing ones, and its categories, int64 [K], a hash
of each value. Names of columns and categories stay with the files.

Shapes: N samples, F numbers, K columns of categories.
"""

import warnings
from collections.abc import Sequence
from functools import cached_property

import torch

from vfl.base.errors import Argument, Choice, ConfigError
from vfl.config.data import DataConfig
from vfl.config.tables import ColumnKind
from vfl.data.files import LabelData, PartyData
from vfl.data.samples import ROWS_AT_ONCE, Samples
from vfl.data.source import NewSamples, Source, Split
from vfl.data.tables.cells import TablePlace
from vfl.data.tables.columns import Table
from vfl.data.tables.join import find_leader, tell_dropped
from vfl.data.tables.labels import MOST_AMOUNTS, MOST_CLASSES, positive_last
from vfl.data.tables.opened import locate_table
from vfl.data.tables.own_columns import OwnColumns, check_continued, choose_columns, read_columns
from vfl.data.tables.preparation import TablePreparation
from vfl.data.tables.split_tables import SplitTables, join_tables, labels_of, part_of, split_tables
from vfl.runs.checkpoint import State

MANY = 1000
"""Training rows from which a regression reads numbers by quantiles, unless set. On two development tables with fewer,
the error rose by 4 and 8 %; on four with more it fell by 1 to 15 % (docs/results/tables)."""


class Tables(Source):
    """`data.tables`: an owner per entry, in this order. Parties are all with features; the labels' may have none."""

    tensors = 2

    def __init__(self, data: DataConfig, seed: int) -> None:
        super().__init__(data, seed)
        self.owners = tuple(data.tables)
        self._columns: dict[str, OwnColumns] = {}

    @cached_property
    def leader(self) -> str:
        """The label owner. Raises ValueError if no table has labels."""
        return find_leader(self.data)

    def table(self, owner: str) -> TablePlace:
        """Return an owner's table. Raises ValueError if it is missing."""
        return locate_table(owner, self.data.tables[owner])

    def columns(self, owner: str) -> OwnColumns:
        """Return the owner's columns: those of an earlier run, as given, or proposed. Raises TableError."""
        if owner not in self._columns:
            self._columns[owner] = choose_columns(self.data, owner, self.table(owner))
        return self._columns[owner]

    def read(self, owner: str, known_by: Sequence[str], new: TablePlace | None = None) -> Table:
        """Read an owner's table with the keys of other owners; ``new`` rows are read without the label."""
        columns, label = self.columns(owner), self.data.tables[owner].label
        kinds: dict[str, ColumnKind] = {**columns.kinds}
        if new is None and label is not None:
            kinds[label] = "number" if self.task == "regression" else "category"
        # New rows come without the training's: those of a query are not asked for.
        table = self.table(owner) if new is None else new
        return read_columns(self.data, owner, table, known_by, kinds, columns.found, new=new is not None)

    def split(self) -> Split:
        """Join all tables on equal keys and split the samples; warn if samples are left out, with their number."""
        tables = {owner: self.read(owner, self.owners) for owner in dict.fromkeys((self.leader, *self.owners))}
        joined = join_tables(self.data, tables)
        tell_dropped(tables, joined)
        split = split_tables(self.data, tables, joined, self.seed)
        labels = self._labels(split)
        return Split(tuple(part_of(split, owner, self.columns(owner)) for owner in self.parties), labels)

    def training_rows(self) -> int:
        """Return the number of training samples; only keys are read. Raises ValueError as ``split``."""
        tables = {owner: read_columns(self.data, owner, self.table(owner), self.owners, {}) for owner in self.owners}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ``split`` says the same
            return len(split_tables(self.data, tables, join_tables(self.data, tables), self.seed).train)

    def held_by(self, party: str) -> PartyData:
        """Return the rows of the party's own table, whose keys are the samples; ``data.file`` takes precedence."""
        if self.data.file is not None:
            return super().held_by(party)
        return part_of(self._split_alone(party), party, self.columns(party))

    def held_labels(self) -> LabelData:
        """Return the labels of the label owner's own table; ``data.file`` takes precedence."""
        if self.data.file is not None:
            held = super().held_labels()
            if positive_last(held.classes, self.data.positive_class) != held.classes:
                raise ValueError("data.positive_class: is not that of data.file; write it again with lvfl split-data")
            return held
        return self._labels(self._split_alone(self.leader))

    def _labels(self, split: SplitTables) -> LabelData:
        return labels_of(split, self.parties, MOST_CLASSES if self.task_said else MOST_AMOUNTS)

    def _split_alone(self, owner: str) -> SplitTables:
        # A match remembers the digest of all keys in the table, those by which others know its rows included.
        known_by = (owner,) if self.data.tables[owner].match is None else self.owners
        tables = {owner: self.read(owner, known_by)}
        return split_tables(self.data, tables, join_tables(self.data, tables), self.seed)

    def prepare(self, train: Samples) -> TablePreparation:
        """Fit means, standard deviations, quantiles if the settings want them, and known categories."""
        ranked = self.task == "regression" and len(train) >= MANY
        return TablePreparation(train, self.data.numbers or ("quantiles" if ranked else "standardised"))

    def restore_preparation(self, state: State, like: Samples) -> TablePreparation:
        """Return the preparation in a fitted state, without fitting anew."""
        return TablePreparation.of_state(state, both=self.data.numbers == "both")

    def names(self, party: str) -> State:
        """Return the kinds of the owner's columns by name, in their order; empty for a file without names."""
        config = self.data.tables[party]
        if self.data.file is not None and (config.proposes or not config.has_rows or config.key is None):
            return {}
        return self.columns(party).state()

    def load_names(self, party: str, names: State) -> None:
        """Restore the owner's columns, and the spelling by which the run knows categories."""
        if names:
            self._columns[party] = OwnColumns.of_state(names)

    def keep_names(self, party: str, names: State) -> None:
        """Read the owner's columns as the run did that has these ``names``. Raises TableError for another feature."""
        self.load_names(party, names)
        if names and self.data.file is None:
            check_continued(self.data, party, self.table(party), self._columns[party])

    def check(self, samples: Samples) -> None:
        """Raise ValueError for anything but raw rows."""
        if samples.features.dtype != torch.float64 or samples.more[0].dtype != torch.int64:
            raise ValueError("features: expected float64 numbers and int64 categories of a table")
        if any(bool(rows.isinf().any()) for rows in torch.split(samples.features, ROWS_AT_ONCE)):
            raise ValueError("features are infinite: leave such cells empty")

    def read_samples(self, given: object, trained: Samples, classes: int) -> NewSamples:
        """Raise ConfigError: new rows of tables are named by owner."""
        name = Choice(Argument.TABLE, ("OWNER=FILE",), "names the new rows of each", "give {owner: table}")
        raise ConfigError("--data: tables have owners", name)
