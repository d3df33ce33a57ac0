"""Metrics of predictions, by scikit-learn's definitions.

Shapes: N samples, C classes.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

CALIBRATION = ("log_loss", "calibration_error")
TWO_CLASS_METRICS = ("auc", "average_precision", "ks", *CALIBRATION, "f1", "precision", "recall", "accuracy")
MANY_CLASS_METRICS = ("accuracy", "macro_f1", *CALIBRATION)
REGRESSION_METRICS = ("rmse", "mae", "r2")
CONSTANTS = {
    "log_loss": "class shares",
    "rmse": "mean",
    "mae": "median",
    "huber_loss": "best constant",
    "pinball_loss": "quantile",
}
"""Constant of the training rows with which a model is compared, by the metric that the constant makes least."""
LOWER_IS_BETTER = ("calibration_error", *CONSTANTS)
BINS = 10
"""Bins of equal width of predicted probabilities."""

HEADLINE = ("auc", "ks", "accuracy", "rmse", "r2", "coverage")
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


def two_class_metrics(
    scores_N: Tensor, labels_N: Tensor, threshold: float, weights_N: Tensor | None = None
) -> dict[str, float]:
    """Return the metrics of probabilities [N] of class 1, which is predicted from ``threshold`` on; rows may weigh.

    KS is the largest difference between the two classes' distributions of the score (Kolmogorov and Smirnov). Computed
    as scikit-learn does, whose import takes over a second. AUC and KS are NaN where all labels are of one class.
    """
    scores, labels = scores_N.double().cpu().numpy(), labels_N.cpu().numpy()
    weights = np.ones(len(scores)) if weights_N is None else weights_N.double().cpu().numpy()
    positive, predicted = labels == 1, scores >= threshold
    order = np.argsort(-scores, stable=True)
    # At each threshold, from above: the last of the samples that share a score.
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    true, false = (np.cumsum((weights * of)[order], dtype=np.float64)[last] for of in (positive, ~positive))
    if not (true[-1] and false[-1]):
        warnings.warn("all labels are of one class: there is no AUC and no KS", stacklevel=2)
    with np.errstate(invalid="ignore"):
        recall, fallout = (np.append(0.0, each / each[-1]) for each in (true, false))
    bends = (np.diff(false, 2) != 0) | (np.diff(true, 2) != 0)
    corners = np.concatenate(([True, True], bends, [True]))[-len(recall) :]  # exactly: straight parts are one step
    rises = np.diff(true / (true[-1] or 1.0), prepend=0.0) * (true / (true + false))
    sure = np.finfo(np.float64).eps
    told = np.clip(np.where(positive, scores, 1 - scores), sure, 1 - sure)
    right, chosen, there = (float(weights[rows].sum()) for rows in (predicted & positive, predicted, positive))
    return {
        "auc": float(np.trapezoid(recall[corners], fallout[corners])),
        "average_precision": float(rises[::-1].sum()),
        "ks": float(abs(recall - fallout).max()),
        "log_loss": weighted_mean(torch.as_tensor(-np.log(told)), weights_N),
        "calibration_error": calibration_error(scores_N, labels_N == 1, weights_N),
        "f1": 2 * right / (chosen + there or 1.0),
        "precision": right / (chosen or 1.0),
        "recall": right / (there or 1.0),
        "accuracy": weighted_mean(torch.as_tensor(predicted == labels), weights_N),
    }


def many_class_metrics(probabilities_NC: Tensor, labels_N: Tensor, weights_N: Tensor | None = None) -> dict[str, float]:
    """Return the metrics of probabilities [N, C]; F1 is the mean over the classes among labels or predictions."""
    predicted_N = probabilities_NC.argmax(dim=1)
    counts = confusion(predicted_N, labels_N, probabilities_NC.shape[1], weights_N)
    both = counts.sum(dim=0) + counts.sum(dim=1)  # 0 of a class that neither occurs nor is predicted
    f1 = 2 * counts.diag() / both
    true_N = probabilities_NC.double().gather(1, labels_N[:, None])[:, 0]
    return {
        "accuracy": weighted_mean(predicted_N == labels_N, weights_N),
        "macro_f1": float(f1[both > 0].mean()),
        "log_loss": weighted_mean(-true_N.clamp(min=torch.finfo(torch.float64).eps).log(), weights_N),
        "calibration_error": calibration_error(probabilities_NC.max(dim=1).values, predicted_N == labels_N, weights_N),
    }


def confusion(predicted_N: Tensor, labels_N: Tensor, classes: int, weights_N: Tensor | None = None) -> Tensor:
    """Return the weight, without weights the number, of samples by class and predicted class, float64 [C, C]."""
    weights = None if weights_N is None else weights_N.double()
    counts = torch.bincount(labels_N * classes + predicted_N, weights, minlength=classes**2)
    return counts.view(classes, classes).double()


def calibration_error(told_N: Tensor, true_N: Tensor, weights_N: Tensor | None = None) -> float:
    """Return the expected calibration error of probabilities [N] of what came true or not, bool [N].

    It is the mean, over bins of equal width by their share of the samples, of the difference between the mean
    probability and the share that came true (Naeini et al., AAAI 2015; Guo et al., ICML 2017).
    """
    told, true = told_N.double().cpu(), true_N.double().cpu()
    weights = torch.ones_like(told) if weights_N is None else weights_N.double().cpu()
    bins = (told * BINS).long().clamp(0, BINS - 1)  # NaN, of weights that diverged, falls anywhere and stays NaN
    differences = torch.bincount(bins, weights * (told - true), minlength=BINS)
    return float(differences.abs().sum() / weights.sum())


def weighted_mean(values_N: Tensor, weights_N: Tensor | None) -> float:
    """Return the mean of values [N] by the rows' weights, if there are any."""
    values = values_N.double().cpu()
    if weights_N is None:
        return float(values.mean())
    weights = weights_N.double().cpu()
    return float((weights * values).sum() / weights.sum())


