"""Time of scheduling a round of FLARE: optimal bands against an even split, greedy selection against one search."""

from statistics import median

import numpy as np

from scripts.lab.benchmarks.paired import Options, Requirement, Result, interleave
from vfl.horizontal.wireless.bandwidth import allocate, split_evenly
from vfl.horizontal.wireless.cell import Cell
from vfl.horizontal.wireless.channel import snr_hz
from vfl.horizontal.wireless.config import WirelessConfig
from vfl.horizontal.wireless.policies import greedy
from vfl.horizontal.wireless.scheduling import linear_program

WARM_UP = 3
BANDS_MS = {40: None, 1000: 50.0}
"""Largest median of the optimal bands, by devices."""
GREEDY_MS = 100.0
"""Largest median of a selection out of 40."""
GAMMAS = (1.0, 10.0)
DEADLINES_S = (0.4, 1.0, 3.0)
BATCH_SIZE = 40


def benchmark_scheduling(options: Options) -> list[Result]:
    """Measure bands for 40 and 1,000 devices, and the selection out of 40 for several gammas and deadlines."""
    results = [_bands(devices, options.pairs) for devices in BANDS_MS]
    return results + [_selection(gamma, each, options.pairs) for gamma in GAMMAS for each in DEADLINES_S]


def _bands(devices: int, pairs: int) -> Result:
    cell = _cell(devices, deadline_s=1.0)
    everyone = np.arange(devices)
    sides = {"optimal": lambda: allocate(cell, everyone), "even": lambda: split_evenly(cell, everyone)}
    raw = interleave(sides, pairs, WARM_UP)
    target_ms = BANDS_MS[devices]
    return Result(
        group="bands",
        case=f"{devices} devices",
        raw=raw,
        ratio_of=("optimal", "even"),
        details={
            "optimal_round_s": allocate(cell, everyone).seconds,
            "even_round_s": split_evenly(cell, everyone).seconds,
        },
        requirement=None if target_ms is None else Requirement(1e3 * median(raw["optimal"]), "<=", target_ms, " ms"),
    )


def _selection(gamma: float, deadline_s: float, pairs: int) -> Result:
    cell = _cell(40, deadline_s)
    raw = interleave({"greedy": lambda: greedy(cell, gamma), "program": lambda: linear_program(cell)}, pairs, WARM_UP)
    return Result(
        group="selection out of 40 devices",
        case=f"gamma {gamma:g}, t_thr {deadline_s:g} s",
        raw=raw,
        ratio_of=("greedy", "program"),
        details={"selected": len(greedy(cell, gamma).devices_M)},
        requirement=Requirement(1e3 * median(raw["greedy"]), "<=", GREEDY_MS, " ms"),
    )


def _cell(devices: int, deadline_s: float) -> Cell:
    """Return a random cell with the paper's settings and a fixed seed; above 40 devices the update shrinks."""
    return paper_cell(np.random.default_rng(0), devices, deadline_s, 1e7 * min(1.0, 40 / devices))


def paper_cell(rng: np.random.Generator, devices: int, deadline_s: float = 1.0, update_bits: float = 1e7) -> Cell:
    """Return a cell of ``devices`` devices with the paper's settings."""
    settings = WirelessConfig()
    steps_K = np.maximum(1, np.ceil(rng.exponential(3, devices))).astype(np.int64)
    cpu_hz_K = rng.uniform(settings.cpu_min_hz, settings.cpu_max_hz, devices)
    distance_m_K = rng.uniform(settings.distance_min_m, settings.distance_max_m, devices)
    compute_s_K = steps_K * settings.cycles_per_sample * BATCH_SIZE / cpu_hz_K
    return Cell(steps_K, compute_s_K, snr_hz(settings, distance_m_K), update_bits, settings.bandwidth_hz, deadline_s)
