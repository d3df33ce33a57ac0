"""FLARE's device selection (Problem P4, Theorem 4, Algorithm 1)."""

import numpy as np
import numpy.typing as npt

from vfl.horizontal.wireless.bandwidth import allocate, needed_bands, quickest, transmission_seconds
from vfl.horizontal.wireless.cell import Cell, Indices, Schedule

ROUNDING = 1e-12
"""Relative error far above that of the sums here and far below the effect of one step more or less."""


def greedy(cell: Cell, gamma: float) -> Schedule:
    """Select devices as long as the objective falls and the deadline holds; return an empty schedule if none meets it.

    The first is the device of most steps that can meet the deadline alone (choice: among equals the one that is done
    first). Then, of those that lower the objective (gamma = eta_g / L), always the one with the shortest round.
    """
    needs_K = needed_bands(cell, cell.deadline_s)
    reachable = np.flatnonzero(needs_K <= cell.bandwidth_hz)
    if not len(reachable):
        return allocate(cell, [])
    # The objective of one device is (1 + gamma) / tau_i: least for the most steps.
    alone_s_K = cell.compute_s_K + transmission_seconds(cell, cell.bandwidth_hz)
    chosen = [int(min(reachable, key=lambda device: (-cell.steps_K[device], alone_s_K[device])))]
    idle_K = np.ones(len(cell), dtype=bool)
    while True:
        idle_K[chosen[-1]] = False
        fits_K = needs_K[chosen].sum() + needs_K <= cell.bandwidth_hz
        candidates = np.flatnonzero(idle_K & fits_K & lowers_objective(cell.steps_K, cell.steps_K[chosen], gamma))
        if not len(candidates):
            return allocate(cell, chosen)
        chosen.append(quickest(cell, chosen, candidates))


def lowers_objective(steps_K: Indices, steps_Q: Indices, gamma: float) -> npt.NDArray[np.bool_]:
    """Return whether each device's inclusion in the Q chosen ones would lower the objective, bool [K] (eq. 24).

    A device that leaves it unchanged, up to the rounding of the sums, does not lower it.
    """
    count = len(steps_Q)
    factor = (count**2 + (2 * gamma + 1) * count + gamma) / (count**2 * (count + gamma + 1))
    return 1 / steps_K < factor * (1 / steps_Q).sum() * (1 - ROUNDING)
