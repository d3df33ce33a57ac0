"""Device selection by a linear program, for gamma = eta_g / L near 0 (Problem P5).

theta = 1 / (1'a), alpha = theta a and beta = theta b make the mean of 1/tau_i linear. As nothing in that mean rewards a
second device, its optimum is one device: the one of most steps that meets the deadline by itself.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# scipy has no types.

import numpy as np
from scipy.optimize import linprog

from vfl.horizontal.wireless.bandwidth import allocate, drop_neediest, needed_bands
from vfl.horizontal.wireless.cell import Cell, Floats, Schedule


def linear_program(cell: Cell) -> Schedule:
    """Solve P5, round, repair, and give the devices their optimal bands; empty if no device meets the deadline.

    Choices: if rounding leaves no device, the one of largest alpha is taken; from too large a set the devices with the
    largest needs are removed; bands are Theorem 3's instead of the program's, which only meet the deadline.
    """
    needs_K = needed_bands(cell, cell.deadline_s)
    reachable = np.flatnonzero(needs_K <= cell.bandwidth_hz)
    if not len(reachable):
        return allocate(cell, [])
    alpha, theta = _solve_program(1 / cell.steps_K[reachable], needs_K[reachable] / cell.bandwidth_hz)
    selected = np.round(alpha / theta) >= 1
    if not selected.any():
        selected[alpha.argmax()] = True
    return allocate(cell, drop_neediest(cell, needs_K, reachable[selected]))


def _solve_program(inverse_steps_K: Floats, needs_K: Floats) -> tuple[Floats, float]:
    """Return alpha [K] and theta; needs are in units of B, so that the program is well scaled.

    minimise nu'alpha subject to alpha_i c_i <= beta_i <= alpha_i, sum beta <= theta, sum alpha = 1; theta is at least
    1 / K, as at most K devices are selected.
    """
    count = len(needs_K)
    eye, zeros = np.eye(count), np.zeros((count, 1))
    at_most_zero = np.block(  # columns: alpha [K], beta [K], theta
        [
            [np.diag(needs_K), -eye, zeros],  # a selected device has the band that it needs
            [-eye, eye, zeros],  # one that is left out has none
            [np.zeros((1, count)), np.ones((1, count)), -np.ones((1, 1))],  # together they have the band
        ]
    )
    solution = linprog(
        np.concatenate([inverse_steps_K, np.zeros(count + 1)]),
        A_ub=at_most_zero,
        b_ub=np.zeros(len(at_most_zero)),
        A_eq=np.concatenate([np.ones(count), np.zeros(count + 1)])[None],
        b_eq=[1.0],
        bounds=[(0, 1)] * count + [(0, None)] * count + [(1 / count, 1)],
        method="highs",
    )
    assert solution.success, solution.message  # a single reachable device is always a solution
    return solution.x[:count], float(solution.x[-1])
