"""What an owner brings to a match: lists of different keys, and how its rows refer to them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vfl.data.tables.arrow import Column, pa, pc
from vfl.data.tables.columns import Table
from vfl.data.tables.config import TableConfig
from vfl.data.tables.join import Rows, key_of, unique_rows
from vfl.data.tables.match import keys_digest


@dataclass(frozen=True, eq=False)
class OwnKeys:
    """An owner's keys. The label owner has a list for each key by which others know its samples, others one."""

    rows: Rows
    """The rows of the table that are matched, int64 [M]: the label owner's are the samples."""
    lists: tuple[Column, ...]
    """Text, each without a doubled key."""
    places: tuple[Rows, ...]
    """Each row's place in each list, int64 [M]."""
    digest: str
    """`keys_digest` of the table."""
    known_as: Mapping[str, int] | None = None
    """At the label owner: by other owner, the list of the keys by which it knows the samples."""
    tested: npt.NDArray[np.bool_] | None = field(default=None)
    """At the label owner, where ``data.test_file`` says so: whether a row is a test sample, bool [M]."""


def own_keys(table: Table, config: TableConfig, others: tuple[str, ...], test_keys: Column | None) -> OwnKeys:
    """Return what an owner matches. ``others``: at the label owner, those who know its samples, else none.

    Raises TableError for doubled keys.
    """
    rows = unique_rows(table, config)
    own = key_of(config)
    columns = {owner: config.keys.get(owner, own) for owner in others}
    used = list(dict.fromkeys(columns.values())) or [own]
    encoded = [table.keys[each].take(pa.array(rows)).dictionary_encode() for each in used]
    return OwnKeys(
        rows,
        tuple(each.dictionary for each in encoded),
        tuple(np.asarray(each.indices).astype(np.int64) for each in encoded),
        keys_digest(table),
        {owner: used.index(columns[owner]) for owner in others} if others else None,
        None if test_keys is None else np.asarray(pc.is_in(table.keys[own].take(pa.array(rows)), value_set=test_keys)),
    )


def shuffled(count: int) -> Rows:
    """Return 0 to ``count`` - 1 in an order that nobody can guess, from the system's random numbers."""
    return np.frombuffer(os.urandom(8 * count), np.uint64).argsort(kind="stable").astype(np.int64)
