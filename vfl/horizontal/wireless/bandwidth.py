"""The band of each selected device such that all finish together, as early as possible (Problem P3, Theorem 3).

With z = snr / b, the signal-to-noise ratio over the device's band, sending takes z / ln(1 + z) times the least
possible ``S ln 2 / snr``. Everything here is in terms of that factor's excess u over 1: where G = 1 / (1 + u), the
paper's upsilon, comes near 1, u keeps the digits that 1 - G has lost.

Shapes: K devices, M of them selected.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# scipy has no types.

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.special import lambertw

from vfl.horizontal.wireless.cell import Cell, Floats, Indices, Schedule

SERIES_BELOW = 1e-4
"""Bound of u or z below which a series is more exact than the closed form, which cancels."""
NEWTON_STEPS = 2
"""Steps of Newton's method; each doubles the number of correct digits."""


def allocate(cell: Cell, devices: Sequence[int] | Indices) -> Schedule:
    """Return the shortest possible round of these devices: bands that sum to B and equal finishing times.

    The round's length is found by bisection (Brent's method), measured from the time that an unlimited band would give,
    so that it keeps all its digits even if it is very close to that time.
    """
    devices_M = np.sort(np.asarray(devices, dtype=np.int64))
    selected = cell.take(devices_M)
    if not len(selected):
        return _make_schedule(cell, devices_M, np.empty(0))
    least_M = selected.least_transmission_s
    earliest_M = selected.compute_s_K + least_M
    gap_M = earliest_M.max() - earliest_M

    def bands(beyond_s: float) -> Floats:
        return _divide_band(selected.snr_hz_K, snr_of_excess((beyond_s + gap_M) / least_M))

    def balance(beyond_s: float) -> float:
        return cell.bandwidth_hz / float(bands(beyond_s).sum()) - 1

    # [0, latest_s] holds the root: at 0 the device that is last even so would need an infinite band.
    even_M = excess_of_snr(selected.snr_hz_K * len(selected) / cell.bandwidth_hz)
    latest_s = float((even_M * least_M - gap_M).max())  # what an even split reaches is never better
    beyond_s = _bisect_root(balance, 0.0, latest_s)
    bands_M = bands(beyond_s)
    # What the root's rounding leaves of the band, or takes too much, is shared in proportion.
    return _make_schedule(cell, devices_M, bands_M * (cell.bandwidth_hz / bands_M.sum()))


def split_evenly(cell: Cell, devices: Sequence[int] | Indices) -> Schedule:
    """Return the round of these devices with a band of B / M each."""
    devices_M = np.sort(np.asarray(devices, dtype=np.int64))
    return _make_schedule(cell, devices_M, np.full(len(devices_M), cell.bandwidth_hz / max(1, len(devices_M))))


def needed_bands(cell: Cell, seconds: float) -> Floats:
    """Return the least band [K] with which each device is done within ``seconds``; infinite if none suffices."""
    least_K = cell.least_transmission_s
    # Below 0 not even an unlimited band is enough: as 0, which makes the band infinite.
    excess_K = (seconds - cell.compute_s_K - least_K) / least_K
    return _divide_band(cell.snr_hz_K, snr_of_excess(np.maximum(excess_K, 0.0)))


def drop_neediest(cell: Cell, needs_K: Floats, devices: Indices) -> Indices:
    """Return the devices without those of the largest needs, as many as it takes for the needs to fit the band.

    ``needs_K`` are the bands that meet the deadline exactly.
    """
    by_need = devices[np.argsort(needs_K[devices], kind="stable")]
    return by_need[np.cumsum(needs_K[by_need]) <= cell.bandwidth_hz]


def quickest(cell: Cell, selected: Sequence[int] | Indices, candidates: Indices) -> int:
    """Return the candidate whose inclusion makes the shortest round; all must be possible by the deadline.

    One bisection suffices for all: with candidate i the round has the length t at which the needs of the chosen devices
    and of i sum to B. All needs fall with t, so the shortest of these rounds is the one with the smallest need.
    """
    selected_cell, candidate_cell = cell.take(selected), cell.take(candidates)

    def balance(seconds: float) -> float:
        needed_hz = needed_bands(selected_cell, seconds).sum() + needed_bands(candidate_cell, seconds).min()
        return cell.bandwidth_hz / float(needed_hz) - 1

    seconds = _bisect_root(balance, 0.0, cell.deadline_s)
    return int(candidates[needed_bands(candidate_cell, seconds).argmin()])


def transmission_seconds(cell: Cell, bandwidth_hz: float | Floats) -> Floats:
    """Return the seconds [K] that every device's update takes over a band (one for all, or [K])."""
    return cell.least_transmission_s * (1 + excess_of_snr(cell.snr_hz_K / bandwidth_hz))


def excess_of_snr(snr: Floats) -> Floats:
    """Return u = z / ln(1 + z) - 1 of signal-to-noise ratios z >= 0."""
    # z / ln(1 + z) = 1 + z/2 - z^2/12 + z^3/24 - ...
    with np.errstate(divide="ignore", invalid="ignore"):  # in the branch that is not taken
        return np.where(
            snr < SERIES_BELOW, snr * (1 / 2 - snr * (1 / 12 - snr / 24)), (snr - np.log1p(snr)) / np.log1p(snr)
        )


def snr_of_excess(excess: Floats) -> Floats:
    """Return z with z / ln(1 + z) = 1 + u for u >= 0: the inverse of ``excess_of_snr``.

    Theorem 3 by the lower branch of Lambert's W: 1 + z = -W_{-1}(-G exp(-G)) / G (on W_0 this is 1, and z = 0),
    polished by Newton's method, because near G = 1 the branch point takes half of W's digits.
    """
    share = 1 / (1 + excess)
    with np.errstate(divide="ignore", invalid="ignore"):  # in the branch that is not taken
        snr = -lambertw(-share * np.exp(-share), -1).real * (1 + excess) - 1
        for _ in range(NEWTON_STEPS):
            snr = snr - (np.log1p(snr) - snr * share) / (1 / (1 + snr) - share)
    # The inverse of that series: z = 2u + 2u^2/3 - 2u^3/9 + ...
    return np.where(excess < SERIES_BELOW, excess * (2 + excess * (2 / 3 - excess * 2 / 9)), snr)


def _bisect_root(increasing: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of the function, or ``high`` if rounding leaves it below 0 even there."""
    if increasing(high) <= 0:
        return high
    smallest, rounding = np.finfo(float).tiny, np.finfo(float).eps
    root = brentq(increasing, low, high, xtol=smallest, rtol=4 * rounding, maxiter=1000)
    return float(root)  # pyright: ignore[reportArgumentType]  # a tuple only where full_output asks for it


def _divide_band(snr_hz: Floats, snr: Floats) -> Floats:
    """Return bands b = (p h^2 / N0) / z, infinite if z is 0: such a device would need an unlimited band."""
    with np.errstate(divide="ignore"):
        return snr_hz / snr


def _make_schedule(cell: Cell, devices_M: Indices, bands_M: Floats) -> Schedule:
    selected = cell.take(devices_M)
    return Schedule(devices_M, bands_M, selected.compute_s_K, transmission_seconds(selected, bands_M))
