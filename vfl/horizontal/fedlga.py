"""FedLGA.

Li et al., "FedLGA: Towards System-Heterogeneity of Federated Learning via Local Gradient Approximation",
Algorithms 1-2, eq. 4-7: clients that end early are carried on by a first-order guess of what the rest of their
epochs would have done, with the outer product of a gradient in the Hessian's place.

Where the paper is silent: g_i is the client's mean gradient -delta_i / (eta_l steps_i). Without a complete client, w^
uses the mean of delta_i E / E_i. With D = w^ - w the correction is a scalar: delta_i [1 + kappa (c_i - 1)],
kappa = s |g_i|^2, c_i = <delta_i, D> / |delta_i|^2. So it damps or reverses a client whose c_i is near 0, as with few
classes per client, and lengthens it only if c_i > 1. ``gradient: end`` takes the gradient at w_{i,E_i} over all of the
client's samples, as in the paper's derivation, against its claim of no extra work. A client that may end early does not
if it draws tau_i = 1, so rho (1 - 1/tau_max) of the clients are incomplete. Clients weigh alike, as in the paper.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from vfl.config import OptimizerConfig
from vfl.config.settings import NotNegative
from vfl.horizontal.algorithm import (
    Aggregate,
    ClientUpdate,
    FederatedAlgorithm,
    Federation,
    Report,
    Vectors,
    combine,
    equal_mean,
)
from vfl.horizontal.config import AlgorithmConfig, HorizontalConfig
from vfl.horizontal.devices import Work
from vfl.horizontal.local import LocalResult, LocalTask

LARGE_CORRECTION = 10.0
"""Norm of a correction, over that of the change it corrects, above which a run warns."""


class FedLGAConfig(AlgorithmConfig):
    """FedLGA."""

    averages_equally = True
    reads_complete_work = True
    scale: NotNegative = 1.0
    """s: multiplies the correction; 1 is the paper's."""
    scope: Literal["global", "layer"] = "global"
    """An outer product over all weights, or one per tensor."""
    gradient: Literal["mean", "end"] = "mean"
    """g_i: mean of the steps, or at the last weights over all samples."""

    def check(self, horizontal: HorizontalConfig, optimizer: OptimizerConfig) -> None:
        """Raise ValueError for settings under which a step is not a gradient step."""
        if self.gradient == "mean" and not optimizer.plain:
            raise ValueError(
                "training.optimizer: FedLGA takes the mean step for the gradient and needs plain SGD; "
                "set momentum and weight_decay to 0, or horizontal.fedlga.gradient=end"
            )

    def ignored_beside(self, horizontal: HorizontalConfig) -> Mapping[str, str]:
        """Return the algorithm itself, as plain averaging, if no client can end early."""
        reasons = super().ignored_beside(horizontal)
        if horizontal.work.kind != "fixed":
            return reasons
        return {**reasons, "algorithm": "fedlga is fedavg with weights: equal where horizontal.work.kind is fixed"}


@dataclass(frozen=True, eq=False)
class Corrected:
    """An incomplete client's corrected change, with diagnostics."""

    delta_P: Tensor
    c: float
    """<delta_i, D> / |delta_i|^2, with D = w^ - w."""
    kappa: float
    """s |g_i|^2"""
    factor: float
    """Factor of the correction along delta_i; with the mean gradient it is the whole correction: 1 + kappa (c - 1)."""
    ratio: float
    """Norm of the correction over that of delta_i."""


