"""Counts in readable form, and exact decimal fractions of numbers."""

from fractions import Fraction
from functools import lru_cache


@lru_cache(maxsize=64)
def exact(number: float) -> Fraction:
    """Return the fraction that a number's decimal form means: floor(exact(0.29) * 100) is 29, floor(0.29 * 100) 28."""
    return Fraction(repr(float(number)))


def amount(number: float) -> str:
    """Return a count with three digits and a decimal prefix, such as ``78.5 M``; the unit follows directly."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5:
            return f"{number:.3g} {prefix}"
        number /= 1000
    return f"{number:.3g} P"


def duration(seconds: float) -> str:
    """Return a time in the unit in which it is read, such as ``45 s``, ``12 min`` or ``3.3 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
