"""T-SFL with discriminative model selection (DMS).

Shao et al., "Robust Model Aggregation for Heterogeneous Federated Learning: Analysis and Optimizations", Algorithm 1:
every interval each device does the steps that it can; those with few are dropped at random, and the weights of the
others grow with their steps. That an interval has a fixed length is ``horizontal.work.kind: interval``.

Where the paper is silent: an iteration is a pass over a client's samples. Case 1 to 3 are speeds of 1 to 5 steps per
second; an interval lasts as many seconds as 1,024 samples have batches. The server knows each client's speed, so it
drops a client before the client computes work that would be thrown away. The threshold and H are over the clients drawn
for the interval (all of them in the paper; of the weights H is the largest that reports); N is ``clients_per_round``. G
and sigma, if not set: every client sends the mean squared norm of its steps' gradients and their variance around
-delta_i / (eta tau_i). G^2 is the largest norm, sigma^2 the mean variance, weighted by each client's steps minus one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from vfl.base.random import generator
from vfl.config import OptimizerConfig
from vfl.config.schedules import largest
from vfl.config.settings import AboveZero, NotNegative, Number
from vfl.horizontal.algorithm import (
    Aggregate,
    ClientUpdate,
    FederatedAlgorithm,
    Report,
    Selection,
    Vectors,
    combine,
    equal_mean,
)
from vfl.horizontal.config import AlgorithmConfig, HorizontalConfig
from vfl.horizontal.devices import RoundPlan, Work
from vfl.horizontal.dms_weights import Bounds, Kept, corollary1_weights, limited, theorem3_weights
from vfl.horizontal.local import LocalResult, LocalTask

GRADIENT_STATISTICS = "gradient_statistics"
"""Upload beside the change if G or sigma is estimated: two numbers."""


@dataclass(frozen=True)
class Gradients:
    """G^2 and sigma^2 of an interval, given or estimated."""

    squared_norm: float
    """G^2: the largest of the clients' mean squared norms of a step's gradient."""
    variances: Sequence[float]
    """sigma_i^2 of every report; a client with a single step gets that of all clients."""
    variance: float
    """sigma^2 of all clients together, each weighted by its number of steps minus one."""


class DMSConfig(AlgorithmConfig):
    """T-SFL's discriminative model selection."""

    weights: Literal["corollary1", "theorem3"] = "corollary1"
    """Weights by eq. 6 or eq. 10."""
    slope: NotNegative | None = None
    """c of Corollary 1; null: from L, G and sigma."""
    lipschitz: AboveZero = 1.0
    """L; never estimated."""
    gradient_bound: AboveZero | None = None
    """G; null estimates it."""
    gradient_std: AboveZero | None = None
    """sigma; null estimates it."""
    theta: Annotated[Number, Field(ge=1)] | None = None
    """Limits every weight to theta / clients_per_round."""

    def limit(self, clients: int) -> float:
        """Return theta for ``clients`` clients; without a limit theta / N = 1."""
        return float(clients) if self.theta is None else self.theta

    @property
    def estimates(self) -> bool:
        """Return whether G or sigma is needed and not given."""
        if self.weights == "corollary1" and self.slope is not None:
            return False
        return self.gradient_bound is None or self.gradient_std is None

    def check(self, horizontal: HorizontalConfig, optimizer: OptimizerConfig) -> None:
        """Raise ValueError for settings under which a step is not a gradient step or Theorem 3 does not hold."""
        if self.estimates and not optimizer.plain:
            raise ValueError(
                "training.optimizer: DMS takes the mean step for the mean gradient and needs plain SGD; set momentum "
                "and weight_decay to 0, or give horizontal.dms.gradient_bound and gradient_std (or slope)"
            )
        reach = largest(optimizer.learning_rate) * self.lipschitz * (1 + self.limit(horizontal.clients_per_round))
        if self.weights == "theorem3" and reach >= 1:
            raise ValueError(
                f"horizontal.dms.weights: theorem3 needs learning_rate * lipschitz * (1 + theta) below 1 (got "
                f"{reach:g}; theta is clients_per_round where none is given); lower one of them, or use corollary1"
            )

    def ignored(self) -> Mapping[str, str]:
        """Return the settings that a given slope replaces, or the slope if it is not used."""
        if self.weights == "theorem3":
            return {"slope": "it belongs to weights: corollary1"}
        bounds = ("gradient_bound", "gradient_std", "lipschitz")
        return {} if self.slope is None else dict.fromkeys(bounds, "slope is given")

    def ignored_beside(self, horizontal: HorizontalConfig) -> Mapping[str, str]:
        """Return ``weights``, which the algorithm does not use."""
        return {**super().ignored_beside(horizontal), "weights": "dms has weights of its own"}


