"""Comparison of settings: the Pareto front, the cheapest within some points, and the costs of reaching a target."""

from collections.abc import Callable, Sequence
from math import ceil
from statistics import mean
from statistics import variance as variance_of
from typing import NamedTuple

from vfl.base.metrics import LOWER_IS_BETTER, points_lost
from vfl.reports.runs import Subject, Variant

TIE = 0.01
"""Share by which costs may differ and still count as equal."""
TARGET_SHARE = 0.9
"""Share of the best variant's final score that is the target of the time to accuracy."""


class Reached(NamedTuple):
    """Costs of a variant, mean over the seeds, until its score first reached the target."""

    rounds: float
    bytes: float
    macs: float
    seconds: float


def merit(variant: Variant) -> float:
    """Return the score, or the negative of an error: larger is better."""
    return -variant.score if variant.runs[0].metric in LOWER_IS_BETTER else variant.score


def lost(variant: Variant, reference: Variant) -> float:
    """Return by how many percentage points a variant is worse than another; for an error, by how many percent."""
    return points_lost(variant.runs[0].metric, variant.score, reference.score)


def pareto_front(variants: Sequence[Variant], cost: Callable[[Variant], float]) -> list[Variant]:
    """Return the variants, cheapest first, that no other beats: none is as cheap and better, or cheaper and as good.

    Costs within ``TIE`` of each other count as equal.
    """
    front: list[Variant] = []
    for variant in sorted(variants, key=lambda each: (cost(each), -merit(each))):
        # Cheapest first: all before are as cheap or cheaper, so that only a better one adds to the front.
        if not front or merit(variant) > merit(front[-1]):
            if front and cost(variant) <= (1 + TIE) * cost(front[-1]):
                front.pop()  # as cheap, and worse
            front.append(variant)
    return front


def sent_bytes(variant: Variant) -> float:
    """Return the bytes of training, mean over the seeds."""
    return mean(run.sent_bytes for run in variant.runs)


def train_macs(variant: Variant) -> float:
    """Return the multiply-accumulates of training, mean over the seeds."""
    return mean(run.macs for run in variant.runs)


def cheapest_within(subject: Subject, points: float, cost: Callable[[Variant], float]) -> Variant:
    """Return the cheapest variant that is at most ``points`` worse than the reference.

    Among those whose cost is within ``TIE`` of the smallest, the best one.
    """
    reference = subject.reference
    accurate = [variant for variant in subject.variants if lost(variant, reference) <= points + 1e-7]  # rounding
    cheapest = min(map(cost, accurate))  # the reference is among them
    return max((each for each in accurate if cost(each) <= (1 + TIE) * cheapest), key=merit)


def joint_cost(subject: Subject) -> Callable[[Variant], float]:
    """Return the joint cost function: the mean of the shares of the reference's bytes and multiply-accumulates."""
    reference_bytes, reference_macs = sent_bytes(subject.reference), train_macs(subject.reference)
    return lambda variant: (
        (sent_bytes(variant) / max(1.0, reference_bytes) + train_macs(variant) / max(1.0, reference_macs)) / 2
    )


def noise(one: Variant, other: Variant) -> str:
    """Return a remark on whether the seeds' variation could explain a difference in score; "" if it could not.

    A difference counts if it exceeds two standard errors of the difference of means.
    """
    seeds = min(len(one.runs), len(other.runs))
    if seeds < 2:
        return "one seed cannot tell a difference from noise: train three"
    variance = sum(variance_of([run.score for run in each.runs]) for each in (one, other))
    # The standard error of a difference of means over n seeds is sqrt(variance / n); twice that, squared, is below.
    difference = abs(one.score - other.score)
    if difference * difference > 4 * variance / seeds:
        return ""
    advice = f"{ceil(4 * variance / difference**2)} seeds would tell" if difference > 0 else "they are equal"
    return f"less than the seeds differ by themselves: {advice}"


def target_score(subject: Subject) -> float:
    """Return the target score of the time to accuracy: a share in tenths of a percent, an error with three digits."""
    best = max(subject.variants, key=merit).score
    # Rounded, as the page shows it: else a run might reach what is shown and not what is meant.
    if subject.metric in LOWER_IS_BETTER:
        return float(f"{best / TARGET_SHARE:.3g}")
    return round(best - (1 - TARGET_SHARE) * abs(best), 3)  # R^2 may be negative


def reached(variant: Variant, target: float) -> Reached | None:
    """Return the costs of reaching the target; None if a seed never did."""
    rounds_by_run = [(run, run.round_reaching(target)) for run in variant.runs]
    spent = [
        (run.rows[at]["round"] + 1, run.bytes_by_round()[at], run.macs_by_round()[at], run.seconds_by_round()[at])
        for run, at in rounds_by_run
        if at is not None
    ]
    return Reached(*map(mean, zip(*spent, strict=True))) if len(spent) == len(rounds_by_run) else None
