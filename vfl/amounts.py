"""Counts as people read them, and numbers as they wrote them."""

from fractions import Fraction
from functools import lru_cache


@lru_cache(maxsize=64)
def exact(number: float) -> Fraction:
    """Return a number as it is written in decimal: 29 is the floor of exact(0.29) * 100, 28 that of 0.29 * 100."""
    return Fraction(repr(float(number)))


def amount(number: float) -> str:
    """Return a count with three digits and a decimal prefix, as ``78.5 M`` (the unit follows at once)."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5:
            return f"{number:.3g} {prefix}"
        number /= 1000
    return f"{number:.3g} P"
