"""Distance of the selections from the best set of devices, over random cells small enough for exhaustive search."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scripts.lab.exhaustive import exhaustive
from vfl.config.wireless import WirelessConfig
from vfl.horizontal.wireless.cell import Cell, Floats, Schedule, objective
from vfl.horizontal.wireless.channel import snr_hz
from vfl.horizontal.wireless.linear_program import linear_program
from vfl.horizontal.wireless.policies import greedy
from vfl.reports.markdown import table

MOST_DEVICES = 10
BATCH_SIZE = 40
QUANTILES = {0.5: "median", 0.75: "75%", 0.9: "90%", 0.99: "99%", 1.0: "worst"}


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


def paper_cell(rng: np.random.Generator, devices: int, deadline_s: float = 1.0, update_bits: float = 1e7) -> Cell:
    """Return a cell of ``devices`` devices with the paper's settings."""
    settings = WirelessConfig()
    steps_K = np.maximum(1, np.ceil(rng.exponential(3, devices))).astype(np.int64)
    cpu_hz_K = rng.uniform(settings.cpu_min_hz, settings.cpu_max_hz, devices)
    distance_m_K = rng.uniform(settings.distance_min_m, settings.distance_max_m, devices)
    compute_s_K = steps_K * settings.cycles_per_sample * BATCH_SIZE / cpu_hz_K
    return Cell(steps_K, compute_s_K, snr_hz(settings, distance_m_K), update_bits, settings.bandwidth_hz, deadline_s)


def gap_table(gaps: Sequence[Gap]) -> list[str]:
    """Return the distribution of every gap as Markdown."""
    rows: list[list[str]] = []
    for gap in gaps:
        values = [f"{np.quantile(gap.excess, quantile):.1%}" for quantile in QUANTILES]
        optimal = f"{np.mean(gap.excess < 1e-9):.0%}"
        rows.append([gap.selection, f"{gap.gamma:g}", f"{len(gap.excess)}", *values, optimal])
    return table(("selection", "gamma", "cases", *QUANTILES.values(), "optimal"), rows)


def _objective(cell: Cell, schedule: Schedule, gamma: float) -> float:
    return objective(cell.steps_K[schedule.devices_M], gamma)
