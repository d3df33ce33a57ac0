"""The server's join of all lists, multiplied by the product of all scalars: equal keys are equal points.

Shapes: N samples, the label owner's rows that stay.
"""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Literal

import numpy as np

from vfl.data.tables.arrow import Column, pa, pc
from vfl.data.tables.keys import Rows
from vfl.parties.matching.group import POINT_BYTES

How = Literal["inner", "left"]


def as_column(points: bytes) -> Column:
    """Return concatenated points as a column."""
    column = pa.FixedSizeBinaryArray.from_buffers
    return column(pa.binary(POINT_BYTES), len(points) // POINT_BYTES, [None, pa.py_buffer(points)])


def has_doubled(points: Column) -> bool:
    """Return whether a point occurs twice."""
    return pc.count_distinct(points).as_py() < len(points)


def join_points(
    leader: str, wanted: Mapping[str, Column], places: Mapping[str, Rows], own: Mapping[str, Column], how: How
) -> dict[str, Rows]:
    """Return by owner the index in its list of each sample, int64 [N]; -1 if it has none.

    Args:
        leader: the label owner; its indices are those of its samples.
        wanted: by other owner, the label owner's list of keys under which that owner knows samples.
        places: by other owner, each sample's index in ``wanted``.
        own: by other owner, its list.
        how: all samples (left), or those that all owners have (inner).
    """
    found: dict[str, Rows] = {}
    for owner, points in own.items():
        # First where each key of the label owner's list is in the owner's own, then by sample.
        place_of = np.asarray(pc.fill_null(pc.index_in(wanted[owner], value_set=points), -1)).astype(np.int64)
        found[owner] = place_of[places[owner]]
    samples = len(next(iter(places.values())))
    kept = np.ones(samples, bool) if how == "left" else np.logical_and.reduce([rows >= 0 for rows in found.values()])
    return {leader: np.flatnonzero(kept)} | {owner: rows[kept] for owner, rows in found.items()}


def order_digest(rows: Mapping[str, Rows]) -> str:
    """Return a sha256 of all rows and 32 random bytes: it identifies an order and reveals nothing about it."""
    sha256 = hashlib.sha256(secrets.token_bytes(32))
    for owner in sorted(rows):
        sha256.update(rows[owner].tobytes())
    return sha256.hexdigest()
