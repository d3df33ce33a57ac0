"""Measures of an attack's success, with intervals.

Shapes: N rows, C classes.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# scipy is partly typed.

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.stats import t

from vfl.base.estimates import CONFIDENCE, Estimate, percentile_estimate

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

DRAWS = 200
"""Number of bootstrap samples of the rows."""


def bootstrap(measure: Callable[[Ints], float], rows: int, stream: np.random.Generator) -> Estimate:
    """Return a measure of all rows with the percentile interval over rows drawn with replacement.

    ``measure`` takes row numbers [N]. Draws for which it is not defined (NaN: a class is missing) are left out.
    """
    resampled = [measure(stream.integers(rows, size=rows)) for _ in range(DRAWS)]
    return percentile_estimate(measure(np.arange(rows)), resampled)


def over_draws(values: Sequence[float]) -> Estimate:
    """Return the mean of independent repetitions with Student's interval; of a single one the interval is unbounded."""
    mean, repetitions = float(np.mean(values)), len(values)
    if repetitions == 1:
        return Estimate(mean, -np.inf, np.inf)
    half = float(t.ppf((1 + CONFIDENCE) / 2, repetitions - 1) * np.std(values, ddof=1) / np.sqrt(repetitions))
    return Estimate(mean, mean - half, mean + half)


def best_assignment(groups_N: Ints, labels_N: Ints, classes: int) -> Ints:
    """Return the class [classes] of each group with which most rows are right; no two groups have the same class.

    This is the result of an attacker who can name each group, and so the upper bound of what the groups reveal.
    """
    counts = np.bincount(groups_N * classes + labels_N, minlength=classes * classes).reshape(classes, classes)
    return np.asarray(linear_sum_assignment(counts, maximize=True)[1])
