"""Join of the owners' tables on equal keys, and the split into training and test samples.

Samples are in the order of the label owner's keys (byte by byte), so that the order of the rows in a file has no
effect. A sample's id is a hash of its key: processes that hold the same keys have the same ids in the same order.
Tables matched in private (``matching_result.py``) have the match's order and ids.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vfl.base.random import generator
from vfl.config.data import DataConfig
from vfl.config.tables import TableConfig, label_owner
from vfl.data.tables.arrow import Column, pa, pc
from vfl.data.tables.cells import TableError
from vfl.data.tables.columns import (
    SPLIT,
    Indices,
    Table,
    examples,
    key_cells,
    key_of,
    test_groups,
    tested_rows,
    unique_rows,
)
from vfl.data.tables.matching_result import keys_digest, read_match

BLANK = r"[\p{Z}\p{Cf}]"
"""Characters that are not seen in a key: spaces of all kinds, and characters without width."""

Groups = npt.NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class Joined:
    """The joined samples, in the order common to all owners."""

    ids: Tensor
    """int64 [N]"""
    rows: Mapping[str, Indices]
    """Row of the owner's table for each sample, int64 [N], by owner; -1 if it has none."""
    others: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict[str, npt.NDArray[np.bool_]])
    """Match only: by owner whose table is elsewhere, bool [N], True if it has a row for the sample."""
    keys: Column | None = None
    """Text [N], the label owner's keys; None if they were matched in private."""
    test: int | None = None
    """Number of test samples, which are the last ones; None if they are not yet chosen."""
    hints: Sequence[str] = ()
    """A line for each owner's keys that would be found if they were spelt otherwise."""


def find_leader(data: DataConfig) -> str:
    """Return the label owner. Raises ValueError if no table has labels."""
    owner = label_owner(data.tables)
    if owner is None:
        raise ValueError("data.tables: no owner names its label; give one of them label: COLUMN")
    return owner


def text_hashes(texts: Iterable[str]) -> npt.NDArray[np.int64]:
    """Return the first 63 bits of the BLAKE2b of each text: the same on every machine."""
    digests = b"".join([blake2b(text.encode(), digest_size=8).digest() for text in texts])
    # 63 bits are never negative as int64: -1 stays free for what is missing. Two keys of one hash are refused as ids.
    return (np.frombuffer(digests, ">u8") >> 1).astype(np.int64)


def join(
    tables: Mapping[str, Table], configs: Mapping[str, TableConfig], leader: str, *, keep_all: bool = False
) -> Joined:
    """Join owners' tables on the rows of ``leader``, the label owner (or the only owner).

    Samples that an owner lacks are dropped, or with ``keep_all`` kept. Raises TableError for duplicate keys, or if no
    sample is left.
    """
    first = configs[leader]
    kept = unique_rows(tables[leader], first)
    keys = tables[leader].keys[key_of(first)].take(pa.array(kept))
    # Until they are sorted below, samples are the leader's kept rows: entry i of every list is of the i-th of them.
    rows: dict[str, Indices] = {leader: kept}
    hints: list[str] = []
    for owner in tables:
        if owner == leader:
            continue
        own = unique_rows(tables[owner], configs[owner])
        known = tables[owner].keys[key_of(configs[owner])].take(pa.array(own))
        wanted = tables[leader].keys[first.keys.get(owner, key_of(first))].take(pa.array(kept))
        row_of_key = pc.index_in(wanted, value_set=known)
        alike = _alike(wanted.filter(pc.is_null(row_of_key)), known) if row_of_key.null_count else None
        lines: list[str] = []
        if alike:
            lines.append(f"{alike[0]} more would be found in {owner}'s table if {alike[1]!r} were written {alike[2]!r}")
        if row_of_key.null_count == len(row_of_key) and not keep_all:
            what = f"no key of {leader} is in it: {examples(wanted)} there, {examples(known)} here"
            raise TableError(f"{tables[owner].path}: {'; '.join([what, *lines])}")
        hints += lines
        # Places in `own`. A key without one gets -1, which picks the last element: the appended -1.
        rows[owner] = np.append(own, -1)[np.asarray(pc.fill_null(row_of_key, -1))]
    # By key and not by row: the seeded draws of test samples and batches go by place, and must not see a file's order.
    order = np.asarray(pc.array_sort_indices(keys)).astype(np.int64)
    if not keep_all:
        everywhere = np.logical_and.reduce([rows[owner] >= 0 for owner in tables])
        if not everywhere.any():
            raise TableError("data.tables: no key is in the tables of all owners")
        order = order[everywhere[order]]
    joined = {owner: rows[owner][order] for owner in tables}
    keys = keys.take(pa.array(order))
    # A hash, so that owners in processes of their own agree on ids without an exchange.
    ids = torch.as_tensor(text_hashes(keys.to_pylist()))
    return Joined(ids, joined, keys=keys, hints=hints)


