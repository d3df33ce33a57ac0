"""What the runs show of the paper's claims: paired differences between runs of one seed, with intervals over seeds.

Runs of one seed share their rounds up to the first difference between them (a fork), so that a difference has no
noise from before it. A claim is judged by the interval of its mean difference, never by one seed or an order of means.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# scipy ships no stubs.

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, stdev

from vfl.results import RunResult
from vfl.run_folder import Row
from vfl.studies.lvfl.plan import RATIOS, REFERENCE, Plan, scale_round
from vfl.studies.lvfl.prunings import prunings
from vfl.studies.runs import StudyResult

BySeed = Mapping[str, StudyResult]
"""The finished results of one seed, by method."""
Value = Callable[[BySeed], float]
CONFIDENCE = 0.95
AROUND = ("accuracy/test_before_pruning", "accuracy/test_after_pruning")
INTRODUCTION = (
    "A difference is one between runs of the same seed, which share all rounds before they first differ; it is given "
    "as its mean over seeds ± the half width of a 95 % interval (Student's t; none for one seed), accuracies in "
    "points. *Undecided*: the interval contains 0. The intervals are of single differences: of twenty that are 0, one "
    "is expected to exclude it."
)


@dataclass(frozen=True)
class Difference:
    """A difference by seed."""

    values: tuple[float, ...]

    @property
    def half_width(self) -> float:
        """Half the width of the mean's 95 % interval; infinite for one seed."""
        from scipy.stats import t  # half a second, and only reports need it

        seeds = len(self.values)
        if seeds < 2:
            return math.inf
        return float(t.ppf((1 + CONFIDENCE) / 2, seeds - 1)) * stdev(self.values) / math.sqrt(seeds)

    def text(self, form: str = "{:+.1f}", unit: float = 100.0) -> str:
        """Return mean and half width."""
        shown = form.format(unit * mean(self.values))
        return shown if math.isinf(self.half_width) else f"{shown} ± {form.format(unit * self.half_width)[1:]}"

    def verdict(self, claimed: int) -> str:
        """Say whether the interval lies on the side of 0 that is ``claimed`` (its sign)."""
        if abs(mean(self.values)) <= self.half_width:
            return "undecided"
        return "as claimed" if mean(self.values) * claimed > 0 else "the opposite"


def findings(plan: Plan, results: Sequence[StudyResult]) -> list[str]:
    """Return Markdown lines: every method against NL, then every claim of the paper with what was measured of it."""
    seeds = [{result.method: result for result in results if result.seed == seed} for seed in plan.seeds]
    rounds = plan.base.training.rounds
    lines = [INTRODUCTION, "", f"Against NL, mean of the last {rounds - _last(rounds)} rounds:", ""]
    lines += ["| method | accuracy | training loss | test loss |", "|---|--:|--:|--:|"]
    for method in plan.methods:
        if method != REFERENCE and (shown := _against_reference(seeds, method, rounds)):
            lines.append(f"| {method} | {' | '.join(shown)} |")
    lines += ["", "| claim of the paper | measured | difference | |", "|---|---|--:|---|"]
    for claim, measured, value, methods, sign in _claims(plan, seeds):
        found = _difference(seeds, methods, value)
        if found is not None:
            lines.append(f"| {claim} | {measured} | {found.text()} | {found.verdict(sign)} |")
    return [*lines, ""]


def _against_reference(seeds: Sequence[BySeed], method: str, rounds: int) -> list[str]:
    shown: list[str] = []
    for tag, form, unit in (
        ("accuracy/test", "{:+.1f}", 100.0),
        ("loss/train", "{:+.3f}", 1.0),
        ("loss/test", "{:+.2f}", 1.0),
    ):
        found = _difference(seeds, (method, REFERENCE), _gap(method, REFERENCE, _last(rounds), rounds, tag))
        if found is not None:
            shown.append(found.text(form, unit))
    return shown


Claim = tuple[str, str, Value, tuple[str, ...], int]
"""What is claimed, what is measured of it and how, of which runs, and the sign that the claim gives it."""


