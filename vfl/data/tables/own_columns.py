"""One owner's columns: which are features, how their cells are read, and the raw samples that are made of them.

Their names stay with the owner. In raw samples numbers are unchanged, and categories are hashes.

Shapes: N samples, F numbers, K columns of categories.
"""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import Tensor

from vfl.config.data import DataConfig
from vfl.config.tables import ColumnKind, TableConfig
from vfl.data.samples import Samples
from vfl.data.tables.canonical import as_written, spell
from vfl.data.tables.cells import Kept, Reading, TableError, TablePlace, column_names
from vfl.data.tables.columns import Categories, Indices, Numbers, Table, key_of, keys_of, read_table
from vfl.data.tables.join import text_hashes
from vfl.data.tables.proposal import FoundMarks, propose_kinds, with_kept
from vfl.runs.checkpoint import State

NONE_FOUND = FoundMarks()
MISSING = -1
"""Hash of a missing category; all others are at least 0."""


@dataclass(frozen=True, eq=False)
class OwnColumns:
    """The columns of an owner's table, from its settings, a proposal or an earlier run."""

    kinds: Mapping[str, ColumnKind]
    """Kind of each column, by name, in the order of the raw samples."""
    found: FoundMarks = NONE_FOUND
    """Words and marks that were found in the table."""
    spelling: Callable[[str], str] = spell
    """The text by which a category is known."""
    judged: bool = False
    """They are those of an earlier run, which has judged them."""

    @cached_property
    def numbers(self) -> list[str]:
        """Names of the numbers, in the order of the raw samples."""
        return [name for name, kind in self.kinds.items() if kind == "number"]

    @cached_property
    def categories(self) -> list[str]:
        """Names of the categories, in the order of the raw samples."""
        return [name for name, kind in self.kinds.items() if kind == "category"]

    @property
    def names(self) -> list[str]:
        """Names of all features, numbers first."""
        return [*self.numbers, *self.categories]

    def state(self) -> State:
        """Return what a run keeps of them."""
        spelling = {"spelling": "one"} if self.spelling is spell else {}
        thousands = {"thousands": self.found.thousands} if self.found.thousands else {}
        marks = {"missing": list(self.found.missing), **thousands}
        return {"columns": [*self.kinds], "kinds": [*self.kinds.values()], **marks, **spelling}

    @classmethod
    def of_state(cls, state: State) -> "OwnColumns":
        """Return the columns, and the spelling by which that run knows categories."""
        kinds = dict(zip(state["columns"], state["kinds"], strict=True))
        found = FoundMarks(tuple(state.get("missing", ())), state.get("thousands"))
        return cls(kinds, found, spell if "spelling" in state else as_written, judged=True)


def choose_columns(data: DataConfig, owner: str, table: TablePlace) -> OwnColumns:
    """Return an owner's columns: as given, or proposed from its table, with a warning for each doubtful one.

    Raises TableError if the label is among them.
    """
    config = data.tables[owner]
    kinds, found = config.named_kinds, NONE_FOUND
    if config.proposes:
        kinds, found, lines = propose_kinds(table, config, _beside(data, config), f"data.tables.{owner}")
        for line in lines:
            warnings.warn(line, stacklevel=2)
    for name in key_of(config):
        if kinds.get(name, "ignore") != "ignore":
            warnings.warn(f"{table}: column {name!r} is the key and a feature; does it say anything?", stacklevel=2)
    _check_kinds(data, owner, table, kinds)
    return OwnColumns(kinds, found)


def check_continued(data: DataConfig, owner: str, table: TablePlace, columns: OwnColumns) -> None:
    """Raise TableError if an owner's table or settings have other features than an earlier run's ``columns``."""
    config = data.tables[owner]
    beside = _beside(data, config)
    settings, own = Reading(settings=f"data.tables.{owner}"), dict[str, str](config.named_kinds)
    if config.proposes:  # nothing is proposed anew, and no column left out in silence
        own = {
            name: columns.kinds.get(name, "new") for name in column_names(table, settings) if name not in beside
        } | own
    for name in {**columns.kinds, **own}:
        here, then = own.get(name, "ignore"), columns.kinds.get(name, "ignore")
        if here != then:
            what = f"column {name!r} is {here} here, and {then} in that run"
            raise TableError(f"training.start_from: {table}: {what}; keep its columns as they were there")
    _check_kinds(data, owner, table, columns.kinds)


