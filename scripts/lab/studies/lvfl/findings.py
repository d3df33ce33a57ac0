"""The paper's claims, judged by paired differences between runs of one seed, with intervals over seeds.

Runs of one seed share their rounds up to the first difference between them (a fork), so that a difference has no
noise from before it. A claim is judged by the interval of its mean difference, never by one seed or an order of means.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

from scripts.lab.studies.differences import Difference, over_seeds
from scripts.lab.studies.lvfl.plan import RATIOS, REFERENCE, Plan, scale_round
from scripts.lab.studies.lvfl.prunings import prunings
from scripts.lab.studies.runs import StudyResult
from vfl.reports.markdown import table
from vfl.runs.results import RunResult

BySeed = Mapping[str, StudyResult]
"""The finished results of one seed, by method."""
Value = Callable[[BySeed], float]
BEFORE, AFTER = "accuracy/test_before_pruning", "accuracy/test_after_pruning"
INTRODUCTION = (
    "A difference is one between runs of the same seed, which share all rounds before they first differ; it is given "
    "as its mean over seeds ± the half width of a 95 % interval (Student's t; none for one seed), accuracies in "
    "points. *Undecided*: the interval contains 0. The intervals are of single differences: of twenty that are 0, one "
    "is expected to exclude it."
)
SHOWN = (("accuracy/test", 100.0, 1), ("loss/train", 1.0, 3), ("loss/test", 1.0, 2))
"""Tags compared with NL's, their scale and digits."""


class Claim(NamedTuple):
    """A claim of the paper, and its measure."""

    text: str
    measured: str
    value: Value
    methods: tuple[str, ...]
    """Methods of the runs that it uses."""
    sign: int
    """Sign of the difference, as claimed."""


def findings(plan: Plan, results: Sequence[StudyResult]) -> list[str]:
    """Return Markdown lines: every method against NL, then every claim of the paper with its measured value."""
    seeds = [{result.method: result for result in results if result.seed == seed} for seed in plan.seeds]
    against = {
        method: _against_reference(seeds, method, rounds)
        for method, rounds in plan.rounds.items()
        if method != REFERENCE
    }
    judged = [(claim, _difference(seeds, claim.methods, claim.value)) for claim in _claims(plan, seeds)]
    return [
        INTRODUCTION,
        "",
        "Against NL in the same rounds, mean of the last sixth of a method's rounds:",
        "",
        *table(
            ("method", "rounds", "accuracy", "training loss", "test loss"),
            [
                [method, f"{_last(plan.rounds[method])} to {plan.rounds[method] - 1}", *shown]
                for method, shown in against.items()
                if shown
            ],
        ),
        "",
        *table(
            ("claim of the paper", "measured", "difference", ""),
            [
                [claim.text, claim.measured, found.text(), found.verdict(claim.sign)]
                for claim, found in judged
                if found is not None
            ],
        ),
    ]


def _against_reference(seeds: Sequence[BySeed], method: str, rounds: int) -> list[str]:
    shown: list[str] = []
    for tag, scale, digits in SHOWN:
        gap = _gap(method, REFERENCE, _last(rounds), rounds, tag, scale)
        found = _difference(seeds, (method, REFERENCE), gap)
        shown += [found.text(digits)] if found is not None else []
    return shown


def _claims(plan: Plan, seeds: Sequence[BySeed]) -> Iterator[Claim]:
    rounds = plan.rounds
    # By method that prunes at all, its first pruning.
    first = {method: start for method in plan.methods for start in _pruning_rounds(seeds, method)[:1]}
    for method in plan.methods:
        yield from _of_prunings(seeds, method, rounds[method])
    for less, more in pairwise(f"alpha{ratio:g}" for ratio in RATIOS):
        if {less, more} <= first.keys():
            both, start, stop = (less, more), first[more], min(rounds[less], rounds[more])
            fall, end = _gap(more, less, start, start + 1), _gap(more, less, _last(stop), stop)
            yield Claim("a larger α drops further", f"{more} - {less}, pruning's round", fall, both, -1)
            yield Claim("a larger α ends lower", f"{more} - {less}, last rounds", end, both, -1)
    start, latest = (scale_round(percent, 100, plan.base.training.rounds) for percent in (10, 40))
    for less, more in pairwise((REFERENCE, *(f"beta{ratio:g}" for ratio in RATIOS))):
        stop = min(latest, rounds.get(more, 0))
        if start < stop:
            measured = f"{more} - {less}, rounds {start} to {stop - 1}"
            yield Claim("a smaller β converges faster", measured, _gap(more, less, start, stop), (less, more), -1)
    for alpha, beta in (("PL", "ML"), *((f"alpha{ratio:g}", f"beta{ratio:g}") for ratio in RATIOS)):
        stop = min(rounds.get(alpha, 0), rounds.get(beta, 0))
        if first.get(alpha, stop) < stop:
            measured = f"{beta} - {alpha}, rounds {first[alpha]} to {stop - 1}"
            yield Claim("β costs less than α", measured, _gap(beta, alpha, first[alpha], stop), (alpha, beta), 1)


def _of_prunings(seeds: Sequence[BySeed], method: str, rounds: int) -> Iterator[Claim]:
    """Yield the claims about each pruning of a method."""
    lowers, runs = "a pruning lowers the accuracy", (method, REFERENCE)
    starts = _pruning_rounds(seeds, method)
    for start, until in zip(starts, [*starts, rounds][1:], strict=True):  # up to the next pruning, or the end
        where = f"{method}, round {start}"
        if all(BEFORE in run[method].rows[start] for run in seeds if method in run):
            yield Claim(lowers, f"{where}, right after it, no step", _change(method, start), (method,), -1)
        fall, rise = _rise_beside(method, start - 1, start), _rise_beside(method, start, until - 1)
        yield Claim(lowers, f"{where}: change over it, less NL's", fall, runs, -1)
        yield Claim(
            "... which then recovers", f"{where}: change from it to round {until - 1}, less NL's", rise, runs, 1
        )


def _pruning_rounds(seeds: Sequence[BySeed], method: str) -> list[int]:
    """Return the rounds in which a method prunes: the same for every seed."""
    results = [run[method] for run in seeds if method in run]
    return [pruning.round_index for pruning in prunings(results[0])] if results else []


def _difference(seeds: Sequence[BySeed], methods: Sequence[str], value: Value) -> Difference | None:
    """Return the difference over the seeds that have all runs; None if no seed has."""
    return over_seeds([value(run) for run in seeds if set(methods) <= run.keys()])


def _gap(one: str, other: str, start: int, stop: int, tag: str = "accuracy/test", scale: float = 100.0) -> Value:
    """Return the measure of one run's mean minus another's, in the rounds ``start`` to ``stop`` - 1."""
    return lambda run: scale * (_mean(run[one], start, stop, tag) - _mean(run[other], start, stop, tag))


def _rise_beside(method: str, before: int, after: int) -> Value:
    """Return the measure of a run's rise in accuracy from one round to another, minus NL's."""
    return lambda run: _gap(method, REFERENCE, after, after + 1)(run) - _gap(method, REFERENCE, before, before + 1)(run)


def _change(method: str, start: int) -> Value:
    """Return the measure of a pruning's effect on the accuracy, before any step."""
    return lambda run: 100 * (run[method].rows[start][AFTER] - run[method].rows[start][BEFORE])


def _mean(result: RunResult, start: int, stop: int, tag: str) -> float:
    return mean(row[tag] for row in result.rows[start:stop])


def _last(rounds: int) -> int:
    """Return the first round of the last sixth of a run."""
    return rounds - max(1, rounds // 6)
