"""Paired differences between methods over runs with the same seeds, with confidence intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from vfl.base.estimates import student_half_width


@dataclass(frozen=True)
class Difference:
    """Mean over seeds of the paired differences, and half the width of Student's 95 % interval around it."""

    mean: float
    half_width: float
    """Half the width of the interval; infinite for one seed."""
    seeds: int

    def verdict(self, sign: int = 1) -> str:
        """Return ``holds`` or ``REVERSED`` if the interval lies on one side of 0, else why nothing is decided.

        ``sign`` is that of the claimed difference.
        """
        if self.seeds == 1:
            return "one seed decides nothing"
        if abs(self.mean) <= self.half_width:
            return "undecided"
        return "holds" if self.mean * sign > 0 else "REVERSED"

    def text(self, digits: int = 1) -> str:
        """Return the difference as text, ``+1.8 ± 0.4``; for one seed without the interval."""
        spread = "" if self.seeds == 1 else f" ± {self.half_width:.{digits}f}"
        return f"{self.mean:+.{digits}f}{spread}"


def over_seeds(differences: Sequence[float], tries: int = 1) -> Difference | None:
    """Return mean and interval of a difference, one value per seed; None for no seed.

    The interval of one of several ``tries`` is Bonferroni's: all of them together hold with 95 %.
    """
    if not differences:
        return None
    return Difference(mean(differences), student_half_width(differences, tries), len(differences))


def paired(first: Mapping[int, float], second: Mapping[int, float], scale: float = 100.0) -> Difference | None:
    """Return first minus second, times ``scale``, over the seeds that both have; None if they share none."""
    return over_seeds([scale * (first[seed] - second[seed]) for seed in sorted(first.keys() & second.keys())])
