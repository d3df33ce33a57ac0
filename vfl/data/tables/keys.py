"""The keys of one table: the rows that have them, and examples for errors."""

import hashlib
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from vfl.config.tables import TableConfig
from vfl.data.tables.arrow import Column, pa, pc
from vfl.data.tables.cells import MISSING, OWNER, TableError, TableRows, column_names
from vfl.data.tables.columns import KEY_SEPARATOR, Table, read_table

Rows = npt.NDArray[np.int64]
SPLIT, VALIDATION = "table_split", "table_validation"
"""Purposes of the draws of test and of validation samples."""
SHOWN = 3
"""Most keys that an error names."""


def read_test_keys(path: TableRows, key: tuple[str, ...]) -> Column:
    """Read the keys of the test samples from a table with the ``key`` columns, or with as many others and no more.

    Raises TableError.
    """
    names = column_names(path)
    if not set(key) <= set(names) and len(names) == len(key):
        key = tuple(names)
    # Every word is kept: whether it is a key is said by the table that has it.
    return read_table(path, {}, [key], kept=dict.fromkeys(key, MISSING[1:])).keys[key]


def test_groups(groups: npt.NDArray[np.str_], share: float, seed: int, purpose: str) -> npt.NDArray[np.bool_]:
    """Return a seeded mask, bool [N], of whole groups that hold at least ``share`` of N samples; not all groups.

    A group's place in the draw depends only on its name, so that owners who hold the same groups agree without
    exchange. Raises TableError for fewer than two groups.
    """
    names, codes = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        raise TableError(f"data.group: all {len(groups)} samples are of one group; name another column")
    marks = [hashlib.blake2b(f"{seed} {purpose} {name}".encode()).digest() for name in names]
    order = np.array(sorted(range(len(names)), key=marks.__getitem__))
    held = np.cumsum(np.bincount(codes)[order])
    wanted = min(int(np.searchsorted(held, share * len(groups))) + 1, len(names) - 1)
    return np.isin(codes, order[:wanted])


def groups_of(table: Table, column: str, rows: Rows) -> npt.NDArray[np.str_]:
    """Return the group of some rows, text [n]."""
    return np.array(table.keys[column,].take(pa.array(rows)).to_pylist(), str)


def tested_rows(table: Table, key: tuple[str, ...], path: TableRows) -> Rows:
    """Return the rows of a table whose keys the test file lists, ascending. Raises TableError."""
    return np.flatnonzero(np.asarray(pc.is_in(table.keys[key], value_set=read_test_keys(path, key))))


def key_cells(keys: Column) -> list[list[str]]:
    """Return the columns' texts of each key."""
    return [key.split(KEY_SEPARATOR) for key in keys.to_pylist()]


def key_of(config: TableConfig) -> tuple[str, ...]:
    """Return the columns of an owner's own key."""
    assert config.key is not None
    return config.key


def keys_of(config: TableConfig, owners: Collection[str]) -> list[tuple[str, ...]]:
    """Return the columns of all keys in an owner's table: its own, and those by which ``owners`` know its rows."""
    foreign = [key for other, key in config.keys.items() if other in owners]
    return list(dict.fromkeys((key_of(config), *foreign)))


def unique_rows(table: Table, config: TableConfig) -> Rows:
    """Return the first row of each key, ascending. Raises TableError for duplicates if the settings refuse them."""
    codes = np.asarray(table.keys[key_of(config)].dictionary_encode().indices)
    _, first = np.unique(codes, return_index=True)  # in the order of the codes; sorted again by row at the end
    if len(first) < len(codes) and config.duplicates == "refuse":
        doubled = np.setdiff1d(np.arange(len(codes)), first)[:SHOWN]
        which = examples(table.keys[key_of(config)].take(pa.array(doubled)))
        where = ", ".join(str(table.rows[row]) for row in doubled)
        raise TableError(
            f"{table.path}: column {', '.join(key_of(config))}: {len(codes) - len(first)} rows repeat a key: {which} "
            f"in row {where}; remove them, or set {OWNER}.duplicates=first"
        )
    return np.sort(first)


def examples(keys: Column) -> str:
    """Return the first few keys, for an error."""
    return ", ".join(repr(" ".join(cells)) for cells in key_cells(keys.slice(0, SHOWN)))
