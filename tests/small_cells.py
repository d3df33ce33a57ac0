"""Random cells small enough to search exhaustively, the best set of devices, and the distance of selections from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scripts.lab.benchmarks.scheduling import paper_cell
from vfl.horizontal.wireless.bandwidth import allocate, needed_bands
from vfl.horizontal.wireless.cell import Cell, Floats, Indices, Schedule, objective
from vfl.horizontal.wireless.policies import greedy
from vfl.horizontal.wireless.scheduling import linear_program

MOST_DEVICES = 10
MOST_SEARCHED = 16


def exhaustive(cell: Cell, gamma: float) -> Schedule:
    """Return the schedule of least objective among all that meet the deadline.

    Raises ValueError for more than 16 devices.
    """
    if len(cell) > MOST_SEARCHED:
        raise ValueError(f"cell: trying all sets is for up to {MOST_SEARCHED} devices (got {len(cell)})")
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


@dataclass(frozen=True, eq=False)
class Gap:
    """One selection against the best set, for one gamma."""

    selection: str
    gamma: float
    excess: Floats
    """Objective over the best one's, minus 1, of every case in which some device meets the deadline."""


def measure_gaps(cases: int, gammas: Sequence[float]) -> list[Gap]:
    """Return the gaps of greedy selection and of the linear program over the same random cells."""
    rng = np.random.default_rng(0)
    cells = [random_cell(rng) for _ in range(cases)]
    programmed = [linear_program(cell) for cell in cells]  # knows no gamma
    gaps: list[Gap] = []
    for gamma in gammas:
        best = [_objective(cell, exhaustive(cell, gamma), gamma) for cell in cells]
        selections = {"greedy": [greedy(cell, gamma) for cell in cells], "linear program": programmed}
        for name, schedules in selections.items():
            own = [_objective(cell, schedule, gamma) for cell, schedule in zip(cells, schedules, strict=True)]
            # Infinite: not even the best set has a device that meets the deadline.
            excess = [value / least - 1 for value, least in zip(own, best, strict=True) if np.isfinite(least)]
            gaps.append(Gap(name, gamma, np.array(excess)))
    return gaps


def random_cell(rng: np.random.Generator) -> Cell:
    """Return a cell of 1 to 10 devices with the paper's settings, and a deadline of 0.2 to 3 s."""
    cell = paper_cell(rng, int(rng.integers(1, MOST_DEVICES + 1)))
    return replace(cell, deadline_s=float(rng.uniform(0.2, 3)))


def _objective(cell: Cell, schedule: Schedule, gamma: float) -> float:
    return objective(cell.steps_K[schedule.devices_M], gamma)
