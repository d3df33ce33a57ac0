"""The result of a match (``lvfl align``), one file per owner: the places of its rows in the common order.

    file        metadata                                        tensors
    any name    holds: match, party, order, keys, test, join    rows; at the label owner has.OWNER of every other owner

rows: int64 [N], the owner's row of each sample, counted from 0 in its table's order; -1 if it has none. has.OWNER:
uint8 [N], 1 if that owner has a row. ``order`` is a sha256 that all files of a match share and no other match has,
``keys`` the sha256 of the matched keys and of the owners who use each list, ``test`` the number of test samples, which
are the last ones, or empty if each owner draws them by the seed.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from vfl.data.tables.columns import Indices, Table
from vfl.runs.atomic import follow_links, write_durably, write_together

MATCH = "match"
HAS = "has."
_RECORD_SEPARATOR = "\x1e"


@dataclass(frozen=True, eq=False)
class Match:
    """Result of a match, as one owner knows it."""

    party: str
    order: str
    """sha256 that identifies this match."""
    keys: str
    """`keys_digest` of the matched table."""
    join: str
    """inner or left"""
    rows: Indices
    """int64 [N]; -1 where the owner has no row."""
    test: int | None
    """Number of test samples, which are the last ones; None: drawn by the seed."""
    others: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict[str, npt.NDArray[np.bool_]])
    """Label owner only: by other owner, bool [N], True if it has a row for the sample."""

    def tests(self, rows: Indices) -> bool:
        """Return whether, at the label owner, the test samples are exactly these rows of its table."""
        if self.test is None:
            return False
        first = len(self.rows) - self.test
        return np.array_equal(np.flatnonzero(np.isin(self.rows, rows)), np.arange(first, len(self.rows)))


def write_match(path: Path, match: Match) -> None:
    """Write the file (0600), or replace it. Raises OSError, with an earlier file untouched."""
    test = "" if match.test is None else str(match.test)
    metadata = {"holds": MATCH, "party": match.party, "order": match.order, "keys": match.keys, "join": match.join}
    tensors = {"rows": match.rows} | {f"{HAS}{owner}": has.astype(np.uint8) for owner, has in match.others.items()}
    content = save(tensors, metadata | {"test": test})
    path = follow_links(path)
    write_together(path.parent, {path.name: partial(write_durably, chunks=[content], mode=0o600)}, overwrite=True)


def read_match(path: Path, party: str) -> Match:
    """Read the file of ``party``. Raises ValueError, one line, for anything else."""
    where = f"data.tables.{party}.match"
    try:
        with cast(Any, safe_open(path, framework="np")) as file:  # the library's is untyped
            metadata: dict[str, str] = file.metadata() or {}
            if metadata.get("holds") != MATCH or "rows" not in file.keys():  # noqa: SIM118 - no mapping
                raise ValueError(f"{where}: {path} holds no match; name the file that lvfl align wrote")
            rows = np.array(file.get_tensor("rows"))
            masks = [name for name in file.keys() if name.startswith(HAS)]  # noqa: SIM118
            others = {name.removeprefix(HAS): file.get_tensor(name).astype(bool) for name in masks}
    except OSError as error:
        raise ValueError(f"{where}: {path} cannot be read ({error.strerror or error}); run lvfl align") from None
    except SafetensorError as error:
        raise ValueError(f"{where}: {path} is no safetensors file, or damaged ({error})") from None
    if metadata.get("party") != party:
        raise ValueError(f"{where}: {path} is the match of {metadata.get('party')!r}, not of {party!r}")
    if rows.dtype != np.int64 or rows.ndim != 1 or any(has.shape != rows.shape for has in others.values()):
        raise ValueError(f"{where}: {path}: rows are {rows.dtype} {list(rows.shape)}, not int64 [N]")
    order, keys, join, test = (metadata.get(name, "") for name in ("order", "keys", "join", "test"))
    return Match(party, order, keys, join, rows, int(test) if test else None, others)


def keys_digest(table: Table, foreign: Mapping[str, tuple[str, ...]] | None = None) -> str:
    """Return the sha256 of all keys of a table, in its order, and of the ``foreign`` keys by owner."""
    # No key holds the separator (columns.CONTROL), so that different lists of keys are different texts.
    sha256 = hashlib.sha256()
    for columns, keys in sorted(table.keys.items()):
        sha256.update(_RECORD_SEPARATOR.join((*columns, *keys.to_pylist(), "")).encode())
    for owner, columns in sorted((foreign or {}).items()):
        sha256.update(_RECORD_SEPARATOR.join((owner, *columns, "")).encode())
    return sha256.hexdigest()
