"""FLARE.

Xiao et al., "FLARE: A New Federated Learning Framework with Adjustable Learning Rates over Resource-Constrained
Wireless Networks", eq. 2-9, Algorithm 2: clients do as many local steps as they can, at learning rates that bring
all of them equally far; a base station decides who takes part.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from vfl.config import ExperimentConfig
from vfl.horizontal.algorithm import Aggregate, FederatedAlgorithm, Report, Selection, Vectors
from vfl.horizontal.devices import RoundPlan, Work
from vfl.horizontal.local import LocalTask
from vfl.horizontal.wireless.scheduling import Scheduler

FIRST_STEPS = "first_steps"
"""Entry of the server's state: the local steps of all N clients in the first round."""


class Flare(FederatedAlgorithm):
    """w += (eta_g / M) sum of (w_i - w), with w_i after tau_i steps at eta_i = eta_l tau_bar / tau_i.

    tau_bar is the maximum (MaS) or the mean (MeS) over the M selected clients of tau_i in this round, or in the
    first round (FMaS, FMeS), when all clients report it once and for all. With equal tau_i and eta_g = 1 every one of
    them is FedAvg with equal weights, bit for bit.

    Args:
        config: the experiment.
        samples_N: sample counts n_i, which FLARE does not weigh.
        upload_bits: of a client, which take time to send where ``horizontal.wireless`` describes a network.
    """

    def __init__(self, config: ExperimentConfig, samples_N: Sequence[int], upload_bits: float) -> None:
        super().__init__(config, samples_N)
        scheduled = self.settings.wireless.policy != "none"
        self.scheduler = Scheduler(config, upload_bits) if scheduled else None

    def select(self, state: Vectors, round_index: int, plan: RoundPlan) -> Selection:
        """Choose by the wireless policy, or at random without one; the first time note what every client reports."""
        if self.scheduler is None:
            selection = super().select(state, round_index, plan)
        else:
            selection = self.scheduler.select(round_index, plan)
        return selection if FIRST_STEPS in state else replace(selection, state={FIRST_STEPS: plan.steps_N})

    def client_task(self, task: LocalTask, own: Vectors, state: Vectors, cohort: Sequence[Work]) -> LocalTask:
        """Adjust the learning rate to the client's number of steps."""
        if self.settings.flare.tau_bar == "none":
            return task
        tau_bar = self._tau_bar(cohort, state[FIRST_STEPS])
        return replace(task, learning_rate=task.learning_rate * (tau_bar / len(task.batches)))

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return the mean change, and the learning rates that there were."""
        rates = [report.result.learning_rate for report in reports]
        statistics = {"mean": sum(rates) / len(rates), "min": min(rates), "max": max(rates)}
        metrics = {f"learning_rate/{name}": value for name, value in statistics.items()}
        return replace(super().aggregate(state, reports), metrics=metrics)

    def weights(self, reports: Sequence[Report]) -> list[float]:
        """Return 1 / M for every report."""
        return [1 / len(reports)] * len(reports)

    def _tau_bar(self, cohort: Sequence[Work], first_steps_N: Tensor) -> float:
        if self.settings.flare.tau_bar in ("mas", "mes"):
            steps = [work.steps for work in cohort]
        else:
            steps = [int(first_steps_N[work.client]) for work in cohort]
        return float(max(steps)) if self.settings.flare.tau_bar in ("mas", "fmas") else sum(steps) / len(steps)
