"""Which settings are worth their price: the Pareto front, the cheapest within some points, and costs up to a target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from vfl.reports.runs import Subject, Variant
from vfl.results import RunResult

TARGET_SHARE = 0.9
"""Of the best variant's final accuracy: what the time to accuracy is measured to."""


@dataclass(frozen=True)
class Reached:
    """What a variant had spent, mean over the seeds, when its test accuracy first was the target."""

    rounds: float
    bytes: float
    macs: float
    seconds: float


def pareto_front(variants: Sequence[Variant], cost: Callable[[Variant], float]) -> list[Variant]:
    """Return the variants, cheapest first, that no other beats: none is as cheap and better, or cheaper and as good."""
    front: list[Variant] = []
    for variant in sorted(variants, key=lambda each: (cost(each), -each.accuracy)):
        if not front or variant.accuracy > front[-1].accuracy:
            front.append(variant)
    return front


def sent_bytes(variant: Variant) -> float:
    """Return the bytes of training, mean over the seeds."""
    return mean(run.sent_bytes for run in variant.runs)


def train_macs(variant: Variant) -> float:
    """Return the multiply-accumulates of training, mean over the seeds."""
    return mean(run.macs for run in variant.runs)


def cheapest_within(subject: Subject, points: float, cost: Callable[[Variant], float]) -> Variant:
    """Return the cheapest variant with at most so many percentage points less accuracy than the reference."""
    least = subject.reference.accuracy - points / 100 - 1e-9
    kept = [variant for variant in subject.variants if variant.accuracy >= least]
    return min(kept, key=cost)  # the reference itself is among them


def target_accuracy(subject: Subject) -> float:
    """Return the accuracy, in whole percent, to which time is measured."""
    best = max(variant.accuracy for variant in subject.variants)
    return round(TARGET_SHARE * best, 2)


def reached(variant: Variant, target: float) -> Reached | None:
    """Return what reaching the target took; None where a seed never did."""
    found = [(run, run.round_reaching(target)) for run in variant.runs]
    spent = [_spent(run, index) for run, index in found if index is not None]
    if len(spent) < len(found):
        return None
    return Reached(*(mean(values) for values in zip(*spent, strict=True)))


def _spent(run: RunResult, index: int) -> tuple[float, float, float, float]:
    return index + 1, run.bytes_by_round()[index], run.macs_by_round()[index], run.seconds_by_round()[index]
