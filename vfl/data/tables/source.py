"""Tables of several owners as a data source: rows joined by key, split, and given to their owners.

A raw sample has two tensors: its numbers, float64 [F] with NaN for missing ones, and its categories, int64 [K], a hash
of each value. Names of columns and categories stay with the files.

Shapes: N samples, F numbers, K columns of categories, O owners.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Signatures of torch and numpy are partly untyped.

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from vfl.base.errors import Argument, Choice, ConfigError
from vfl.base.random import generator
from vfl.config.data import DataConfig
from vfl.config.tables import ColumnKind, TableConfig, label_owner
from vfl.data.files import LabelData, Labels, PartyData
from vfl.data.samples import Samples, all_rows, draw_rows
from vfl.data.source import NewSamples, Preparation, Source, Split
from vfl.data.tables.arrow import Column, pa
from vfl.data.tables.canonical import as_written, spell
from vfl.data.tables.cells import OWNER, Kept, TableError, column_names, of_owner
from vfl.data.tables.columns import Table, read_table
from vfl.data.tables.join import Groups, Joined, draw_share, join, matched, shared_rows, split_rows
from vfl.data.tables.keys import SHOWN, VALIDATION, Rows, groups_of, key_cells, key_of, keys_of, read_test_keys
from vfl.data.tables.labels import MOST_AMOUNTS, MOST_CLASSES, positive_last, read_labels, read_weights, refuse_copies
from vfl.data.tables.matching_input import of_rows, rows_match
from vfl.data.tables.opened import locate_table
from vfl.data.tables.preparation import FARTHEST, MIN_COUNT, TablePreparation
from vfl.data.tables.proposal import FoundMarks, propose_kinds, with_kept
from vfl.data.tables.rows import check_columns, no_features, raw_samples, unless_all
from vfl.runs.checkpoint import State

MANY = 1000
"""Training rows from which a regression reads numbers by quantiles, unless told. On two development tables with fewer,
the error rose by 4 and 8 %; on four with more it fell by 1 to 15 % (docs/results/tables)."""


class Tables(Source):
    """`data.tables`: an owner per entry, in this order. Parties are all with features; the labels' may have none."""

    tensors = 2

    def __init__(self, data: DataConfig, seed: int) -> None:
        super().__init__(data, seed)
        self._kinds: dict[str, Mapping[str, ColumnKind]] = {}
        self._kept = set[str]()
        """Owners whose columns are those of an earlier run, which has judged them."""
        self.spelling = spell
        self._found: dict[str, FoundMarks] = {}
        """Words and marks that were found in an owner's table, by owner."""

    @property
    def owners(self) -> tuple[str, ...]:
        """All owners of tables."""
        return tuple(self.data.tables)

    @cached_property
    def leader(self) -> str:
        """The label owner. Raises ValueError if no table has labels."""
        owner = label_owner(self.data.tables)
        if owner is None:
            raise ValueError("data.tables: no owner names its label; give one of them label: COLUMN")
        return owner

    def split(self) -> Split:
        """Join all tables on equal keys and split the samples; warn if samples are left out, with their number."""
        tables = {owner: self._read(owner, self.owners) for owner in dict.fromkeys((self.leader, *self.owners))}
        joined = self._join(tables)
        if joined.dropped:
            warnings.warn(joined.dropped, stacklevel=2)
        train, test = self._split_rows(joined, tables)
        labels = self._labels(tables[self.leader], joined, train, test)
        parts = (self._part(owner, tables[owner], joined, train, test) for owner in self.parties)
        return Split(tuple(parts), labels)

    def training_rows(self) -> int:
        """Return the number of training samples; only keys are read. Raises ValueError as ``split``."""
        tables = {owner: self._read_columns(owner, self.owners, {}) for owner in self.owners}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ``split`` says the same
            return len(self._split_rows(self._join(tables), tables)[0])

    def held_by(self, party: str) -> PartyData:
        """Return the rows of the party's own table, whose keys are the samples; ``data.file`` takes precedence."""
        if self.data.file is not None:
            return super().held_by(party)
        table, joined = self._alone(party)
        return self._part(party, table, joined, *self._split_rows(joined, {party: table}))

    def held_labels(self) -> LabelData:
        """Return the labels of the label owner's own table; ``data.file`` takes precedence."""
        if self.data.file is not None:
            held = super().held_labels()
            if positive_last(held.classes, self.data.positive_class) != held.classes:
                raise ValueError("data.positive_class: is not that of data.file; write it again with lvfl split-data")
            return held
        table, joined = self._alone(self.leader)
        return self._labels(table, joined, *self._split_rows(joined, {self.leader: table}))

    def prepare(self, train: Samples) -> TablePreparation:
        """Fit means, standard deviations, quantiles if the settings want them, and known categories."""
        ranked = self.task == "regression" and len(train) >= MANY
        return TablePreparation(train, self.data.numbers or ("quantiles" if ranked else "standardised"))

    def restore_preparation(self, state: State, like: Samples) -> TablePreparation:
        """Return the preparation in a fitted state, without fitting anew."""
        return TablePreparation.of_state(state, both=self.data.numbers == "both")

    def preparation_text(self, party: str, preparation: Preparation) -> str | None:
        """Return means, standard deviations and known categories by column."""
        assert isinstance(preparation, TablePreparation)
        return preparation.to_json(*self.columns(party))

    def warning_of_unseen_values(self, party: str, preparation: Preparation, samples: Samples) -> str:
        """Return a line that counts, by column, new or rare categories and cells that differ from a constant."""
        assert isinstance(preparation, TablePreparation)
        numbers, categories = self.columns(party)
        kinds = {
            f"hold a category of fewer than {MIN_COUNT} training rows and are taken as unknown": zip(
                categories, preparation.unknown(samples), strict=True
            ),
            "differ from what their column holds in all training rows, and are taken for it": zip(
                [*numbers, *categories], preparation.changed(samples), strict=True
            ),
        }
        told = {what: [f"{n} of column {name!r}" for name, n in counts if n] for what, counts in kinds.items()}
        lines = [f"cells that {what}: {', '.join(cells)}" for what, cells in told.items() if cells]
        return f"{party}: {'; '.join(lines)}" if lines else ""

    def outliers(self, party: str, preparation: Preparation, samples: Samples) -> Iterator[tuple[int, str]]:
        """Yield the row of each cell that is clipped, and a line that names its column."""
        assert isinstance(preparation, TablePreparation)
        for row, number in preparation.far(samples):
            name = self.columns(party)[0][number]
            far = f"{float(samples.features[row, number]):g} is over {FARTHEST:g} standard deviations"
            yield row, f"column {name!r}: {far} from the training mean; mend it or leave it empty"

    def names(self, party: str) -> State:
        """Return the kinds of the owner's columns by name, in their order; empty for a file without names."""
        config = self.data.tables[party]
        if self.data.file is not None and (config.proposes or not config.has_rows or config.key is None):
            return {}
        spelling = {"spelling": "one"} if self.spelling is spell else {}
        kinds, found = self.features(party), self._found.get(party, FoundMarks())
        marks = {"missing": list(found.missing), **({"thousands": found.thousands} if found.thousands else {})}
        return {"columns": [*kinds], "kinds": [*kinds.values()], **marks, **spelling}

    def load_names(self, party: str, names: State) -> None:
        """Restore the kinds of the owner's columns, and the spelling that the run knows categories by."""
        if names:
            self._kinds[party] = dict(zip(names["columns"], names["kinds"], strict=True))
            self.spelling = spell if "spelling" in names else as_written
            self._found[party] = FoundMarks(tuple(names.get("missing", ())), names.get("thousands"))
            self._kept.add(party)

    def keep_names(self, party: str, names: State) -> None:
        """Read the owner's columns as the run did that has these ``names``. Raises TableError for another feature."""
        self.load_names(party, names)
        if not names or self.data.file is not None:
            return
        config = self.data.tables[party]
        path = locate_table(party, config)
        kept, beside = self._kinds[party], self._beside(config)
        own: dict[str, str] = {**config.named_kinds}
        if config.proposes:  # nothing is proposed anew, and no column left out in silence
            own = {name: kept.get(name, "new") for name in column_names(path) if name not in beside} | own
        for name in {**kept, **own}:
            here, then = own.get(name, "ignore"), kept.get(name, "ignore")
            if here != then:
                what = f"column {name!r} is {here} here, and {then} in that run"
                raise TableError(f"training.start_from: {path}: {what}; keep its columns as they were there")
        self._check_kinds(party, kept)

    def check(self, samples: Samples) -> None:
        """Raise ValueError for anything but raw rows."""
        if samples.features.dtype != torch.float64 or samples.more[0].dtype != torch.int64:
            raise ValueError("features: expected float64 numbers and int64 categories of a table")
        if not all_rows(samples.features, lambda rows: ~rows.isinf()):
            raise ValueError("features are infinite: leave such cells empty")

    def read_tables(self, paths: Mapping[str, Path]) -> NewSamples:
        """Read new rows to predict, a table for each owner that is not absent; labels are ignored.

        Samples are the label owner's rows or, if it is absent, those of the first owner in ``paths``, by key. Raises
        TableError.
        """
        return self._new_rows(paths, [owner for owner in self.owners if owner in paths])

    def served_rows(self, path: Path, owner: str) -> NewSamples:
        """Read an owner's rows to be scored, with the keys by which others know them. Raises TableError."""
        return self._new_rows({owner: path}, self.owners)

    def _new_rows(self, paths: Mapping[str, Path], known: Sequence[str]) -> NewSamples:
        """Read new rows, and the keys by which the owners in ``known`` know those of the first one."""
        owners = [owner for owner in self.owners if owner in paths]
        # Not `leader` for a single owner, whose own file need not name the label's owner.
        first = owners[0] if len(owners) == 1 or self.leader not in owners else self.leader
        tables = {owner: self._read(owner, known, paths[owner]) for owner in dict.fromkeys((first, *owners))}
        joined = join(tables, self.data.tables, first, keep_all=True)
        foreign = {
            other: tables[first].keys[key] for other, key in self.data.tables[first].keys.items() if other in known
        }
        ids, away = joined.ids, no_features(joined.ids)
        parts = {
            o: raw_samples(tables[o], [(joined.rows[o], ids)], *self.columns(o), self.spelling)[0]
            for o in owners
            if o in self.parties
        }
        key = key_of(self.data.tables[first])
        assert joined.keys is not None
        return NewSamples(
            away,
            tuple(parts.get(owner, away) for owner in self.parties),
            keys=(key, *key_cells(joined.keys)),
            present={o: torch.from_numpy(joined.rows[o] >= 0) for o in owners},
            file_order=torch.from_numpy(joined.rows[first].argsort()),
            known_as={other: key_cells(key.take(pa.array(joined.rows[first]))) for other, key in foreign.items()},
        )

    def whose_table(self, path: Path) -> tuple[str, ...]:
        """Return the owners whose columns a table contains completely, if no other owner can be meant.

        Several owners' rows may be joined in one table, but not if two of them have a feature of the same name: then it
        holds only one owner's. Nor can the table be taken for that of an owner whose features others have as well.
        """
        there = set(column_names(path))
        features = {owner: {*chain(*self.columns(owner))} for owner in self.owners}
        keys = {owner: {name for key in keys_of(self.data.tables[owner], ()) for name in key} for owner in self.owners}
        owners = tuple(owner for owner in self.owners if features[owner] | keys[owner] <= there)
        for owner in owners:
            for other in self.parties:
                shared = sorted(features[owner] & features[other])
                if other != owner and (shared and (other in owners or features[owner] <= features[other])):
                    what = f"has columns of {owner} and {other} ({', '.join(shared[:SHOWN])})"
                    raise TableError(f"--table: {path}: {what}; say whose it is: --table {owner}={path}")
        if not set(self.parties) & set(owners):
            lacking = {owner: sorted((features[owner] | keys[owner]) - there) for owner in self.parties}
            what = "; ".join(f"{owner}'s {', '.join(names[:SHOWN])}" for owner, names in lacking.items())
            raise TableError(f"--table: {path}: lacks columns of every owner ({what}); name OWNER=FILE for each")
        return owners

    def read_samples(self, given: object, trained: Samples, classes: int) -> NewSamples:
        """Raise ConfigError: new rows of tables are named by owner."""
        name = Choice(Argument.TABLE, ("OWNER=FILE",), "names the new rows of each", "give {owner: table}")
        raise ConfigError("--data: tables have owners", name)

    def own_rows(self, path: Path, owner: str | None = None) -> NewSamples | None:
        """Read new rows of one owner alone, in the order of their match if there is one, else of its own key.

        Raises ValueError for a match of other rows, TableError.
        """
        if path.suffix == ".safetensors":
            return None
        owner = owner or self.leader
        return self._matched_rows(owner, path) if rows_match(path).exists() else self.read_tables({owner: path})

    def _matched_rows(self, owner: str, path: Path) -> NewSamples:
        """Read new rows in the order of their match; at the label owner with the other owners' masks."""
        table = self._read(owner, self.owners, path)
        joined = matched({owner: table}, {owner: rows_match(path)}, of_rows(self.data, owner, path))
        rows, ids, key = joined.rows[owner], joined.ids, key_of(self.data.tables[owner])
        away = no_features(ids)
        (own,) = raw_samples(table, [(rows, ids)], *self.columns(owner), self.spelling)
        held = {owner: rows >= 0, **joined.others}
        # The server shows keys where other owners lack rows; an owner needs its own in messages to itself.
        keyed = bool(joined.others) or owner != label_owner(self.data.tables)
        return NewSamples(
            away,
            tuple(own if each == owner else away for each in self.parties),
            keys=(key, *key_cells(table.keys[key].take(pa.array(rows.clip(min=0))))) if keyed else (),
            present={each: torch.from_numpy(there) for each, there in held.items()},
        )

    def features(self, owner: str) -> Mapping[str, ColumnKind]:
        """Return the kinds of the owner's columns: as given, or proposed from its table. Raises TableError."""
        if owner not in self._kinds:
            self._kinds[owner] = self._choose_features(owner)
        return self._kinds[owner]

    def _choose_features(self, owner: str) -> Mapping[str, ColumnKind]:
        """Return the kinds of the owner's columns: as given, or proposed from its table, with a line per doubtful one.

        Raises TableError if the label is among them.
        """
        config = self.data.tables[owner]
        path, kinds = locate_table(owner, config), config.named_kinds
        if config.proposes:
            with of_owner(owner):
                kinds, self._found[owner], lines = propose_kinds(path, config, self._beside(config))
            for line in lines:
                warnings.warn(line.replace(OWNER, f"data.tables.{owner}"), stacklevel=2)
        for name in key_of(config):
            if kinds.get(name, "ignore") != "ignore":
                warnings.warn(f"{path}: column {name!r} is the key and a feature; does it say anything?", stacklevel=2)
        self._check_kinds(owner, kinds)
        return kinds

    def _check_kinds(self, owner: str, kinds: Mapping[str, ColumnKind]) -> None:
        """Raise TableError if the samples' weight or label is among an owner's features."""
        config = self.data.tables[owner]
        path = locate_table(owner, config)
        if config.weight is not None and kinds.get(config.weight, "ignore") != "ignore":
            what = f"column {config.weight!r} is the samples' weight"
            raise TableError(f"{path}: {what}; make it ignore under data.tables.{owner}.features")
        for table in self.data.tables.values():
            if table.label is not None and kinds.get(table.label, "ignore") != "ignore":
                what = f"column {table.label!r} is the label, or has its name"
                raise TableError(f"{path}: {what}; make it ignore under data.tables.{owner}.features")

    def _beside(self, config: TableConfig) -> list[str]:
        """Return the columns of a table that are no features unless told: keys, label, weight and group."""
        keys = [name for key in (key_of(config), *config.keys.values()) for name in key]
        return [*keys, *(name for name in (config.label, config.weight, self.data.group) if name is not None)]

    def column_names(self, party: str) -> list[str]:
        """Return the names of an owner's columns, numbers first; none of a file without names."""
        return [*chain(*self.columns(party))] if self.names(party) else []

    def columns(self, owner: str) -> tuple[list[str], list[str]]:
        """Return the names of an owner's numbers and categories, in the order of its raw samples."""
        kinds = self.features(owner).items()
        return [name for name, kind in kinds if kind == "number"], [name for name, kind in kinds if kind == "category"]

    def _read(self, owner: str, owners: Sequence[str], new: Path | None = None) -> Table:
        """Read an owner's table with the keys of other ``owners``; ``new`` rows are read without the label."""
        config, kinds = self.data.tables[owner], dict(self.features(owner))
        if new is None and config.label is not None:
            kinds[config.label] = "number" if self.task == "regression" else "category"
        return self._read_columns(owner, owners, kinds, new)

    def _read_columns(
        self, owner: str, owners: Sequence[str], kinds: Mapping[str, ColumnKind], new: Path | None = None
    ) -> Table:
        config = self.data.tables[owner]
        path = locate_table(owner, config) if new is None else new  # no query of training rows for others
        weight = config.weight if new is None else None
        kinds = {**kinds, weight: "number"} if weight is not None else kinds
        if new is None and (unknown := sorted(config.not_missing.keys() - column_names(path))):
            raise TableError(f"data.tables.{owner}.not_missing: {path} has no column {unknown[0]!r}")
        keys = keys_of(config, owners)
        group = self.data.group
        if group is not None and new is None and (config.label is not None or (owners == (owner,))):
            if group not in column_names(path):
                what = f"has no column {group!r}; name one of the label owner's table"
                alone = (
                    "" if config.label is not None else ", which this one needs as well without a match (lvfl align)"
                )
                raise TableError(f"data.group: {path} {what}{alone}")
            keys = list(dict.fromkeys([*keys, (group,)]))
        # The display is on a terminal only.
        with of_owner(owner), Console(stderr=True).status(f"reading {path}") as status:

            def show(rows: int) -> None:
                status.update(f"reading {path}: {rows:,} rows")

            table = read_table(path, kinds, keys, show, *self.reading(owner))
        return table.counted(weight)

    def reading(self, owner: str) -> tuple[Sequence[str], Kept, str | None]:
        """Return the words for a missing value, by column those that are none, and the mark between thousands.

        What was found among numbers may be a class or a key: there it stands for itself.
        """
        config, found = self.data.tables[owner], self._found.get(owner, FoundMarks())
        kept = config.not_missing if config.missing else with_kept(config.not_missing, self._beside(config), found)
        return config.missing or found.missing, kept, config.thousands or found.thousands

    def _alone(self, owner: str) -> tuple[Table, Joined]:
        # A match remembers the digest of all keys in the table, those by which others know its rows included.
        table = self._read(owner, (owner,) if self.data.tables[owner].match is None else self.owners)
        return table, self._join({owner: table})

    def _join(self, tables: Mapping[str, Table]) -> Joined:
        """Return the result of the owners' matches, or join their keys in the open."""
        matches = {owner: path for owner in tables if (path := self.data.tables[owner].match) is not None}
        if len(matches) == len(tables):
            return matched(tables, matches, self.data)
        if matches:
            without = [owner for owner in tables if owner not in matches]
            raise ValueError(f"data.tables.{without[0]}.match: is missing; name it for all owners, or for none")
        leader = self.leader if len(tables) > 1 else next(iter(tables))
        return join(tables, self.data.tables, leader, keep_all=self.data.join == "left")

    def _part(self, owner: str, table: Table, joined: Joined, train: Rows, test: Rows) -> PartyData:
        numbers, categories = self.columns(owner)
        rows, ids = joined.rows[owner], joined.ids
        # Columns are judged by training rows alone: what stands in test rows must not choose features.
        held = rows[train][rows[train] >= 0]
        if len(held) == 0:
            raise TableError(f"{table.path}: no training sample has a row here; leave the owner out")
        if owner not in self._kept:
            check_columns(table, held, numbers, categories)
        chosen = [(rows[part], ids[part]) for part in (train, test)]
        keys = table.keys[key_of(self.data.tables[owner])]

        def test_row(row: int) -> str:
            (cells,) = key_cells(keys.take(pa.array(rows[test][row : row + 1])))
            return f"key {' '.join(cells)}"

        raw_train, raw_test = raw_samples(table, chosen, numbers, categories, self.spelling)
        return PartyData(owner, raw_train, raw_test, test_row)

    def _labels(self, table: Table, joined: Joined, train: Rows, test: Rows) -> LabelData:
        name = self.data.tables[self.leader].label
        assert name is not None
        rows, ids = joined.rows[self.leader], joined.ids
        most_amounts = MOST_CLASSES if self.task_said else MOST_AMOUNTS
        with of_owner(self.leader):  # over all samples, so that training and test number classes alike
            values, classes = read_labels(table, name, rows, most_amounts, self.data.positive_class)
        column = self.data.tables[self.leader].weight
        weights_N = None if column is None else read_weights(table, column, rows)
        refuse_copies(table, name, rows)
        if self.data.validation_share:
            what = f"{len(test)} training samples are evaluated; the test stays unseen until predict --split test"
            warnings.warn(f"data.validation_share: {what}", stacklevel=2)
        for split, part in (("training", train), ("test", test)):
            if len(values[part].unique()) < 2:
                where = f"{table.path}: label column {name!r}"
                fix = "give more rows, or other data.test_share or seed"
                raise TableError(f"{where}: has one value only in the {split} samples; it needs two or more: {fix}")
        key = key_of(self.data.tables[self.leader])
        keys = (key, *key_cells(table.keys[key].take(pa.array(rows[test]))))
        return LabelData(
            classes,
            *(
                Labels(
                    ids[part],
                    values[part],
                    self._present(joined, part),
                    own,
                    None if weights_N is None else weights_N[part],
                )
                for part, own in ((train, ()), (test, keys))
            ),
        )

    def _present(self, joined: Joined, part: Rows) -> Tensor | None:
        """Return the mask of present rows, bool [N, O], of some samples; None if all owners have all."""
        held = {**joined.others, **{owner: rows >= 0 for owner, rows in joined.rows.items()}}
        if not all(owner in held for owner in self.parties):
            return None  # the label owner's process without a match: nobody knows the others' rows
        return unless_all(np.stack([held[owner][part] for owner in self.parties], axis=1))

    def _groups(self, joined: Joined, tables: Mapping[str, Table]) -> Groups | None:
        """Return the group of each sample; None without groups, or if only the label owner knows them."""
        group = self.data.group
        found = [] if group is None else [owner for owner, table in tables.items() if (group,) in table.keys]
        if group is None or (not found and not self.data.validation_share):
            return None
        if not found:
            what = "only the label owner knows the groups of a match, and so the validation samples"
            raise ValueError(f"data.validation_share: {what}; leave it out, or data.group")
        return groups_of(tables[found[0]], group, joined.rows[found[0]])

    def _split_rows(self, joined: Joined, tables: Mapping[str, Table]) -> tuple[Rows, Rows]:
        groups = self._groups(joined, tables)
        keys = None if self.data.test_file is None or joined.test is not None else self._test_keys(joined)
        train, test = split_rows(joined, self.data.test_share, self.seed, keys, groups)
        if self.data.validation_share:
            # The test samples are dropped here: from now on validation samples go by their name.
            evaluated = draw_share(
                len(train),
                self.data.validation_share,
                self.seed,
                VALIDATION,
                None if groups is None else groups[train],
            )
            train, test = train[~evaluated], train[evaluated]
        for owner, count in shared_rows(joined, train, test).items() if groups is None else ():
            what = f"{count} of {owner}'s rows stand for training and for test samples"
            warnings.warn(f"data.tables: {what}; data.group: COLUMN keeps samples of one value apart", stacklevel=3)
        train = _drawn("data.train_samples", train, self.data.train_samples, self.seed)
        return train, _drawn("data.test_samples", test, self.data.test_samples, seed=0)  # one draw for all seeds

    def _test_keys(self, joined: Joined) -> Column:
        if joined.keys is None:
            raise ValueError("data.test_file: the owners' match was made without it; run lvfl align again")
        # Samples go by the label owner's key or, in another owner's process, by the first key that is known.
        known = [table for table in self.data.tables.values() if table.key is not None]
        named = next((table for table in known if table.label is not None), known[0])
        assert self.data.test_file is not None
        return read_test_keys(self.data.test_file, key_of(named))


def _drawn(field: str, rows: Rows, wanted: int | None, seed: int) -> Rows:
    """Return ``wanted`` of some rows, ascending; None takes all."""
    return rows[draw_rows(field, wanted, len(rows), generator(seed, "table_subset", owner=field)).numpy()]
