"""Paired measurements, and requirements on them."""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

Raw = dict[str, list[float]]
"""Raw values by side, one per pair, in the order in which they were measured."""


@dataclass(frozen=True)
class Options:
    """Options of the command line; the defaults are the paper's setting.

    Raises ValueError, naming the option, for a value that cannot be measured.
    """

    pairs: int = 10
    """Number of pairs that count, without the warm-up."""
    threads: int | None = None
    """CPU threads; None leaves PyTorch's choice."""
    batch_size: int = 256
    width: float = 1.0
    """Multiplier of VGG16's widths."""
    embedding_size: int = 128

    def __post_init__(self) -> None:
        least = {"pairs": 1, "threads": 1, "batch_size": 2, "embedding_size": 1}  # BatchNorm needs two samples
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise ValueError(f"--{name.replace('_', '-')}: {value} is below {smallest}")
        if not 0 < self.width <= 16:
            raise ValueError(f"--width: {self.width:g} is not above 0 and at most 16")


@dataclass(frozen=True)
class Requirement:
    """A bound on one measured number."""

    measured: float
    sense: Literal[">=", "<="]
    target: float
    unit: str = ""
    """Unit of both numbers, with the space before it, if any."""
    excuse: str = ""
    """Reason why this machine cannot be judged; "" if it can."""

    @property
    def met(self) -> bool | None:
        """Return whether the bound holds; None if it is not judged."""
        if self.excuse:
            return None
        return self.measured >= self.target if self.sense == ">=" else self.measured <= self.target

    def __str__(self) -> str:
        verdict = {True: "met", False: "MISSED", None: f"not judged, {self.excuse}"}[self.met]
        measured, target = as_text(self.measured), as_text(self.target)
        return f"{measured}{self.unit}, target {self.sense} {target}: {verdict}"


@dataclass(frozen=True)
class Result:
    """One measured case. ``ratio_of`` names the two sides whose quotient, pair by pair, is the result."""

    group: str
    """Title of the table that the case stands in."""
    case: str
    raw: Raw
    ratio_of: tuple[str, str]
    unit: Literal["s", "bytes"] = "s"
    details: dict[str, float] = field(default_factory=dict[str, float])
    """Further numbers, whose names contain their units."""
    requirement: Requirement | None = None

    @property
    def ratios(self) -> list[float]:
        """Ratios of the two sides, one per pair."""
        return ratios(self.raw, self.ratio_of)

    def as_json(self) -> dict[str, Any]:
        """Return all fields and raw values."""
        requirement = self.requirement
        return asdict(self) | {
            "medians": {side: median(values) for side, values in self.raw.items()},
            "ratios": self.ratios,
            "ratio": {"median": median(self.ratios), "min": min(self.ratios), "max": max(self.ratios)},
            "requirement": requirement
            and {
                "measured": requirement.measured,
                "target": f"{requirement.sense} {requirement.target:g}{requirement.unit}",
                "met": requirement.met,
                "text": str(requirement),
            },
        }


def as_text(value: float) -> str:
    """Return a number with three digits, or whole."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def ratios(raw: Raw, ratio_of: tuple[str, str]) -> list[float]:
    """Return the quotients of two sides, pair by pair."""
    over, under = ratio_of
    return [one / other for one, other in zip(raw[over], raw[under], strict=True)]


def required_ratio(raw: Raw, ratio_of: tuple[str, str], sense: Literal[">=", "<="], target: float) -> Requirement:
    """Return a requirement on the median ratio of two sides."""
    return Requirement(median(ratios(raw, ratio_of)), sense, target)


def interleave(
    sides: Mapping[str, Callable[[], object]],
    pairs: int,
    warm_up: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Raw:
    """Return each side's seconds by the clock, one value per pair, after ``warm_up`` pairs that do not count.

    The order alternates from pair to pair (A B, B A, ...), so that neither side always comes first.
    """
    gc.collect()  # what earlier cases left is not collected within a timed one
    raw: Raw = {name: [] for name in sides}
    for pair in range(-warm_up, pairs):
        order = list(sides)[:: 1 if pair % 2 == 0 else -1]
        for name in order:
            started_s = clock()
            sides[name]()
            elapsed_s = clock() - started_s
            if pair >= 0:
                raw[name].append(elapsed_s)
    return raw
