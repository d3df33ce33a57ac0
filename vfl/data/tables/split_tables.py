"""Joined tables, split into training and test samples: each owner's part, and the labels.

Shapes: N samples, O owners.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Signatures of torch and numpy are partly untyped.

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vfl.base.random import generator
from vfl.config.data import DataConfig
from vfl.data.files import LabelData, PartyData
from vfl.data.samples import Labels, draw_rows
from vfl.data.tables.arrow import Column, pa
from vfl.data.tables.cells import TableError
from vfl.data.tables.columns import VALIDATION, Indices, Table, groups_of, key_cells, key_of, read_test_keys
from vfl.data.tables.join import Groups, Joined, draw_share, find_leader, join, matched, shared_rows, split_rows
from vfl.data.tables.labels import read_labels, read_weights, refuse_copies
from vfl.data.tables.opened import find_table
from vfl.data.tables.own_columns import OwnColumns, check_columns, raw_samples, unless_all


@dataclass(frozen=True, eq=False)
class SplitTables:
    """The tables that are here, and which of their joined samples are for training and for the test."""

    data: DataConfig
    tables: Mapping[str, Table]
    joined: Joined
    train: Indices
    """Places of the training samples among the joined ones, ascending."""
    test: Indices


def split_tables(data: DataConfig, tables: Mapping[str, Table], joined: Joined, seed: int) -> SplitTables:
    """Split the samples of joined tables. Raises ValueError, one line, if one of both sides is empty."""
    groups = _groups(data, joined, tables)
    keys = None if data.test_file is None or joined.test is not None else _test_keys(data, joined)
    train, test = split_rows(joined, data.test_share, seed, keys, groups)
    if data.validation_share:
        # The test samples are dropped here: from now on validation samples go by their name.
        drawn = None if groups is None else groups[train]
        evaluated = draw_share(len(train), data.validation_share, seed, VALIDATION, drawn)
        train, test = train[~evaluated], train[evaluated]
    for owner, count in shared_rows(joined, train, test).items() if groups is None else ():
        what = f"{count} of {owner}'s rows stand for training and for test samples"
        warnings.warn(f"data.tables: {what}; data.group: COLUMN keeps samples of one value apart", stacklevel=3)
    train = _drawn("data.train_samples", train, data.train_samples, seed)
    test = _drawn("data.test_samples", test, data.test_samples, seed=0)  # one draw for all seeds
    return SplitTables(data, tables, joined, train, test)


def join_tables(data: DataConfig, tables: Mapping[str, Table]) -> Joined:
    """Return the result of the owners' matches, or join their keys in the open.

    Raises ValueError, one line, for tables that do not fit together.
    """
    matches = {owner: path for owner in tables if (path := data.tables[owner].match) is not None}
    if len(matches) == len(tables):
        return matched(tables, matches, data)
    if matches:
        without = [owner for owner in tables if owner not in matches]
        raise ValueError(f"data.tables.{without[0]}.match: is missing; name it for all owners, or for none")
    leader = find_leader(data) if len(tables) > 1 else next(iter(tables))
    return join(tables, data.tables, leader, keep_all=data.join == "left")


def _groups(data: DataConfig, joined: Joined, tables: Mapping[str, Table]) -> Groups | None:
    """Return the group of each sample; None without groups, or if only the label owner knows them."""
    group = data.group
    found = [] if group is None else [owner for owner, table in tables.items() if (group,) in table.keys]
    if group is None or (not found and not data.validation_share):
        return None
    if not found:
        what = "only the label owner knows the groups of a match, and so the validation samples"
        raise ValueError(f"data.validation_share: {what}; leave it out, or data.group")
    return groups_of(tables[found[0]], group, joined.rows[found[0]])


def _test_keys(data: DataConfig, joined: Joined) -> Column:
    if joined.keys is None:
        raise ValueError("data.test_file: the owners' match was made without it; run lvfl align again")
    # Samples go by the label owner's key or, in another owner's process, by the first key that is known.
    known = [table for table in data.tables.values() if table.key is not None]
    named = next((table for table in known if table.label is not None), known[0])
    assert data.test_file is not None
    return read_test_keys(find_table(data.test_file), key_of(named))


def _drawn(field: str, rows: Indices, wanted: int | None, seed: int) -> Indices:
    """Return ``wanted`` of some rows, ascending; None takes all."""
    return rows[draw_rows(field, wanted, len(rows), generator(seed, "table_subset", owner=field)).numpy()]


def part_of(split: SplitTables, owner: str, columns: OwnColumns) -> PartyData:
    """Return an owner's raw samples. Raises TableError for columns without a value, or no training sample."""
    table, rows, ids = split.tables[owner], split.joined.rows[owner], split.joined.ids
    # Columns are judged by training rows alone: what stands in test rows must not choose features.
    held = rows[split.train][rows[split.train] >= 0]
    if len(held) == 0:
        raise TableError(f"{table.path}: no training sample has a row here; leave the owner out")
    if not columns.judged:
        check_columns(table, held, columns)
    chosen = [(rows[part], ids[part]) for part in (split.train, split.test)]
    keys = table.keys[key_of(split.data.tables[owner])]

    def test_row(row: int) -> str:
        (cells,) = key_cells(keys.take(pa.array(rows[split.test][row : row + 1])))
        return f"key {' '.join(cells)}"

    train, test = raw_samples(table, chosen, columns)
    return PartyData(owner, train, test, test_row)


def labels_of(split: SplitTables, parties: Sequence[str], most_amounts: int) -> LabelData:
    """Return the label owner's labels, of at most ``most_amounts`` numeric classes, and which party has which sample.

    Raises TableError for labels that cannot be learned.
    """
    data, joined, leader = split.data, split.joined, find_leader(split.data)
    table, rows, config = split.tables[leader], joined.rows[leader], data.tables[leader]
    name = config.label
    assert name is not None
    # Over all samples, so that training and test number classes alike.
    values, classes = read_labels(table, name, rows, most_amounts, data.positive_class)
    weights_N = None if config.weight is None else read_weights(table, config.weight, rows)
    refuse_copies(table, name, rows)
    if data.validation_share:
        what = f"{len(split.test)} training samples are evaluated; the test stays unseen until predict --split test"
        warnings.warn(f"data.validation_share: {what}", stacklevel=2)
    for which, part in (("training", split.train), ("test", split.test)):
        if len(values[part].unique()) < 2:
            where = f"{table.path}: label column {name!r}"
            fix = "give more rows, or other data.test_share or seed"
            raise TableError(f"{where}: has one value only in the {which} samples; it needs two or more: {fix}")
    key = key_of(config)
    keys = (key, *key_cells(table.keys[key].take(pa.array(rows[split.test]))))

    def labels(part: Indices, keys: tuple[Sequence[str], ...]) -> Labels:
        weights = None if weights_N is None else weights_N[part]
        return Labels(joined.ids[part], values[part], _present(joined, part, parties), keys, weights)

    return LabelData(classes, labels(split.train, ()), labels(split.test, keys))


def _present(joined: Joined, part: Indices, parties: Sequence[str]) -> Tensor | None:
    """Return the mask of present rows, bool [N, O], of some samples; None if all owners have all."""
    held = {**joined.others, **{owner: rows >= 0 for owner, rows in joined.rows.items()}}
    if not all(owner in held for owner in parties):
        return None  # the label owner's process without a match: nobody knows the others' rows
    return unless_all(np.stack([held[owner][part] for owner in parties], axis=1))