def matched(tables: Mapping[str, Table], paths: Mapping[str, Path], data: DataConfig) -> Joined:
    """Return the samples of the owners' matches.

    Raises ValueError for files of different matches or another ``data.join``, for a table whose keys are not those that
    were matched, and at the label owner for other owners or test samples.
    """
    matches = {owner: read_match(paths[owner], owner) for owner in tables}
    first, *others = matches.values()
    for other in others:
        if (other.order, other.test, len(other.rows)) != (first.order, first.test, len(first.rows)):
            raise ValueError(
                f"data.tables: {paths[first.party]} and {paths[other.party]} are of different matches; run lvfl align"
            )
    if first.join != data.join:
        raise ValueError(
            f"data.join: is {data.join}, {paths[first.party]} is of join {first.join}; run lvfl align again"
        )
    for owner, match in matches.items():
        table, config = tables[owner], data.tables[owner]
        if match.keys != keys_digest(table, config.keys):
            raise ValueError(
                f"data.tables.{owner}.match: {paths[owner]} matched other keys than {table.path} has now; run lvfl "
                "align again"
            )
        if config.label is None:
            continue  # only the label owner's match names the others, and only its keys are those of the test file
        if match.others and {owner, *match.others} != data.tables.keys():
            owners_named = ", ".join(sorted({owner, *match.others}))
            raise ValueError(f"data.tables: {paths[owner]} is a match of {owners_named}; run lvfl align again")
        if data.test_file is not None and not match.tests(tested_rows(table, key_of(config), data.test_file)):
            raise ValueError(
                f"data.test_file: {data.test_file} names other samples than when {paths[owner]} was made; run lvfl "
                "align again"
            )
        if data.group is not None and match.test is None:
            raise ValueError(f"data.group: {paths[owner]} was made without it; run lvfl align again")
    ids = order_ids(first.order, len(first.rows))
    others = {owner: has for match in matches.values() for owner, has in match.others.items() if owner not in tables}
    return Joined(ids, {owner: match.rows for owner, match in matches.items()}, others, test=first.test)


def order_ids(order: str, samples: int) -> Tensor:
    """Return the ids of a match's samples, int64 [N]; they depend on its order and reveal nothing of the keys."""
    return torch.as_tensor(text_hashes(f"{order} {place}" for place in range(samples)))


def split_rows(
    joined: Joined, share: float, seed: int, test_keys: Column | None, groups: Groups | None = None
) -> tuple[Indices, Indices]:
    """Return the training and test samples, both ascending.

    Test samples are those that a match has put at the end, else those of ``test_keys``, else a seeded draw of
    ``share``, of whole ``groups`` where there are some. Raises TableError if one of both is empty, or a group on both
    sides.
    """
    count = len(joined.ids)
    is_test = np.zeros(count, bool)
    if joined.test is not None:
        is_test[count - joined.test :] = True
    elif test_keys is None:
        is_test = draw_share(count, share, seed, SPLIT, groups)
    else:
        assert joined.keys is not None
        is_test = np.asarray(pc.is_in(joined.keys, value_set=test_keys))
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    if len(train) == 0 or len(test) == 0:
        raise TableError(f"data.tables: {len(train)} training and {len(test)} test samples; both need at least one")
    if groups is not None and len(both := np.intersect1d(groups[train], groups[test])):
        what = f"{len(both)} groups, such as {str(both[0])!r}, are on both sides"
        raise TableError(f"data.group: {what}; list all keys of a group in data.test_file, or run lvfl align again")
    return train, test


