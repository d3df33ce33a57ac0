"""An owner's input to a match: lists of different keys, and the lists' places of its rows."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vfl.config.data import DataConfig
from vfl.config.tables import ColumnKind
from vfl.data.tables.arrow import Column, pa
from vfl.data.tables.cells import Reading
from vfl.data.tables.columns import (
    SPLIT,
    Indices,
    groups_of,
    key_of,
    keys_of,
    read_table,
    test_groups,
    tested_rows,
    unique_rows,
)
from vfl.data.tables.matching_result import keys_digest
from vfl.data.tables.opened import locate_table


@dataclass(frozen=True, eq=False)
class OwnKeys:
    """An owner's keys. The label owner has a list for each key by which others know its samples, others have one."""

    rows: Indices
    """Rows of the table that are matched, int64 [M]; the label owner's are the samples."""
    lists: tuple[Column, ...]
    """Lists of keys as text, without duplicates."""
    places: tuple[Indices, ...]
    """Index of each row's key in each list, int64 [M]."""
    digest: str
    """`keys_digest` of the table."""
    known_as: Mapping[str, int] | None = None
    """Label owner only: by other owner, the index of the list whose keys it uses."""
    tested: npt.NDArray[np.bool_] | None = None
    """Label owner with ``data.test_file`` or ``data.group`` only: bool [M], True if the row is a test sample."""


def own_keys(data: DataConfig, owner: str, seed: int = 0) -> OwnKeys:
    """Return an owner's input to a match of all of ``data.tables``. Raises ValueError for unusable tables."""
    config = data.tables[owner]
    path = locate_table(owner, config)
    others = [other for other in data.tables if other != owner and config.label is not None]
    grouped = [(data.group,)] if others and data.group is not None else []
    keys = list(dict.fromkeys([*keys_of(config, data.tables), *grouped]))
    weights: dict[str, ColumnKind] = {} if config.weight is None else {config.weight: "number"}
    reading = Reading(config.missing, config.not_missing, settings=f"data.tables.{owner}")
    table = read_table(path, weights, keys, reading)
    table = table if config.weight is None else table.counted(config.weight)
    rows = unique_rows(table, config)
    own = key_of(config)
    columns = {owner: config.keys.get(owner, own) for owner in others}
    used = list(dict.fromkeys(columns.values())) or [own]
    encoded = [table.keys[each].take(pa.array(rows)).dictionary_encode() for each in used]
    tested = None
    if others and data.test_file is not None:
        tested = np.isin(rows, tested_rows(table, own, data.test_file))
    elif others and data.group is not None:
        tested = test_groups(groups_of(table, data.group, rows), data.test_share, seed, SPLIT)
    return OwnKeys(
        rows,
        tuple(each.dictionary for each in encoded),
        tuple(np.asarray(each.indices).astype(np.int64) for each in encoded),
        keys_digest(table, config.keys),
        {owner: used.index(columns[owner]) for owner in others} if others else None,
        tested,
    )


def of_rows(data: DataConfig, owner: str | None = None, path: Path | None = None) -> DataConfig:
    """Return the settings of a match of new rows: all of the label owner's are samples, and none is for a test.

    At ``owner`` the rows in ``path`` take the place of its table, and ``rows_match`` that of its match.
    """
    tables = dict(data.tables)
    if owner in tables and path is not None:
        tables[owner] = tables[owner].model_copy(update={"file": path, "match": rows_match(path), "weight": None})
    return data.model_copy(update={"tables": tables, "join": "left", "test_file": None, "group": None})


def rows_match(path: Path) -> Path:
    """Return the file that assigns an owner's new rows in ``path`` to samples (``lvfl align --rows``)."""
    return path.with_name(f"{path.name}.match")


def shuffled(count: int) -> Indices:
    """Return 0 to ``count`` - 1 in an unpredictable order, from the system's random numbers."""
    # No seeded generator: whoever knew the seed could undo the order, and see a key's place in its owner's table.
    return np.frombuffer(os.urandom(8 * count), np.uint64).argsort(kind="stable").astype(np.int64)
