"""FedNova.

Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization": changes
are divided by the sum that their client's number of steps gives, so that fast clients do not pull the optimum
towards their own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from vfl.config import OptimizerConfig
from vfl.config.settings import NotNegative
from vfl.horizontal.algorithm import Aggregate, FederatedAlgorithm, Report, Vectors, combine
from vfl.horizontal.config import AlgorithmConfig, HorizontalConfig
from vfl.horizontal.devices import Work
from vfl.horizontal.local import LocalTask

SMALL = 1e-6
"""Product eta mu below which 1 - (1 - eta mu)^tau loses digits."""


class FedNovaConfig(AlgorithmConfig):
    """FedNova."""

    mu: NotNegative = 0.0
    """Proximal term of the clients."""

    def check(self, horizontal: HorizontalConfig, optimizer: OptimizerConfig) -> None:
        """Raise ValueError for Nesterov's momentum, and a proximal term that moves away from the start."""
        if optimizer.nesterov:
            raise ValueError("training.optimizer.nesterov: FedNova's normalisation has no form for it; set it to false")
        rates = optimizer.learning_rate
        rate = max(rates.values()) if isinstance(rates, Mapping) else rates
        bound = 2 * (1 + optimizer.momentum)  # from which on x <- x - eta mu x, with momentum, grows
        if self.mu * rate >= bound:
            problem = f"{self.mu:g} times the learning rate {rate:g} is {bound:g} or more, so that steps diverge"
            raise ValueError(f"horizontal.fednova.mu: {problem}; take less than {bound / rate:g}")


class FedNova(FederatedAlgorithm[FedNovaConfig]):
    """d_i = (w - w_i) / a_i, w -= (sum_i p_i a_i) sum_i p_i d_i; a_i is the effective number of client i's steps."""

    Settings = FedNovaConfig

    def client_task(self, task: LocalTask, own: Vectors, state: Vectors, cohort: Sequence[Work]) -> LocalTask:
        """Add the proximal term if it is set."""
        return replace(task, pull=self.settings.mu)

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return the normalised average.

        It is sum_i p_i r_i (w_i - w) with r_i = sum_j p_j a_j / a_i. The ratios are taken before the weights, so
        that equal step counts give r_i = 1 and FedAvg's bits.
        """
        momentum, mu = self.federation.optimizer.momentum, self.settings.mu
        amounts = [
            accumulated_steps(report.result.steps, momentum, mu, report.result.learning_rate) for report in reports
        ]
        weights = self.weights(reports)
        # 1, except with weights: all, where it is the reporting clients' share: the mean of a_j is only over them.
        total = sum(weights)
        rate = self.horizontal.server_learning_rate
        coefficients = [
            rate * weight * (sum(p * (a / own) for p, a in zip(weights, amounts, strict=True)) / total)
            for weight, own in zip(weights, amounts, strict=True)
        ]
        return Aggregate({"delta": combine(reports, coefficients)})


def accumulated_steps(steps: int, momentum: float, mu: float, learning_rate: float) -> float:
    """Return a_i, the sum of the factors with which a client's gradients enter its change (section 4.2).

    Plain SGD: the number of steps tau. Momentum rho: [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho). Proximal mu: (1
    - (1 - eta mu)^tau) / (eta mu). Both together: by the recursion that defines them.
    """
    if momentum == 0 and mu == 0:
        return float(steps)
    if mu == 0:
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    shrink = learning_rate * mu
    if momentum == 0 and shrink < SMALL:
        return -math.expm1(steps * math.log1p(-shrink)) / shrink if shrink else float(steps)
    if momentum == 0:
        return (1 - (1 - shrink) ** steps) / shrink
    return _accumulated_by_recursion(steps, momentum, shrink)


def _accumulated_by_recursion(steps: int, momentum: float, shrink: float) -> float:
    """Return a_i by the recursion of the change under unit gradients: v <- rho v + 1 - shrink x, x <- x + v."""
    change, velocity = 0.0, 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 - shrink * change
        change += velocity
    return change
