"""The best set of devices by exhaustive search, to measure selections against."""

import numpy as np

from vfl.horizontal.wireless.bandwidth import allocate, needed_bands
from vfl.horizontal.wireless.cell import Cell, Indices, Schedule

MOST_DEVICES = 16


def exhaustive(cell: Cell, gamma: float) -> Schedule:
    """Return the schedule of least objective among all that meet the deadline.

    Raises ValueError for more than 16 devices.
    """
    if len(cell) > MOST_DEVICES:
        raise ValueError(f"cell: trying all sets is for up to {MOST_DEVICES} devices (got {len(cell)})")
    needs_K = needed_bands(cell, cell.deadline_s)
    reachable = np.flatnonzero(needs_K <= cell.bandwidth_hz)
    if not len(reachable):
        return allocate(cell, [])
    numbers = np.arange(1, 2 ** len(reachable), dtype=np.int64)[:, None]
    sets: Indices = (numbers >> np.arange(len(reachable))) & 1  # bit i: the i-th reachable device is in
    counts = sets.sum(axis=1)
    # Eq. 19a of every set at once, and infinite for sets whose needs do not fit the band.
    objectives = (1 / counts + gamma / counts**2) * (sets @ (1 / cell.steps_K[reachable]))
    objectives[sets @ needs_K[reachable] > cell.bandwidth_hz] = np.inf
    return allocate(cell, reachable[sets[objectives.argmin()] == 1])
