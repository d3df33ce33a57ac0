"""Estimates from samples: a value with its 95 % interval, and the area under the ROC curve that bootstraps need fast.

Shapes: N rows, C classes.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# numpy's own signatures are partly untyped.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]  # ships no stubs

from vfl.base.costs import amount, duration

CONFIDENCE = 0.95
DRAWS = 200
"""Bootstrap samples of an audit's rows."""
Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Estimate:
    """A measure with its 95 % interval."""

    value: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Return whether a value lies in the interval."""
        return self.low <= value <= self.high

    def text(self) -> str:
        """Return the estimate as text, ``0.024 (0.018 to 0.030)``."""
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def over_seeds(differences: Sequence[float]) -> Estimate:
    """Return the mean of differences by seed with Student's interval, which is endless for one seed."""
    value, half_width = mean(differences), student_half_width(differences)
    return Estimate(value, value - half_width, value + half_width)


def student_half_width(differences: Sequence[float], tries: int = 1) -> float:
    """Return half the width of Student's interval around a mean; infinite for one value.

    The interval of one of several ``tries`` is Bonferroni's: all of them together hold with 95 %.
    """
    count = len(differences)
    if count < 2:
        return inf
    outside = (1 - CONFIDENCE) / tries
    quantile = float(stdtrit(count - 1, 1 - outside / 2))  # of 0.05 the 97.5 % quantile: 2.5 % are left each side
    return quantile * stdev(differences) / sqrt(count)


def meeting_line(gain: Estimate, name: str, more_bytes: int, more_s: float) -> str:
    """Return the sentence about what training together adds to owners that learn alone and average their answers.

    ``gain`` is positive where training together is better in the metric of that ``name``.
    """
    price = f"for {amount(more_bytes)}B" + (f" and {duration(more_s)}" if more_s >= 1 else "") + " more"
    apart = "owners that learn alone and average"
    if gain.low == -inf:
        side = "below" if gain.value < 0 else "above"
        return (
            f"Training together ended {abs(gain.value):.3f} {name} {side} {apart}, {price}; one seed does not decide it"
        )
    if gain.low > 0:
        return f"Training together adds {gain.text()} {name} to {apart}, {price}"
    less = "" if gain.high < 0 else " that shows"
    return (
        f"Training together adds nothing{less}, {gain.text()} {name}, to {apart}, {price}: "
        "train alone, with training.local_rounds"
    )


def percentile_estimate(value: float, drawn: Sequence[float]) -> Estimate:
    """Return a measure with the percentile interval of its bootstrap draws; NaN, an undefined draw, is left out."""
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def bootstrap(measure: Callable[[Ints], float], rows: int, stream: np.random.Generator) -> Estimate:
    """Return a measure of all rows with the percentile interval over rows drawn with replacement.

    ``measure`` takes row numbers [N]. Draws for which it is not defined (NaN: a class is missing) are left out.
    """
    resampled = [measure(stream.integers(rows, size=rows)) for _ in range(DRAWS)]
    return percentile_estimate(measure(np.arange(rows)), resampled)


def auc(scores_N: Floats, positive_N: NDArray[np.bool_]) -> float:
    """Return the probability that a positive row scores above a negative one, ties half; NaN if either is missing.

    Mann and Whitney's statistic, counted in the sorted scores of the negative rows, without a curve: a bootstrap needs
    it a thousand times.
    """
    negatives = np.sort(scores_N[~positive_N])
    positives = scores_N[positive_N]
    pairs = len(positives) * len(negatives)
    if not pairs:
        return float("nan")
    below, up_to = (np.searchsorted(negatives, positives, side).sum() for side in ("left", "right"))
    return float((below + up_to) / 2 / pairs)


def best_assignment(groups_N: Ints, labels_N: Ints, classes: int) -> Ints:
    """Return the class [classes] of each group with which most rows are right; no two groups have the same class.

    This is the result of an attacker who can name each group, and so the upper bound of what the groups reveal.
    """
    from scipy.optimize import linear_sum_assignment  # pyright: ignore[reportMissingTypeStubs]  # audits only

    counts = np.bincount(groups_N * classes + labels_N, minlength=classes * classes).reshape(classes, classes)
    return np.asarray(linear_sum_assignment(counts, maximize=True)[1])
