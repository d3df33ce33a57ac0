"""The types that the settings of another package's algorithm are made of (docs/extending.md)."""

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
