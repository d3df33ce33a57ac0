"""Scheduling for an algorithm: selection and length of a round, and its metrics for TensorBoard."""
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# scipy has no types.

import warnings
from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import linprog

from vfl.base.random import generator
from vfl.horizontal.algorithm import Selection
from vfl.horizontal.config import HorizontalConfig
from vfl.horizontal.devices import RoundPlan
from vfl.horizontal.local import client_name
from vfl.horizontal.wireless.bandwidth import allocate, drop_neediest, needed_bands
from vfl.horizontal.wireless.cell import Cell, Floats, Schedule
from vfl.horizontal.wireless.channel import Network
from vfl.horizontal.wireless.policies import (
    channel_proportion,
    computation_minimization,
    device_maximization,
    greedy,
    pre_tuned,
)
from vfl.runs.loop import Metrics


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


Policy = Callable[[Cell, torch.Generator], Schedule]
SHOW_EACH_UP_TO = 40
"""Largest number of clients for which every selected one has its own curves."""


def build_policy(horizontal: HorizontalConfig, lipschitz: float) -> Policy:
    """Return the policy of ``horizontal.wireless.policy`` (not ``none``); ``lipschitz`` is L of gamma = eta_g / L."""
    gamma = horizontal.server_learning_rate / lipschitz
    policies: dict[str, Policy] = {
        "greedy": lambda cell, draw: greedy(cell, gamma),
        "linear_program": lambda cell, draw: linear_program(cell),
        "pre_tuned": lambda cell, draw: pre_tuned(
            cell, torch.randperm(len(cell), generator=draw).numpy(), horizontal.clients_per_round
        ),
        "channel_proportion": lambda cell, draw: channel_proportion(cell),
        "device_maximization": lambda cell, draw: device_maximization(cell),
        "computation_minimization": lambda cell, draw: computation_minimization(cell),
    }
    return policies[horizontal.wireless.policy]


class Scheduler:
    """Selects clients by a policy over a network.

    gamma = eta_g / L for the policy; ``upload_bits`` is used unless the settings give a number.
    """

    def __init__(
        self, horizontal: HorizontalConfig, lipschitz: float, batch_size: int, seed: int, upload_bits: float
    ) -> None:
        self.horizontal = horizontal
        self.seed = seed
        bits = horizontal.wireless.update_bits or upload_bits
        self.network = Network(horizontal.wireless, horizontal.clients, batch_size, bits, seed)
        self.policy = build_policy(horizontal, lipschitz)
        self.warned = False

    def select(self, round_index: int, plan: RoundPlan) -> Selection:
        """Return the round's clients and its length; a round in which nobody can take part lasts until the deadline."""
        # Policies number the devices of the cell that they are given: their places among the candidates.
        candidates = plan.candidates(self.horizontal.selection.min_steps).numpy()
        cell = self.network.cell(round_index, plan.steps_N.numpy()).take(candidates)
        schedule = self.policy(cell, generator(self.seed, "selection", round_index))
        clients = [int(client) for client in candidates[schedule.devices_M]]
        if not clients:
            self._warn_of_empty_round(round_index, cell)
            return Selection([], cell.deadline_s)
        return Selection(clients, schedule.seconds, self._metrics(clients, schedule))

    def _metrics(self, clients: list[int], schedule: Schedule) -> Metrics:
        quantities: dict[str, Floats] = {
            "bandwidth_share": schedule.bandwidth_hz_M / self.horizontal.wireless.bandwidth_hz,
            "compute_s": schedule.compute_s_M,
            "transmission_s": schedule.transmission_s_M,
        }
        metrics: Metrics = {}
        for name, values_M in quantities.items():
            statistics = {"mean": np.mean(values_M), "min": np.min(values_M), "max": np.max(values_M)}
            metrics |= {f"{name}/{statistic}": float(value) for statistic, value in statistics.items()}
            if self.horizontal.clients <= SHOW_EACH_UP_TO:
                pairs = zip(clients, values_M, strict=True)
                metrics |= {f"{name}/{client_name(client)}": float(value) for client, value in pairs}
        return metrics

    def _warn_of_empty_round(self, round_index: int, cell: Cell) -> None:
        if not self.warned:
            self.warned = True
            settings = self.horizontal.wireless
            late = (
                f"{settings.policy} finds none of {len(cell)} available clients that meets "
                f"horizontal.wireless.deadline_s = {cell.deadline_s:g}; raise it"
            )
            nobody = "no client is available; raise horizontal.devices.availability"
            why = late if len(cell) else nobody
            warnings.warn(
                f"round {round_index + 1} is empty: {why} (later empty rounds are not reported)",
                stacklevel=2,
            )