def draw_share(
    count: int, share: float, seed: int, purpose: str, groups: Groups | None = None
) -> npt.NDArray[np.bool_]:
    """Return a seeded random mask, bool [count], with about ``share`` True: at least one, and not all.

    With ``groups``, text [count], as ``test_groups`` does.
    """
    if groups is not None:
        return test_groups(groups, share, seed, purpose)
    size = min(max(1, round(share * count)), count - 1)
    drawn = np.zeros(count, bool)
    drawn[torch.randperm(count, generator=generator(seed, purpose))[:size].numpy()] = True
    return drawn


def shared_rows(joined: Joined, train: Indices, test: Indices) -> dict[str, int]:
    """Return by owner how many rows of its table stand for training samples and for test samples as well."""
    # By marks: sets of a million numbers take as long as reading them.
    shared: dict[str, int] = {}
    for owner, rows in joined.rows.items():
        in_train, in_test = (np.bincount(1 + rows[part], minlength=2 + rows.max()) > 0 for part in (train, test))
        if count := int(np.count_nonzero((in_train & in_test)[1:])):  # without -1, which is no row
            shared[owner] = count
    return shared


def _alike(lacking: Column, known: Column) -> tuple[int, str, str] | None:
    """Return how many keys that were not found differ from known ones only in spelling, and one of each."""
    twins = pc.index_in(_plainly(lacking), value_set=_plainly(known))
    places = np.flatnonzero(np.asarray(pc.is_valid(twins)))
    if not len(places):
        return None
    first = int(places[0])
    (known_cells,), (own_cells,) = key_cells(known.slice(twins[first].as_py(), 1)), key_cells(lacking.slice(first, 1))
    return len(places), " ".join(known_cells), " ".join(own_cells)


def _plainly(keys: Column) -> Column:
    """Return keys without leading zeros, a decimal point with only zeros after it, capital letters and blanks."""
    dense = pc.replace_substring_regex(pc.utf8_lower(keys), BLANK, "")
    return pc.utf8_ltrim(pc.replace_substring_regex(dense, r"\.0*$", ""), characters="0")


def tell_dropped(tables: Mapping[str, Table], joined: Joined) -> None:
    """Warn of rows and samples that a join in the open has left out, with their number and the hints."""
    if joined.keys is None:
        return
    if lines := [*filter(None, [_dropped(tables, joined.rows)]), *joined.hints]:
        warnings.warn("; ".join(lines), stacklevel=3)


def _dropped(tables: Mapping[str, Table], rows: Mapping[str, Indices]) -> str:
    unused, lacking = dict[str, int](), dict[str, int]()
    for owner, held in rows.items():
        unused[owner] = len(tables[owner].row_numbers) - int(np.count_nonzero(np.bincount(held[held >= 0])))
        lacking[owner] = int((held < 0).sum())
    if not any(unused.values()) and not any(lacking.values()):
        return ""
    samples = len(next(iter(rows.values())))
    parts = [f"{unused[owner]} of {len(table.row_numbers)} rows of {owner}" for owner, table in tables.items()]
    if any(lacking.values()):
        without = ", ".join(f"{count} at {owner}" for owner, count in lacking.items() if count)
        return f"data.tables: {samples} samples, without a row: {without}; dropped: {', '.join(parts)}"
    return f"data.tables: {samples} keys are in the tables of all owners; dropped: {', '.join(parts)}"
