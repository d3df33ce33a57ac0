"""FedProx.

Li et al. 2020, "Federated Optimization in Heterogeneous Networks": a proximal term keeps clients near the weights
that they received, whatever number of steps each manages.
"""

from collections.abc import Sequence
from dataclasses import replace

from vfl.config.settings import NotNegative
from vfl.horizontal.algorithm import FederatedAlgorithm, Vectors
from vfl.horizontal.config import AlgorithmConfig
from vfl.horizontal.devices import Work
from vfl.horizontal.local import LocalTask


class FedProxConfig(AlgorithmConfig):
    """FedProx."""

    mu: NotNegative = 1.0
    """Weight of the proximal term."""


class FedProx(FederatedAlgorithm[FedProxConfig]):
    """Clients minimise F_i(y) + mu/2 |y - w|^2; the server averages as in FedAvg."""

    Settings = FedProxConfig

    def client_task(self, task: LocalTask, own: Vectors, state: Vectors, cohort: Sequence[Work]) -> LocalTask:
        """Add mu (y - w), the proximal term's gradient; w is the task's start."""
        return replace(task, pull=self.settings.mu)
