"""Types for the settings of another package's algorithm (docs/extending.md)."""

from vfl.config.settings import (
    AboveZero,
    AtLeastTwo,
    Fraction,
    NotNegative,
    Number,
    Positive,
    Probability,
    RateSchedule,
    RatioSchedule,
    Section,
)

__all__ = [
    "AboveZero",
    "AtLeastTwo",
    "Fraction",
    "NotNegative",
    "Number",
    "Positive",
    "Probability",
    "RateSchedule",
    "RatioSchedule",
    "Section",
]
