"""FedDyn.

Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", Algorithm 1: each client's objective gets a
linear and a squared term that, as rounds go by, make the clients' optima agree with everybody's.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vfl.config.settings import AboveZero
from vfl.horizontal.algorithm import Aggregate, ClientUpdate, FederatedAlgorithm, Report, Vectors, combine, equal_mean
from vfl.horizontal.config import AlgorithmConfig
from vfl.horizontal.devices import Work
from vfl.horizontal.local import LocalResult, LocalTask


class FedDynConfig(AlgorithmConfig):
    """FedDyn."""

    averages_equally, has_server_rate = True, False
    alpha: AboveZero = 0.01
    """a: weight of the dynamic regulariser."""


class FedDyn(FederatedAlgorithm[FedDynConfig]):
    """Clients minimise F_i(y) - <g_i, y> + a/2 |y - w|^2, then g_i -= a (w_i - w).

    The server: h -= (a/N) sum over the selected (w_i - w); w = mean w_i - h/a.
    """

    Settings = FedDynConfig

    def initial_state(self, weights_P: Tensor) -> Vectors:
        """Start h at zero."""
        return {"weights": weights_P, "h": torch.zeros_like(weights_P)}

    def client_task(self, task: LocalTask, own: Vectors, state: Vectors, cohort: Sequence[Work]) -> LocalTask:
        """Add -g_i + a (y - w) to the gradient."""
        gradient_P = own.get("gradient")
        # A client that never took part has g_i = 0: no shift, and no state until it has one.
        shift_P = None if gradient_P is None else -gradient_P
        return replace(task, pull=self.settings.alpha, shift_P=shift_P)

    def client_update(self, result: LocalResult, own: Vectors, state: Vectors) -> ClientUpdate:
        """Update the client's gradient g_i."""
        before_P = own.get("gradient", torch.zeros_like(result.delta_P))
        after_P = before_P - self.settings.alpha * result.delta_P
        return ClientUpdate({"delta": result.delta_P}, {"gradient": after_P})

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return the change of h and the mean change of the clients."""
        # So h stays the mean of all N clients' g_i, and only those of the selected ones change.
        share = self.settings.alpha / len(self.samples_N)
        return Aggregate({"delta": equal_mean(reports), "h": combine(reports, [-share] * len(reports))})

    def server_update(self, state: Vectors, aggregate: Aggregate) -> Vectors:
        """Return mean w_i - h/a with the new h."""
        h_P = state["h"] + aggregate.vectors["h"]
        mean_P = state["weights"] + aggregate.vectors["delta"]
        return {"weights": mean_P - h_P / self.settings.alpha, "h": h_P}
