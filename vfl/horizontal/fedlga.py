"""FedLGA.

Li et al., "FedLGA: Towards System-Heterogeneity of Federated Learning via Local Gradient Approximation",
Algorithms 1-2, eq. 4-7: clients that end early are carried on by a first-order guess of what the rest of their
epochs would have done, with the outer product of a gradient in the Hessian's place.
"""

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vfl.config import ExperimentConfig
from vfl.horizontal.algorithm import Aggregate, FederatedAlgorithm, Report, Vectors, combine, equal_mean

LARGE_CORRECTION = 10.0
"""Norm of a correction, over that of the change it corrects, above which a run warns."""


class FedLGA(FederatedAlgorithm):
    """w += (eta_g/K) (sum over incomplete of corrected changes + sum over complete of changes).

    A client that did E_i < E epochs has t_i = E - E_i + 1 (eq. 4). Its corrected change is
    delta_i + scale * g_i (g_i . (w^ - w_i)), where w^ = w + the complete clients' mean change.

    Choices: g_i is the client's mean gradient -delta_i / (eta_l steps_i), as the server has no other and the paper
    forbids extra work on devices. With no complete client, w^ uses the mean of delta_i E / E_i over all.
    """

    def __init__(
        self, config: ExperimentConfig, samples_N: Sequence[int], split: Callable[[Tensor], list[Tensor]]
    ) -> None:
        super().__init__(config, samples_N)
        self.split = split
        self.warned = False

    def aggregate(self, state: Vectors, reports: Sequence[Report]) -> Aggregate:
        """Return the mean of the changes, the incomplete ones corrected."""
        incomplete = [report for report in reports if not report.work.complete]
        if not incomplete:
            return Aggregate({"delta": equal_mean(reports, rate=self.settings.server_learning_rate)})
        ahead_P = _complete_change(reports)
        corrected: list[Tensor] = []
        largest = 0.0
        for report in reports:
            delta_P = report.upload["delta"]
            if not report.work.complete:
                correction_P = self._correction(report, ahead_P - delta_P)
                largest = max(largest, _ratio(correction_P, delta_P))
                delta_P = delta_P + correction_P
            corrected.append(delta_P)
        self._warn_of(largest)
        share = self.settings.server_learning_rate * (1 / len(reports))
        total_P = torch.zeros_like(ahead_P)
        for delta_P in corrected:
            total_P.add_(delta_P, alpha=share)
        return Aggregate({"delta": total_P}, {"fedlga/correction": largest, "fedlga/incomplete": len(incomplete)})

    def _correction(self, report: Report, direction_P: Tensor) -> Tensor:
        """Return scale * g (g . direction) in O(P); with scope ``layer`` each parameter tensor has its own product."""
        gradient_P = report.upload["delta"] / (-report.result.learning_rate * report.result.steps)
        if self.settings.fedlga.scope == "global":
            return gradient_P * (self.settings.fedlga.scale * torch.dot(gradient_P, direction_P))
        correction_P = torch.zeros_like(gradient_P)
        for place, gradient, direction in zip(
            self.split(correction_P), self.split(gradient_P), self.split(direction_P), strict=True
        ):
            place.copy_(gradient * (self.settings.fedlga.scale * (gradient * direction).sum()))
        return correction_P

    def _warn_of(self, ratio: float) -> None:
        if ratio > LARGE_CORRECTION and not self.warned:
            self.warned = True
            warnings.warn(
                f"FedLGA's correction is {ratio:.0f} times the change that it corrects; lower horizontal.fedlga.scale",
                stacklevel=2,
            )


def _complete_change(reports: Sequence[Report]) -> Tensor:
    """Return w^ - w: the complete clients' mean change, or what all would have come to at their own pace."""
    complete = [report for report in reports if report.work.complete]
    if complete:
        return equal_mean(complete)
    pace = [report.work.asked_epochs / report.work.epochs / len(reports) for report in reports]
    return combine(reports, pace)


def _ratio(correction_P: Tensor, delta_P: Tensor) -> float:
    norm = float(delta_P.square().sum().sqrt())
    return float(correction_P.square().sum().sqrt()) / norm if norm else 0.0
