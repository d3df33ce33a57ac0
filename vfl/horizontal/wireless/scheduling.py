"""Scheduling for an algorithm: selection and length of a round, and its metrics for TensorBoard."""

import warnings
from collections.abc import Callable

import numpy as np
import torch

from vfl.base.random import generator
from vfl.config.horizontal import HorizontalConfig
from vfl.horizontal.algorithm import Selection
from vfl.horizontal.devices import RoundPlan
from vfl.horizontal.local import client_name
from vfl.horizontal.wireless.cell import Cell, Floats, Schedule
from vfl.horizontal.wireless.channel import Network
from vfl.horizontal.wireless.linear_program import linear_program
from vfl.horizontal.wireless.policies import (
    channel_proportion,
    computation_minimization,
    device_maximization,
    greedy,
    pre_tuned,
)
from vfl.runs.loop import Metrics

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
                f"round {round_index} is empty: {why} (later empty rounds are not reported)",
                stacklevel=2,
            )
