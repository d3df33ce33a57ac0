"""Metrics of predictions, by scikit-learn's definitions.

Shapes: N samples, C classes.
"""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

TWO_CLASS_METRICS = ("auc", "average_precision", "ks", "log_loss", "f1", "accuracy")
MANY_CLASS_METRICS = ("accuracy", "macro_f1")
REGRESSION_METRICS = ("rmse", "mae", "r2")
LOWER_IS_BETTER = ("log_loss", "rmse", "mae")

HEADLINE = ("auc", "ks", "accuracy", "rmse", "r2")
"""Metrics shown at the end of a run beside the one by which models are compared."""


def is_better(metric: str, value: float, than: float) -> bool:
    """Return whether a value of the metric is better than another."""
    return value < than if metric in LOWER_IS_BETTER else value > than


def points_lost(metric: str, value: float, reference: float) -> float:
    """Return by how many percentage points a value is worse than another; for an error, by how many percent of it."""
    if metric not in LOWER_IS_BETTER:
        return 100 * (reference - value)
    if reference == 0:  # no percentage of an error of 0
        return 0.0 if value == 0 else math.inf
    return 100 * (value / reference - 1)


def in_axis_units(metric: str, value: float) -> float:
    """Return a value in the unit of axes and tables: shares in percent."""
    return value if metric in LOWER_IS_BETTER else 100 * value


def axis(metric: str) -> str:
    """Return the heading of such values, such as "AUC (%)"."""
    return title(metric) if metric in LOWER_IS_BETTER else f"{title(metric)} (%)"


def reached(summary: Mapping[str, Any]) -> tuple[str, Mapping[str, float]]:
    """Return a run's metric and all its test metrics; older summaries have only accuracy."""
    older = {"accuracy": summary.get("test_accuracy")}
    return summary.get("metric", "accuracy"), summary.get(f"{evaluated(summary)}_metrics", older)


def evaluated(summary: Mapping[str, Any]) -> str:
    """Return the name of the samples that a run's metrics refer to: "test" or "validation"."""
    return "validation" if "validation_metrics" in summary else "test"


def headline(summary: Mapping[str, Any]) -> str:
    """Return a run's results in a few words, its metric first: "test AUC 0.9931, accuracy 97.37%"."""
    metric, values = reached(summary)
    names = dict.fromkeys((metric, *HEADLINE))
    return f"{evaluated(summary)} " + ", ".join(
        f"{title(name)} {format_metric(name, values[name])}" for name in names if name in values
    )


def title(metric: str) -> str:
    """Return a metric's display name."""
    return metric.upper() if metric in ("auc", "ks", "rmse", "mae", "r2") else metric.replace("_", " ")


def format_metric(metric: str, value: float) -> str:
    """Return a metric's value as displayed."""
    if metric == "accuracy":
        return f"{value:.2%}"
    return f"{value:.4g}" if metric in LOWER_IS_BETTER else f"{value:.4f}"


def two_class_metrics(scores_N: Tensor, labels_N: Tensor, threshold: float) -> dict[str, float]:
    """Return the metrics of probabilities [N] of class 1; F1 and accuracy predict it from ``threshold`` on.

    KS is the largest difference between the two classes' distributions of the score (Kolmogorov and Smirnov). Computed
    as scikit-learn does, whose import takes over a second. AUC and KS are NaN where all labels are of one class.
    """
    scores, labels = scores_N.double().cpu().numpy(), labels_N.cpu().numpy()
    positive, predicted = labels == 1, scores >= threshold
    order = np.argsort(-scores, stable=True)
    # At each threshold, from above: the last of the samples that share a score.
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    true = np.cumsum(positive[order], dtype=np.float64)[last]
    false = 1.0 + last - true
    if not (true[-1] and false[-1]):
        warnings.warn("all labels are of one class: there is no AUC and no KS", stacklevel=2)
    with np.errstate(invalid="ignore"):
        recall, fallout = (np.append(0.0, each / each[-1]) for each in (true, false))
    bends = (np.diff(false, 2) != 0) | (np.diff(true, 2) != 0)
    corners = np.concatenate(([True, True], bends, [True]))[-len(recall) :]  # exactly: straight parts are one step
    rises = np.diff(true / max(true[-1], 1.0), prepend=0.0) * (true / (true + false))
    sure = np.finfo(np.float64).eps
    told = np.clip(np.where(positive, scores, 1 - scores), sure, 1 - sure)
    return {
        "auc": float(np.trapezoid(recall[corners], fallout[corners])),
        "average_precision": float(rises[::-1].sum()),
        "ks": float(abs(recall - fallout).max()),
        "log_loss": float(-np.log(told).mean()),
        "f1": 2 * float((predicted & positive).sum()) / max(float(predicted.sum() + positive.sum()), 1.0),
        "accuracy": float((predicted == labels).mean()),
    }


def many_class_metrics(predicted_N: Tensor, labels_N: Tensor, classes: int) -> dict[str, float]:
    """Return accuracy, and F1 as the mean over the classes that are among labels or predictions."""
    confusion = torch.bincount(labels_N * classes + predicted_N, minlength=classes**2).view(classes, classes)
    counts = (confusion.sum(dim=0) + confusion.sum(dim=1)).double()  # 0 of a class that neither occurs nor is predicted
    f1 = 2 * confusion.diag().double() / counts
    return {"accuracy": float((predicted_N == labels_N).double().mean()), "macro_f1": float(f1[counts > 0].mean())}


def regression_metrics(predicted_N: Tensor, values_N: Tensor) -> dict[str, float]:
    """Return the root mean squared error, the mean absolute error, and the share of the variance explained.

    R^2 is 0 if all values are equal.
    """
    errors = predicted_N.double() - values_N.double()
    deviations = values_N.double() - values_N.double().mean()
    variation = float(deviations.square().sum())
    return {
        "rmse": float(errors.square().mean().sqrt()),
        "mae": float(errors.abs().mean()),
        "r2": 1 - float(errors.square().sum()) / variation if variation > 0 else 0.0,
    }