class FedLGA(FederatedAlgorithm[FedLGAConfig]):
    """w += (eta_g/K) (sum over incomplete of corrected changes + sum over complete of changes).

    A client that did E_i < E epochs has t_i = E - E_i + 1 (eq. 4). Its corrected change is
    delta_i + s g_i (g_i . (D - delta_i)), where D = w^ - w is the complete clients' mean change. With g_i along
    delta_i that is a scalar: delta_i [1 + kappa (c_i - 1)]. Where few classes make delta_i and D nearly orthogonal,
    c_i is near 0, and the client is damped (kappa < 1) or reversed (kappa > 1).
    """

    Settings = FedLGAConfig

    def __init__(self, settings: FedLGAConfig, federation: Federation) -> None:
        super().__init__(settings, federation)
        self.warned = False
        if settings.gradient == "end":
            self.uploads, self.extra_passes = ("delta", "gradient"), 1

    def client_task(self, task: LocalTask, own: Vectors, state: Vectors, cohort: Sequence[Work]) -> LocalTask:
        """Request the gradient at the end if the algorithm uses it."""
        return replace(task, full_gradient="end" if self.settings.gradient == "end" else None)

    def client_update(self, result: LocalResult, own: Vectors, state: Vectors) -> ClientUpdate:
        """Send the change, and the gradient at the end if it was requested."""
        gradient_P = result.full_gradient_P
        return ClientUpdate({"delta": result.delta_P} | ({} if gradient_P is None else {"gradient": gradient_P}))

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return the mean of the changes, the incomplete ones corrected."""
        incomplete = [report for report in reports if not report.work.complete]
        if not incomplete:
            return Aggregate({"delta": equal_mean(reports, rate=self.horizontal.server_learning_rate)})
        ahead_P = _complete_change(reports)
        corrected = {report.work.client: self._correct(report, ahead_P) for report in incomplete}
        # Eq. 7, added up as `equal_mean` does, in the clients' order: without a correction the bits are FedAvg's.
        share = self.horizontal.server_learning_rate * (1 / len(reports))
        total_P = torch.zeros_like(ahead_P)
        for report in reports:
            own = corrected.get(report.work.client)
            total_P.add_(report.upload["delta"] if own is None else own.delta_P, alpha=share)
        metrics = _metrics(list(corrected.values()))
        self._warn_of(metrics["fedlga/correction"])
        return Aggregate({"delta": total_P}, metrics)

    def _correct(self, report: Report, ahead_P: Tensor) -> Corrected:
        """Correct a change in O(P); with scope ``layer`` each parameter tensor has its own scalar or product."""
        delta_P, result = report.upload["delta"], report.result
        gradient_P, scale = report.upload.get("gradient"), self.settings.scale
        split = self.federation.model.split if self.settings.scope == "layer" else _whole
        corrected_P = torch.zeros_like(delta_P)
        # `split` gives views: what is copied into a place is in `corrected_P`.
        places = zip(split(corrected_P), split(delta_P), split(ahead_P), strict=True)
        if gradient_P is None:
            # With g = -delta / step, s g g' (D - delta) is s delta <delta, D - delta> / step^2 = delta kappa (c - 1).
            step = result.learning_rate * result.steps
            for place, delta, ahead in places:
                kappa = scale * _dot(delta, delta) / step**2
                place.copy_(delta * (1 + kappa * (_share(delta, ahead) - 1)))
            return _described(corrected_P, delta_P, ahead_P, scale * _dot(delta_P, delta_P) / step**2)
        # Eq. 5 and 6: G d = g (g . d), a product of vectors and never a matrix.
        for (place, delta, ahead), gradient in zip(places, split(gradient_P), strict=True):
            place.copy_(delta + gradient * (scale * _dot(gradient, ahead - delta)))
        return _described(corrected_P, delta_P, ahead_P, scale * _dot(gradient_P, gradient_P))

    def _warn_of(self, ratio: float) -> None:
        if ratio > LARGE_CORRECTION and not self.warned:
            self.warned = True
            warnings.warn(
                f"FedLGA's correction is {ratio:.0f} times the change that it corrects; lower horizontal.fedlga.scale",
                stacklevel=2,
            )


def _complete_change(reports: Sequence[Report]) -> Tensor:
    """Return D = w^ - w: the complete clients' mean change, or without any all clients' extrapolated one."""
    complete = [report for report in reports if report.work.complete]
    if complete:
        return equal_mean(complete)
    # A choice: the paper's w^ needs a complete client.
    pace = [report.work.asked_epochs / report.work.epochs / len(reports) for report in reports]
    return combine(reports, pace)


def _described(corrected_P: Tensor, delta_P: Tensor, ahead_P: Tensor, kappa: float) -> Corrected:
    norm = _dot(delta_P, delta_P) ** 0.5
    correction_P = corrected_P - delta_P
    ratio = _dot(correction_P, correction_P) ** 0.5 / norm if norm else 0.0
    return Corrected(corrected_P, _share(delta_P, ahead_P), kappa, _share(delta_P, corrected_P), ratio)


def _metrics(corrected: Sequence[Corrected]) -> dict[str, float]:
    """Return the number of corrections and reversals, the largest correction, and means of their factors."""
    count = len(corrected)
    return {
        "fedlga/correction": max(each.ratio for each in corrected),
        "fedlga/incomplete": count,
        "fedlga/reversed": sum(each.factor < 0 for each in corrected),
        "fedlga/c": sum(each.c for each in corrected) / count,
        "fedlga/kappa": sum(each.kappa for each in corrected) / count,
        "fedlga/factor": sum(each.factor for each in corrected) / count,
    }


def _share(delta: Tensor, other: Tensor) -> float:
    """Return the projection of ``other`` on ``delta``, <delta, other> / |delta|^2; 0 if delta is 0."""
    squared = _dot(delta, delta)
    return _dot(delta, other) / squared if squared else 0.0


def _dot(first: Tensor, second: Tensor) -> float:
    return float((first * second).sum())


def _whole(vector: Tensor) -> list[Tensor]:
    return [vector]
