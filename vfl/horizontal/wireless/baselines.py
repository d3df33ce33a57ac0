"""The scheduling policies that FLARE is compared with (section V-C); all of them keep the deadline."""

import numpy as np

from vfl.horizontal.wireless.bandwidth import allocate, drop_neediest, needed_bands, split_evenly, transmission_seconds
from vfl.horizontal.wireless.cell import Cell, Indices, Schedule


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
    chosen: list[int] = []
    while len(chosen) < len(cell):
        # One device more leaves each a smaller band, which slows those already chosen as well.
        seconds_K = cell.compute_s_K + transmission_seconds(cell, cell.bandwidth_hz / (len(chosen) + 1))
        idle_s_K = seconds_K.copy()
        idle_s_K[chosen] = np.inf
        best = int(idle_s_K.argmin())  # the first to finish lengthens the round least
        if seconds_K[[*chosen, best]].max() > cell.deadline_s:
            break
        chosen.append(best)
    return split_evenly(cell, chosen)


def _longest_prefix(cell: Cell, order_K: Indices) -> Schedule:
    """Return the longest beginning of an order whose needs fit the band, by binary search, as needs only grow."""
    needs = np.cumsum(needed_bands(cell, cell.deadline_s)[order_K])
    return allocate(cell, order_K[: np.searchsorted(needs, cell.bandwidth_hz, side="right")])