def _check_kinds(data: DataConfig, owner: str, table: TablePlace, kinds: Mapping[str, ColumnKind]) -> None:
    """Raise TableError if the samples' weight or label is among an owner's features."""
    weight = data.tables[owner].weight
    known = {} if weight is None else {weight: "is the samples' weight"}
    labels = [each.label for each in data.tables.values() if each.label is not None]
    known |= dict.fromkeys(labels, "is the label, or has its name")
    for name, what in known.items():
        if kinds.get(name, "ignore") != "ignore":
            fix = f"make it ignore under data.tables.{owner}.features"
            raise TableError(f"{table}: column {name!r} {what}; {fix}")


def _beside(data: DataConfig, config: TableConfig) -> list[str]:
    """Return the columns of a table that are no features unless listed: keys, label, weight and group."""
    keys = [name for key in (key_of(config), *config.keys.values()) for name in key]
    return [*keys, *(name for name in (config.label, config.weight, data.group) if name is not None)]


def reading_of(data: DataConfig, owner: str, found: FoundMarks) -> Reading:
    """Return how an owner's cells are read.

    What was found among numbers may be a class or a key: there it stands for itself.
    """
    config = data.tables[owner]
    kept: Kept = config.not_missing
    if found.missing and not config.missing:
        kept = with_kept(kept, _beside(data, config), found)
    marks = config.missing or found.missing, kept, config.thousands or found.thousands
    return Reading(*marks, settings=f"data.tables.{owner}")


def read_columns(
    data: DataConfig,
    owner: str,
    table: TablePlace,
    known_by: Collection[str],
    kinds: Mapping[str, ColumnKind],
    found: FoundMarks = NONE_FOUND,
    *,
    new: bool = False,
) -> Table:
    """Read columns of some ``kinds`` from an owner's table, and the keys by which the owners in ``known_by`` know it.

    ``new`` rows have no weight and no group. Raises TableError.
    """
    config = data.tables[owner]
    weight = None if new else config.weight
    kinds = {**kinds, weight: "number"} if weight is not None else kinds
    reading = reading_of(data, owner, found)
    if not new and config.not_missing and (unknown := sorted(config.not_missing.keys() - column_names(table, reading))):
        raise TableError(f"data.tables.{owner}.not_missing: {table} has no column {unknown[0]!r}")
    keys, group = keys_of(config, known_by), data.group
    if group is not None and not new and (config.label is not None or (*known_by,) == (owner,)):
        if group not in column_names(table, reading):
            what = f"has no column {group!r}; name one of the label owner's table"
            alone = "" if config.label is not None else ", which this one needs as well without a match (lvfl align)"
            raise TableError(f"data.group: {table} {what}{alone}")
        keys = list(dict.fromkeys([*keys, (group,)]))
    # The display is on a terminal only.
    with Console(stderr=True).status(f"reading {table}") as status:

        def show(rows: int) -> None:
            status.update(f"reading {table}: {rows:,} rows")

        read = read_table(table, kinds, keys, reading, show)
    return read if weight is None else read.counted(weight)


def raw_samples(table: Table, chosen: Sequence[tuple[Indices, Tensor]], columns: OwnColumns) -> list[Samples]:
    """Return samples of some rows and their ids, for each of ``chosen``: float64 [N, F] and int64 [N, K].

    Columns are taken out of the table: no more than one is in memory twice. Row -1 is a missing one.
    """
    numbers, categories = columns.numbers, columns.categories
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
        hash_of = np.append(text_hashes(map(columns.spelling, column.names)), MISSING)  # the last one is for code -1
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


def check_columns(table: Table, train: Indices, columns: OwnColumns) -> None:
    """Raise TableError if there is no column, or one has no value in the training rows; warn of constant ones."""
    if not columns.names:
        raise TableError(f"{table.path}: no column is left as a feature; name some under features")
    for name in columns.names:
        column = table.columns[name]
        values = column.values[train] if isinstance(column, Numbers) else column.codes[train]
        missing = np.isnan(values) if isinstance(column, Numbers) else values < 0
        where = f"{table.path}: column {name!r}"
        if missing.all():
            raise TableError(f"{where}: has no value in the training rows; make it ignore under features")
        if not missing.any() and (values == values[0]).all():
            warnings.warn(f"{where}: is constant in the training rows, and taken so in all others", stacklevel=3)
