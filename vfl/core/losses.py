"""The losses that ``training.loss`` names, beside cross-entropy, and what belongs to each: its metric and its constant.

Shapes: B batch, C classes, N samples.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vfl.base.metrics import weighted_mean

METRIC_OF = {"squared": "rmse", "absolute": "mae", "huber": "huber_loss", "pinball": "pinball_loss"}
"""Metric by which models of amounts are compared, by the loss that trained them."""
HALVINGS = 100
"""Steps in search of Huber's constant: more than a float64 has bits."""


def focal_losses(
    outputs_BC: Tensor, labels_B: Tensor, gamma: float, weights_C: Tensor | None, smoothing: float
) -> Tensor:
    """Return (1 - p)^gamma times the cross-entropy of each row (Lin et al., ICCV 2017, eq. 4; with weights eq. 5).

    Where labels are smoothed, each class's share has the factor of its own probability.
    """
    logs_BC = outputs_BC.log_softmax(dim=1)
    # Of the logarithm, so that 1 - p has digits near p = 1; above 0, where a power below 1 has no finite slope.
    rest_BC = logs_BC.expm1().neg().clamp(min=torch.finfo(logs_BC.dtype).eps)
    losses_BC = -(rest_BC**gamma) * logs_BC
    if weights_C is not None:
        losses_BC = losses_BC * weights_C
    own_B = losses_BC.gather(1, labels_B[:, None])[:, 0]
    return own_B if smoothing == 0 else (1 - smoothing) * own_B + smoothing * losses_BC.mean(dim=1)


@dataclass(frozen=True)
class AmountLoss:
    """A loss of amounts, trained on standardised ones; quantiles and medians stay such under a change of unit."""

    kind: str = "squared"
    """One of `METRIC_OF`."""
    delta: float = 1.0
    quantile: float = 0.5

    def of(
        self, outputs_B: Tensor, wanted_B: Tensor, reduction: Literal["none", "mean", "sum"] = "none", unit: float = 1.0
    ) -> Tensor:
        """Return the losses, their mean or their sum; ``unit`` is the standard deviation in the values' own unit."""
        match self.kind:
            case "squared":
                return F.mse_loss(outputs_B, wanted_B, reduction=reduction)
            case "absolute":
                return F.l1_loss(outputs_B, wanted_B, reduction=reduction)
            case "huber":
                return F.huber_loss(outputs_B, wanted_B, reduction=reduction, delta=self.delta * unit)
            case _:
                above_B = wanted_B - outputs_B
                losses_B = torch.maximum(self.quantile * above_B, (self.quantile - 1) * above_B)
                return losses_B if reduction == "none" else losses_B.mean() if reduction == "mean" else losses_B.sum()

    def metrics(self, told_N: Tensor, values_N: Tensor, weights_N: Tensor | None, unit: float) -> dict[str, float]:
        """Return the metrics that this loss has beside those of all amounts.

        Coverage is the share of values at or below the prediction; a quantile should meet it.
        """
        told_N, values_N = told_N.double(), values_N.double()
        if self.kind in ("squared", "absolute"):
            return {}
        metrics = {METRIC_OF[self.kind]: weighted_mean(self.of(told_N, values_N, unit=unit), weights_N)}
        return metrics | ({"coverage": weighted_mean(values_N <= told_N, weights_N)} if self.kind == "pinball" else {})

    def constant(self, values_N: Tensor, weights_N: Tensor | None, unit: float) -> float:
        """Return the constant of least loss: mean, median, quantile, or what lies between for Huber's."""
        if self.kind == "squared":
            return weighted_mean(values_N, weights_N)
        values_N = values_N.double().cpu()
        weights_N = torch.ones_like(values_N) if weights_N is None else weights_N.double().cpu()
        if self.kind == "huber":
            low, high, delta = float(values_N.min()), float(values_N.max()), self.delta * unit
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                rises = float((weights_N * (values_N - middle).clamp(-delta, delta)).sum()) > 0
                low, high = (middle, high) if rises else (low, middle)
            return low
        values_N, order_N = values_N.sort()
        reached_N = weights_N[order_N].cumsum(0)
        share = 0.5 if self.kind == "absolute" else self.quantile
        return float(values_N[torch.searchsorted(reached_N, share * reached_N[-1]).clamp(max=len(values_N) - 1)])


SQUARED = AmountLoss()
"""The default."""