class DMS(FederatedAlgorithm[DMSConfig]):
    """Drops a device with tau_i < K = mean tau with probability (K - tau_i) / H; w = sum_i rho_i w_i over the rest.

    Theorem 3 takes the device's weights at the interval's end for its optimum w_i*, and their mean for w*.
    """

    Settings = DMSConfig

    def select(self, state: Vectors, round_index: int, plan: RoundPlan) -> Selection:
        """Draw the clients, then drop slow ones at random; the one with most steps always stays (eq. 7-9)."""
        candidates = super().select(state, round_index, plan).clients
        if not candidates:
            return Selection(candidates)
        steps = [int(plan.steps_N[client]) for client in candidates]
        # One for each of all N clients: a client's chance does not depend on who else was drawn.
        chances_N = torch.rand(len(self.samples_N), generator=generator(self.federation.seed, "dms", round_index))
        dropped = drop_probabilities(steps)
        clients = [
            client
            for client, probability in zip(candidates, dropped, strict=True)
            if float(chances_N[client]) >= probability  # a chance may be 0: who has probability 0 always stays
        ]
        mean = sum(steps) / len(steps)
        return Selection(
            clients,
            metrics={
                "dms/dropped": len(candidates) - len(clients),
                "dms/threshold": mean,
                "dms/tau_variance": sum((each - mean) ** 2 for each in steps) / len(steps),
            },
        )

    def client_task(self, task: LocalTask, own: Vectors, state: Vectors, cohort: Sequence[Work]) -> LocalTask:
        """Request the norms of the steps' gradients if something is estimated from them."""
        return replace(task, gradient_norms=self.settings.estimates)

    def client_update(self, result: LocalResult, own: Vectors, state: Vectors) -> ClientUpdate:
        """Send the change, and the gradients' statistics if they are needed."""
        upload: Vectors = {"delta": result.delta_P}
        if self.settings.estimates:
            upload[GRADIENT_STATISTICS] = gradient_statistics(result)
        return ClientUpdate(upload)

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return the clients' changes by Corollary 1 or Theorem 3."""
        settings = self.settings
        steps = [report.result.steps for report in reports]
        if settings.weights == "corollary1" and settings.slope is not None:
            weights, metrics = corollary1_weights(steps, settings.slope), {"dms/slope": settings.slope}
        else:
            weights, metrics = self._estimated_weights(reports, steps)
        if settings.theta is not None:
            weights = limited(weights, settings.theta / self.horizontal.clients_per_round)
        rate = self.horizontal.server_learning_rate
        return Aggregate(
            {"delta": combine(reports, [rate * weight for weight in weights])},
            metrics
            | {
                "dms/largest_weight": max(weights),
                "dms/weighted_steps": sum(weight * each for weight, each in zip(weights, steps, strict=True)),
            },
        )

    def _estimated_weights(
        self, reports: Sequence[Report], steps: Sequence[int]
    ) -> tuple[list[float], dict[str, float]]:
        settings, gradients = self.settings, self._gradients(reports)
        bounds = Bounds(
            reports[0].result.learning_rate,
            settings.lipschitz,
            gradients.squared_norm,
            self.horizontal.clients_per_round,
            max(steps),
        )
        metrics = {"dms/gradient_squared_norm": gradients.squared_norm, "dms/gradient_variance": gradients.variance}
        if settings.weights == "corollary1":
            slope = bounds.slope(gradients.variance)
            return corollary1_weights(steps, slope), metrics | {"dms/slope": slope}
        # Eq. 10 divides by sigma_i^2. Nothing is known of it where, for example, every device did one step.
        if min(gradients.variances) <= 0:
            return [1 / len(reports)] * len(reports), metrics | {"dms/iterations": 0}
        mean_P = equal_mean(reports)
        remaining = [
            Kept(report.result.steps, variance, float((mean_P - report.upload["delta"]).square().sum()))
            for report, variance in zip(reports, gradients.variances, strict=True)
        ]
        theta = settings.limit(self.horizontal.clients_per_round)
        weights, iterations, change = theorem3_weights(remaining, float(mean_P.square().sum()), bounds, theta)
        return weights, metrics | {"dms/iterations": iterations, "dms/last_change": change}

    def _gradients(self, reports: Sequence[Report]) -> Gradients:
        """Return G^2 and sigma^2, as given or estimated from the clients' numbers."""
        settings = self.settings
        squared_norm, variance = (settings.gradient_bound or 0.0) ** 2, (settings.gradient_std or 0.0) ** 2
        variances = [variance] * len(reports)
        if settings.estimates:
            statistics = [[float(number) for number in report.upload[GRADIENT_STATISTICS]] for report in reports]
            if settings.gradient_bound is None:
                squared_norm = max(numbers[0] for numbers in statistics)
            if settings.gradient_std is None:
                # Variances are unbiased, each over tau_i - 1: weighted by that they add up to the pooled one.
                freedom = [report.result.steps - 1 for report in reports]
                total = sum(own * numbers[1] for own, numbers in zip(freedom, statistics, strict=True))
                variance = total / max(1, sum(freedom))
                variances = [numbers[1] if own else variance for own, numbers in zip(freedom, statistics, strict=True)]
        return Gradients(squared_norm, variances, variance)


def drop_probabilities(steps: Sequence[int]) -> list[float]:
    """Return max(0, K - tau_i) / H with K the mean and H the largest number of steps (eq. 7 and 8)."""
    mean, most = sum(steps) / len(steps), max(steps)
    return [max(0.0, mean - each) / most for each in steps]


def gradient_statistics(result: LocalResult) -> Tensor:
    """Return [2]: the mean squared norm of the steps' gradients, and their variance, unbiased; 0 for a single step.

    The variance is (sum_s |g_s|^2 - tau |mean g|^2) / (tau - 1), with the mean gradient of plain SGD's displacement.
    """
    assert result.squared_norms_S is not None
    squared_norms_S = result.squared_norms_S
    mean_P = result.delta_P / (-result.learning_rate * result.steps)
    spread = squared_norms_S.sum() - result.steps * mean_P.square().sum()
    # Rounding may leave a little below 0 where all gradients are alike.
    variance = spread.clamp(min=0) / max(1, result.steps - 1)
    if result.steps == 1:
        variance = torch.zeros_like(variance)  # the only norm's rounding error
    return torch.stack([squared_norms_S.mean(), variance])
