"""FLARE.

Xiao et al., "FLARE: A New Federated Learning Framework with Adjustable Learning Rates over Resource-Constrained
Wireless Networks", eq. 2-9, Algorithm 2: clients do as many local steps as they can, at learning rates that bring
all of them equally far; a base station decides who takes part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from torch import Tensor

from vfl.config.settings import AboveZero
from vfl.horizontal.algorithm import Aggregate, FederatedAlgorithm, Federation, Report, Selection, Vectors
from vfl.horizontal.config import AlgorithmConfig, HorizontalConfig
from vfl.horizontal.devices import RoundPlan, Work
from vfl.horizontal.flat import message_bytes
from vfl.horizontal.local import LocalTask
from vfl.horizontal.wireless.scheduling import Scheduler

FIRST_STEPS = "first_steps"
"""Entry of the server's state: the local steps of all N clients in the first round."""


class FlareConfig(AlgorithmConfig):
    """FLARE's learning rates, eta_i = eta_l tau_bar / tau_i."""

    averages_equally = True
    tau_bar: Literal["mas", "mes", "fmas", "fmes", "none"] = "mas"
    """Reference number of steps (docs/flare.md)."""
    lipschitz: AboveZero = 1.0
    """L of gamma = server_learning_rate / L."""

    def ignored_beside(self, horizontal: HorizontalConfig) -> Mapping[str, str]:
        """Return the settings that have no effect if a policy schedules the cell."""
        policy = horizontal.wireless.policy
        reasons = {name: why for name, why in super().ignored_beside(horizontal).items() if name != "wireless"}
        if policy == "none":
            return reasons
        idle = ["selection.group_weights"]
        idle += [f"devices.{name}" for name in ("latency_s", "uplink_bytes_per_s", "downlink_bytes_per_s")]
        if policy != "pre_tuned":
            idle.append("clients_per_round")
        return reasons | dict.fromkeys(idle, f"horizontal.wireless.policy is {policy}")


class Flare(FederatedAlgorithm[FlareConfig]):
    """w += (eta_g / M) sum of (w_i - w), with w_i after tau_i steps at eta_i = eta_l tau_bar / tau_i.

    tau_bar is the maximum (MaS) or the mean (MeS) over the M selected clients of tau_i in this round, or in the
    first round (FMaS, FMeS), when all clients report it once and for all. With equal tau_i and eta_g = 1 every one of
    them is FedAvg with equal weights, bit for bit.
    """

    Settings = FlareConfig

    def __init__(self, settings: FlareConfig, federation: Federation) -> None:
        super().__init__(settings, federation)
        self.scheduler = None
        if self.horizontal.wireless.policy != "none":
            bits = 8 * message_bytes(self.horizontal, federation.model, self.uploads)
            self.scheduler = Scheduler(
                self.horizontal, settings.lipschitz, federation.batch_size, federation.seed, upload_bits=bits
            )

    def select(self, state: Vectors, round_index: int, plan: RoundPlan) -> Selection:
        """Choose by the wireless policy, or at random without one; in the first round store all clients' steps."""
        if self.scheduler is None:
            selection = super().select(state, round_index, plan)
        else:
            selection = self.scheduler.select(round_index, plan)
        return selection if FIRST_STEPS in state else replace(selection, state={FIRST_STEPS: plan.steps_N})

    def client_task(self, task: LocalTask, own: Vectors, state: Vectors, cohort: Sequence[Work]) -> LocalTask:
        """Adjust the learning rate to the client's number of steps."""
        if self.settings.tau_bar == "none":
            return task
        tau_bar = self._tau_bar(cohort, state[FIRST_STEPS])
        # The quotient first: with equal steps it is exactly 1, and the bits are FedAvg's (eq. 8).
        return replace(task, learning_rate=task.learning_rate * (tau_bar / len(task.batches)))

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return the mean change, with the clients' learning rates as metrics."""
        rates = [report.result.learning_rate for report in reports]
        statistics = {"mean": sum(rates) / len(rates), "min": min(rates), "max": max(rates)}
        metrics = {f"learning_rate/{name}": value for name, value in statistics.items()}
        return replace(super().aggregate(state, reports), metrics=metrics)

    def _tau_bar(self, cohort: Sequence[Work], first_steps_N: Tensor) -> float:
        if self.settings.tau_bar in ("mas", "mes"):
            steps = [work.steps for work in cohort]
        else:
            steps = [int(first_steps_N[work.client]) for work in cohort]
        return float(max(steps)) if self.settings.tau_bar in ("mas", "fmas") else sum(steps) / len(steps)