def worse_than_constant(summary: Mapping[str, Any]) -> str:
    """Return a line about a run no better than predicting the best constant of the training rows."""
    values, constants = reached(summary)[1], cast(Mapping[str, float], summary.get("constant", {}))
    for metric, constant in constants.items():
        if metric in values and values[metric] >= constant:
            own, other = (format_metric(metric, each) for each in (values[metric], constant))
            used = "probabilities" if metric == "log_loss" else "values"
            return (
                f"no better than a constant: {title(metric)} {own}, that of the training rows' {CONSTANTS[metric]} is "
                f"{other}; do not use the {used} as they are"
            )
    return ""


def decision_line(summary: Mapping[str, Any]) -> str:
    """Return what deciding by costs gives; "" of a run without ``evaluation.decision``."""
    found = summary.get("decision")
    if not found:
        return ""
    (true_no, false_yes), (false_no, true_yes) = found["confusion"]
    return (
        f"decided from {found['threshold']:.3g} on by the costs: {found['cost']:.4g} a sample "
        f"(from evaluation.threshold on {found['cost_at_threshold']:.4g}, one class for all "
        f"{found['cost_of_one_class']:.4g}), recall {found['recall']:.2%}, precision {found['precision']:.2%}; "
        f"{true_yes:g} found, {false_no:g} missed, {false_yes:g} false alarms, {true_no:g} rightly passed"
    )


def regression_metrics(predicted_N: Tensor, values_N: Tensor, weights_N: Tensor | None = None) -> dict[str, float]:
    """Return the root mean squared error, the mean absolute error, and the share of the variance explained.

    R^2 is 0 if all values are equal.
    """
    values = values_N.double()
    errors = predicted_N.double() - values
    centre = values.mean() if weights_N is None else weighted_mean(values, weights_N)
    deviations = weighted_mean((values - centre).square(), weights_N)
    squared = weighted_mean(errors.square(), weights_N)
    return {
        "rmse": math.sqrt(squared),
        "mae": weighted_mean(errors.abs(), weights_N),
        "r2": 1 - squared / deviations if deviations > 0 else 0.0,
    }


MOST_PARTIES = 6
"""Most parties for which all 2^K - 1 sets are tested; above, those that lack one party, and single ones."""
AND = "+"
"""Separator of the names of a set's parties."""


def subsets_of(parties: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the sets to test, the whole one first, in the parties' order."""
    count = len(parties)
    sizes = range(count, 0, -1) if count <= MOST_PARTIES else (count, count - 1, 1)
    return [each for size in sizes for each in combinations(parties, size)]


def lost_without(values: Mapping[str, float], parties: Sequence[str], metric: str) -> dict[str, float]:
    """Return by party how much worse the metric is without it; ``values`` are by set, as in ``summary.json``.

    The difference is the party's contribution. Empty for a single party.
    """
    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0
    whole = values[AND.join(parties)]
    others = {party: AND.join(each for each in parties if each != party) for party in parties}
    return {party: sign * (whole - values[rest]) for party, rest in others.items() if rest}
