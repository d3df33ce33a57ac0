"""The result of a match (``lvfl align``), one file of its owner: which of its rows stand where in the common order.

    file        metadata                                        tensors
    any name    holds: match, party, order, keys, test, join    rows

rows: int64 [N], the owner's row of each sample, counted from 0 in its table's order; -1 where it has none. ``order`` is
a sha256 that all files of a match have in common and no other match has, ``keys`` that of the keys that were matched,
``test`` the number of samples at the end that are the test, or empty where each owner draws it by the seed.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vfl.atomic import write_together
from vfl.data.files import PRIVATE, read_tensors
from vfl.data.tables.columns import Table
from vfl.data.tables.join import Joined, Rows, text_hash
from vfl.tensor_file import write_tensors

MATCH = "match"
_RECORD_SEPARATOR = "\x1e"


@dataclass(frozen=True, eq=False)
class Match:
    """What an owner knows of a match."""

    party: str
    order: str
    """sha256, of this match alone."""
    keys: str
    """`keys_digest` of the table that was matched."""
    join: str
    """inner or left"""
    rows: Rows
    """int64 [N]; -1 where the owner has no row."""
    test: int | None
    """So many samples at the end are the test; None: drawn by the seed."""


def write_match(path: Path, match: Match) -> None:
    """Write the file (0600), or replace it. Raises OSError as the system does, with an earlier file untouched."""
    test = "" if match.test is None else str(match.test)
    metadata = {"holds": MATCH, "party": match.party, "order": match.order, "keys": match.keys, "join": match.join}
    write = partial(
        write_tensors, tensors={"rows": torch.from_numpy(match.rows)}, metadata=metadata | {"test": test}, mode=PRIVATE
    )
    write_together(path.parent, {path.name: write}, overwrite=True)


def read_match(path: Path, party: str) -> Match:
    """Read the file of ``party``. Raises ValueError, one line, for anything else."""
    field = f"data.tables.{party}.match"
    metadata, tensors = read_tensors(field, path, {MATCH: ("rows",)})
    if metadata.get("party") != party:
        raise ValueError(f"{field}: {path} is the match of {metadata.get('party')!r}, not of {party!r}")
    rows, test = tensors["rows"], metadata.get("test", "")
    if rows.dtype != torch.int64 or rows.dim() != 1:
        raise ValueError(f"{field}: {path}: rows are {rows.dtype} {list(rows.shape)}, not int64 [N]")
    order, keys, join = (metadata.get(name, "") for name in ("order", "keys", "join"))
    return Match(party, order, keys, join, rows.numpy(), int(test) if test else None)


def matched(tables: Mapping[str, Table], paths: Mapping[str, Path], join: str) -> Joined:
    """Return the samples of the owners' matches.

    Raises ValueError for files of different matches or another ``data.join``, and for a table whose keys are not those
    that were matched.
    """
    matches = {owner: read_match(paths[owner], owner) for owner in tables}
    first, *others = matches.values()
    for other in others:
        if (other.order, other.test, len(other.rows)) != (first.order, first.test, len(first.rows)):
            raise ValueError(
                f"data.tables: {paths[first.party]} and {paths[other.party]} are of different matches; run lvfl align"
            )
    if first.join != join:
        raise ValueError(f"data.join: is {join}, {paths[first.party]} is of join {first.join}; run lvfl align again")
    for owner, match in matches.items():
        if match.keys != keys_digest(tables[owner]):
            raise ValueError(
                f"data.tables.{owner}.match: {paths[owner]} matched other keys than {tables[owner].path} has now; run "
                "lvfl align again"
            )
    ids = order_ids(first.order, len(first.rows))
    return Joined(ids, {owner: match.rows for owner, match in matches.items()}, test=first.test)


def order_ids(order: str, samples: int) -> Tensor:
    """Return the ids of a match's samples, int64 [N]: they tell its order apart, and nothing of the keys."""
    return torch.tensor([text_hash(f"{order} {place}") for place in range(samples)], dtype=torch.int64)


def keys_digest(table: Table) -> str:
    """Return the sha256 of all keys of a table, in its order."""
    sha256 = hashlib.sha256()
    for columns, keys in sorted(table.keys.items()):
        sha256.update(_RECORD_SEPARATOR.join((*columns, *keys.to_pylist(), "")).encode())
    return sha256.hexdigest()
