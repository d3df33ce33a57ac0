"""Scheduling policies: FLARE's device selection (Problem P4, Theorem 4, Algorithm 1), and those it is compared with.

The others are of section V-C; all of them keep the deadline.
"""

import numpy as np
import numpy.typing as npt

from vfl.horizontal.wireless.bandwidth import (
    allocate,
    drop_neediest,
    needed_bands,
    quickest,
    split_evenly,
    transmission_seconds,
)
from vfl.horizontal.wireless.cell import Cell, Indices, Schedule

ROUNDING = 1e-12
"""Relative error far above that of the sums here and far below the effect of one step more or less."""


def greedy(cell: Cell, gamma: float) -> Schedule:
    """Select devices as long as the objective falls and the deadline holds; return an empty schedule if none meets it.

    The first is the device of most steps that meets the deadline by itself (choice: among equals the one that is done
    first). Then, of those that lower the objective (gamma = eta_g / L), always the one with the shortest round.
    """
    needs_K = needed_bands(cell, cell.deadline_s)
    reachable = np.flatnonzero(needs_K <= cell.bandwidth_hz)
    if not len(reachable):
        return allocate(cell, [])
    # The objective of one device is (1 + gamma) / tau_i: least for the most steps.
    alone_s_K = cell.compute_s_K + transmission_seconds(cell, cell.bandwidth_hz)
    selected = [int(min(reachable, key=lambda device: (-cell.steps_K[device], alone_s_K[device])))]
    idle_K = np.ones(len(cell), dtype=bool)
    while True:
        idle_K[selected[-1]] = False
        fits_K = needs_K[selected].sum() + needs_K <= cell.bandwidth_hz
        candidates = np.flatnonzero(idle_K & fits_K & lowers_objective(cell.steps_K, cell.steps_K[selected], gamma))
        if not len(candidates):
            return allocate(cell, selected)
        selected.append(quickest(cell, selected, candidates))


def lowers_objective(steps_K: Indices, steps_Q: Indices, gamma: float) -> npt.NDArray[np.bool_]:
    """Return whether each device's inclusion in the Q chosen ones would lower the objective, bool [K] (eq. 24).

    A device that leaves it unchanged, up to the rounding of the sums, does not lower it.
    """
    count = len(steps_Q)
    factor = (count**2 + (2 * gamma + 1) * count + gamma) / (count**2 * (count + gamma + 1))
    return 1 / steps_K < factor * (1 / steps_Q).sum() * (1 - ROUNDING)


def pre_tuned(cell: Cell, order_K: Indices, count: int) -> Schedule:
    """Return PS's schedule: ``count`` random devices, the first of a random order.

    Choice: if these cannot all meet the deadline, those with the largest needs are left out.
    """
    return allocate(cell, drop_neediest(cell, needed_bands(cell, cell.deadline_s), order_K[:count]))


def channel_proportion(cell: Cell) -> Schedule:
    """Return CP's schedule: the devices with the best channels, one after another until the deadline is reached."""
    return _longest_prefix(cell, np.argsort(-cell.snr_hz_K, kind="stable"))


def computation_minimization(cell: Cell) -> Schedule:
    """Return CM's schedule: the largest set of the devices that compute least, by binary search."""
    return _longest_prefix(cell, np.argsort(cell.compute_s_K, kind="stable"))


def device_maximization(cell: Cell) -> Schedule:
    """Return DM's schedule: repeatedly the device that lengthens the round least, over an even split of the band."""
    selected: list[int] = []
    while len(selected) < len(cell):
        # One device more leaves each a smaller band, which slows those already chosen as well.
        seconds_K = cell.compute_s_K + transmission_seconds(cell, cell.bandwidth_hz / (len(selected) + 1))
        idle_s_K = seconds_K.copy()
        idle_s_K[selected] = np.inf
        best = int(idle_s_K.argmin())  # the first to finish lengthens the round least
        if seconds_K[[*selected, best]].max() > cell.deadline_s:
            break
        selected.append(best)
    return split_evenly(cell, selected)


def _longest_prefix(cell: Cell, order_K: Indices) -> Schedule:
    """Return the longest beginning of an order whose needs fit the band, by binary search, as needs only grow."""
    needs = np.cumsum(needed_bands(cell, cell.deadline_s)[order_K])
    return allocate(cell, order_K[: np.searchsorted(needs, cell.bandwidth_hz, side="right")])
