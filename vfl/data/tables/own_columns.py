"""One owner's columns: which of them are features, and how their cells are read. Their names stay with the owner."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console

from vfl.config.data import DataConfig
from vfl.config.tables import ColumnKind, TableConfig
from vfl.data.tables.canonical import as_written, spell
from vfl.data.tables.cells import OWNER, Kept, TableError, TableRows, column_names, of_owner
from vfl.data.tables.columns import Table, key_of, keys_of, read_table
from vfl.data.tables.proposal import FoundMarks, propose_kinds, with_kept
from vfl.runs.checkpoint import State

NONE_FOUND = FoundMarks()


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


def choose_columns(data: DataConfig, owner: str, table: TableRows) -> OwnColumns:
    """Return an owner's columns: as given, or proposed from its table, with a warning for each doubtful one.

    Raises TableError if the label is among them.
    """
    config = data.tables[owner]
    kinds, found = config.named_kinds, NONE_FOUND
    if config.proposes:
        with of_owner(owner):
            kinds, found, lines = propose_kinds(table, config, _beside(data, config))
        for line in lines:
            warnings.warn(line.replace(OWNER, f"data.tables.{owner}"), stacklevel=2)
    for name in key_of(config):
        if kinds.get(name, "ignore") != "ignore":
            warnings.warn(f"{table}: column {name!r} is the key and a feature; does it say anything?", stacklevel=2)
    _check_kinds(data, owner, table, kinds)
    return OwnColumns(kinds, found)


def check_continued(data: DataConfig, owner: str, table: TableRows, columns: OwnColumns) -> None:
    """Raise TableError if an owner's table or settings have other features than an earlier run's ``columns``."""
    config = data.tables[owner]
    beside = _beside(data, config)
    own: dict[str, str] = {**config.named_kinds}
    if config.proposes:  # nothing is proposed anew, and no column left out in silence
        own = {name: columns.kinds.get(name, "new") for name in column_names(table) if name not in beside} | own
    for name in {**columns.kinds, **own}:
        here, then = own.get(name, "ignore"), columns.kinds.get(name, "ignore")
        if here != then:
            what = f"column {name!r} is {here} here, and {then} in that run"
            raise TableError(f"training.start_from: {table}: {what}; keep its columns as they were there")
    _check_kinds(data, owner, table, columns.kinds)


def _check_kinds(data: DataConfig, owner: str, table: TableRows, kinds: Mapping[str, ColumnKind]) -> None:
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


def reading_marks(data: DataConfig, owner: str, found: FoundMarks) -> tuple[Sequence[str], Kept, str | None]:
    """Return the words for a missing value, by column those that are none, and the mark between thousands.

    What was found among numbers may be a class or a key: there it stands for itself.
    """
    config = data.tables[owner]
    kept: Kept = config.not_missing
    if found.missing and not config.missing:
        kept = with_kept(kept, _beside(data, config), found)
    return config.missing or found.missing, kept, config.thousands or found.thousands


def read_columns(
    data: DataConfig,
    owner: str,
    table: TableRows,
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
    if not new and config.not_missing and (unknown := sorted(config.not_missing.keys() - column_names(table))):
        raise TableError(f"data.tables.{owner}.not_missing: {table} has no column {unknown[0]!r}")
    keys, group = keys_of(config, known_by), data.group
    if group is not None and not new and (config.label is not None or (*known_by,) == (owner,)):
        if group not in column_names(table):
            what = f"has no column {group!r}; name one of the label owner's table"
            alone = "" if config.label is not None else ", which this one needs as well without a match (lvfl align)"
            raise TableError(f"data.group: {table} {what}{alone}")
        keys = list(dict.fromkeys([*keys, (group,)]))
    # The display is on a terminal only.
    with of_owner(owner), Console(stderr=True).status(f"reading {table}") as status:

        def show(rows: int) -> None:
            status.update(f"reading {table}: {rows:,} rows")

        read = read_table(table, kinds, keys, show, *reading_marks(data, owner, found))
    return read.counted(weight)
