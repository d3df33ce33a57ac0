"""What the paper claims about its figures, checked on the numbers of each seed: stated whether it holds or not."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import mean, median

from vfl.results import RunResult
from vfl.studies.lvfl.plan import RATIOS, REFERENCE, Plan, scale_round
from vfl.studies.lvfl.prunings import Pruning, prunings
from vfl.studies.runs import StudyResult

BySeed = Mapping[str, RunResult]
"""The finished results of one seed, by method."""


def findings(plan: Plan, results: Sequence[StudyResult]) -> list[str]:
    """Return Markdown lines: each claim, then what every seed shows of it."""
    claims: dict[str, Callable[[Plan, BySeed], list[str]]] = {
        "Every pruning lowers the test accuracy, which then recovers.": _prunings_lower,
        "In Fig. 3a a larger α drops further and recovers later.": _larger_alpha,
        "In Fig. 3b a smaller β converges faster (rounds at 10 to 40 % of the run).": _smaller_beta,
        "β has a smaller effect than α.": _small_beta,
    }
    lines: list[str] = []
    for claim, check in claims.items():
        lines.append(f"**{claim}**")
        for seed in plan.seeds:
            by_method = {result.method: result for result in results if result.seed == seed}
            lines += [f"- Seed {seed}: {line}" for line in check(plan, by_method) or ["not enough finished runs."]]
        lines.append("")
    return lines


def usual_change(result: RunResult) -> float | None:
    """Return the median of the absolute changes of accuracy from one round to the next; None for one round."""
    changes = [abs(after - before) for before, after in pairwise(result.accuracies)]
    return median(changes) if changes else None


def points(share: float, *, sign: bool = False) -> str:
    """Return a difference of accuracies in percentage points."""
    return f"{100 * share:+.2f} points" if sign else f"{100 * share:.2f} points"


def _prunings_lower(plan: Plan, by_method: BySeed) -> list[str]:
    found = [(method, pruning) for method, result in by_method.items() for pruning in prunings(result)]
    if not found:
        return []
    dropped = [(method, pruning) for method, pruning in found if pruning.drop > 0]
    rose = _places([item for item in found if item not in dropped])
    lost = _places([item for item in dropped if item[1].recovery_rounds is None])
    lines = [
        f"the drop {_holds(not rose)}: accuracy was lower at the end of the round of {len(dropped)} of {len(found)} "
        f"prunings{f' (not at: {rose})' if rose else ''}."
    ]
    if dropped:
        lines.append(
            f"the recovery {_holds(not lost)}{f' (not before the next pruning or the end: {lost})' if lost else ''}."
        )
    reference = by_method.get(REFERENCE)
    usual = usual_change(reference) if reference else None
    drops = [pruning.drop for _, pruning in found]
    scale = f"drops of {points(min(drops))} to {points(max(drops))}"
    scale += (
        f"; NL without any pruning changes by {points(usual)} from round to round (median)."
        if usual is not None
        else "."
    )
    return [*lines, scale]


def _larger_alpha(plan: Plan, by_method: BySeed) -> list[str]:
    only = [_only_pruning(by_method.get(f"alpha{ratio:g}")) for ratio in RATIOS]
    found = [pruning for pruning in only if pruning is not None]
    if len(found) < len(RATIOS):
        return []
    drops = [pruning.drop for pruning in found]
    never = sum(p.recovery_rounds is None for p in found)
    waits = [p.until - p.round_index if p.recovery_rounds is None else p.recovery_rounds for p in found]
    texts = ["not by the end" if p.recovery_rounds is None else f"{p.recovery_rounds}" for p in found]
    ratios = ", ".join(f"{ratio:g}" for ratio in RATIOS)
    later = _holds(_rises(waits)) if never < 2 else "cannot be told"
    return [
        f"further drop {_holds(_rises(drops))}: {', '.join(points(drop) for drop in drops)} at α = {ratios}.",
        f"later recovery {later}: after {', '.join(texts)} rounds at α = {ratios}.",
    ]


def _smaller_beta(plan: Plan, by_method: BySeed) -> list[str]:
    runs = [by_method.get(name) for name in (REFERENCE, *(f"beta{ratio:g}" for ratio in RATIOS))]
    present = [run for run in runs if run is not None]
    if len(present) < len(runs):
        return []
    start, stop = (scale_round(percent, 100, plan.base.training.rounds) for percent in (10, 40))
    means = [mean(run.accuracies[start:stop]) for run in present]
    values = ", ".join(f"{100 * mean:.2f} %" for mean in means)
    holds = _rises([-mean for mean in means])
    return [
        f"{_holds(holds)}: mean accuracy of rounds {start} to {stop - 1} is {values} at β = 0, "
        f"{', '.join(f'{ratio:g}' for ratio in RATIOS)}."
    ]


def _small_beta(plan: Plan, by_method: BySeed) -> list[str]:
    reference = by_method.get(REFERENCE)
    if reference is None:
        return []
    pairs = [("Fig. 2", "PL", "ML")] + [("Fig. 3", f"alpha{ratio:g}", f"beta{ratio:g}") for ratio in RATIOS]
    lines: list[str] = []
    for figure, alpha_method, beta_method in pairs:
        alpha_run, beta_run = by_method.get(alpha_method), by_method.get(beta_method)
        if alpha_run is None or beta_run is None or not prunings(alpha_run):
            continue
        start, stop = prunings(alpha_run)[0].round_index, plan.base.training.rounds
        unchanged = mean(reference.accuracies[start:stop])
        by_alpha = mean(alpha_run.accuracies[start:stop]) - unchanged
        by_beta = mean(beta_run.accuracies[start:stop]) - unchanged
        lines.append(
            f"{figure}, {beta_method} against {alpha_method}: {_holds(abs(by_beta) < abs(by_alpha))}: mean accuracy "
            f"of rounds {start} to {stop - 1} is {points(by_beta, sign=True)} from NL's by β, "
            f"{points(by_alpha, sign=True)} by α."
        )
    return lines


def _places(found: Sequence[tuple[str, Pruning]]) -> str:
    return ", ".join(f"{method} at round {pruning.round_index}" for method, pruning in found)


def _only_pruning(result: RunResult | None) -> Pruning | None:
    found = prunings(result) if result else []
    return found[0] if len(found) == 1 else None


def _rises(values: Sequence[float]) -> bool:
    return all(before < after for before, after in pairwise(values))


def _holds(truth: bool) -> str:
    return "holds" if truth else "does NOT hold"