def _claims(plan: Plan, seeds: Sequence[BySeed]) -> list[Claim]:
    rounds = plan.base.training.rounds
    claims = [claim for method in plan.methods for claim in _of_prunings(seeds, method, rounds)]
    pruned = {method: start for method in plan.methods for start in _pruning_rounds(seeds, method)[:1]}
    for less, more in pairwise(f"alpha{ratio:g}" for ratio in RATIOS):
        if {less, more} <= pruned.keys():
            start, both = pruned[more], (less, more)
            claims += [
                (
                    "a larger α drops further",
                    f"{more} - {less}, pruning's round",
                    _gap(more, less, start, start + 1),
                    both,
                    -1,
                ),
                (
                    "a larger α ends lower",
                    f"{more} - {less}, last rounds",
                    _gap(more, less, _last(rounds), rounds),
                    both,
                    -1,
                ),
            ]
    start, stop = (scale_round(percent, 100, rounds) for percent in (10, 40))
    for less, more in pairwise((REFERENCE, *(f"beta{ratio:g}" for ratio in RATIOS))):
        measured = f"{more} - {less}, rounds {start} to {stop - 1}"
        claims.append(("a smaller β converges faster", measured, _gap(more, less, start, stop), (less, more), -1))
    for alpha, beta in (("PL", "ML"), *((f"alpha{ratio:g}", f"beta{ratio:g}") for ratio in RATIOS)):
        if alpha in pruned:
            measured = f"{beta} - {alpha}, rounds {pruned[alpha]} to {rounds - 1}"
            claims.append(("β costs less than α", measured, _gap(beta, alpha, pruned[alpha], rounds), (alpha, beta), 1))
    return claims


def _of_prunings(seeds: Sequence[BySeed], method: str, rounds: int) -> list[Claim]:
    """Return what is claimed of each pruning of a method."""
    starts = _pruning_rounds(seeds, method)
    claims: list[Claim] = []
    for start, until in zip(starts, [*starts, rounds][1:], strict=True):
        where, runs = f"{method}, round {start}", (method, REFERENCE)
        if all(AROUND[0] in run[method].rows[start] for run in seeds if method in run):
            value = _change(method, start, lambda row: row[AROUND[1]] - row[AROUND[0]])
            claims.append(("a pruning lowers the accuracy", f"{where}, right after it, no step", value, (method,), -1))
        fall = _change_beside(method, start - 1, start)
        rise = _change_beside(method, start, until - 1)
        claims.append(("a pruning lowers the accuracy", f"{where}: change over it, less NL's", fall, runs, -1))
        claims.append(
            ("... which then recovers", f"{where}: change from it to round {until - 1}, less NL's", rise, runs, 1)
        )
    return claims


def _pruning_rounds(seeds: Sequence[BySeed], method: str) -> list[int]:
    """Return the rounds in which a method prunes: the same for every seed."""
    results = [run[method] for run in seeds if method in run]
    return [pruning.round_index for pruning in prunings(results[0])] if results else []


def _difference(seeds: Sequence[BySeed], methods: Sequence[str], value: Value) -> Difference | None:
    """Return the difference over the seeds that have all runs; None where none has."""
    values = tuple(value(run) for run in seeds if set(methods) <= run.keys())
    return Difference(values) if values else None


def _gap(one: str, other: str, start: int, stop: int, tag: str = "accuracy/test") -> Value:
    """Measure how far the mean of one run is above that of another, in the rounds ``start`` to ``stop`` - 1."""
    return lambda run: _mean(run[one], start, stop, tag) - _mean(run[other], start, stop, tag)


def _change_beside(method: str, before: int, after: int) -> Value:
    """Measure by how much more a run's accuracy rises from one round to another than NL's does."""
    return lambda run: _gap(method, REFERENCE, after, after + 1)(run) - _gap(method, REFERENCE, before, before + 1)(run)


def _change(method: str, round_index: int, change: Callable[[Row], float]) -> Value:
    return lambda run: change(run[method].rows[round_index])


def _mean(result: RunResult, start: int, stop: int, tag: str) -> float:
    return mean(row[tag] for row in result.rows[start:stop])


def _last(rounds: int) -> int:
    """Return the first round of the last sixth of a run."""
    return rounds - max(1, rounds // 6)
