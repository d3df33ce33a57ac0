"""Tables of FLARE's results page, in Markdown, and which of the paper's orderings hold."""

from collections.abc import Mapping, Sequence
from statistics import mean

from vfl.studies.horizontal.results import Result, spread

Values = dict[str, dict[int, float]]
"""A number by method and seed; larger is better."""


def section(title: str, image: str | None, lines: Sequence[str]) -> str:
    """Return a section with its plot."""
    plot = [f"![{title}]({image})", ""] if image else []
    return "\n".join([f"## {title}", "", *plot, *lines, ""])


def accuracies(results: Sequence[Result]) -> Values:
    """Return every run's accuracy over the last tenth of its evaluations."""
    values: Values = {}
    for result in results:
        values.setdefault(result.method, {})[result.seed] = result.last
    return values


def accuracy_table(values: Values) -> str:
    """Return mean and standard deviation over the seeds, in percent."""
    lines = ["| method | accuracy | seeds |", "|---|---|---|"]
    for name, by_seed in values.items():
        lines.append(f"| {name} | {spread(list(by_seed.values())).text(_percent)} | {len(by_seed)} |")
    return "\n".join(lines)


def beats(values: Values, better: str, worse: str, unit: str = "points", scale: float = 100.0) -> str:
    """Return whether a published ordering holds, by the mean over the seeds that both have."""
    seeds = sorted(values.get(better, {}).keys() & values.get(worse, {}).keys())
    if not seeds:
        return f"- {better} above {worse}: not trained"
    differences = [scale * (values[better][seed] - values[worse][seed]) for seed in seeds]
    verdict = "holds" if mean(differences) > 0 else "DOES NOT HOLD"
    wins = sum(difference > 0 for difference in differences)
    return f"- {better} better than {worse}: {verdict} ({mean(differences):+.2f} {unit}, {wins} of {len(seeds)} seeds)"


def participation_table(values: Mapping[str, Sequence[float]], quantities: Sequence[str]) -> str:
    """Return devices per round and local steps per device of every policy."""
    lines = [f"| policy | {' | '.join(quantities)} |", "|---|" + "---|" * len(quantities)]
    lines += [f"| {name} | {' | '.join(f'{number:.1f}' for number in row)} |" for name, row in values.items()]
    return "\n".join(lines)


def figure_8_table(by_deadline: Mapping[float, Values]) -> str:
    """Return the accuracy of SPF and SP for every deadline."""
    lines = ["| t_thr (s) | SPF | SP |", "|---|---|---|"]
    for deadline_s, values in by_deadline.items():
        cells = [spread(list(values[name].values())).text(_percent) for name in ("SPF", "SP")]
        lines.append(f"| {deadline_s:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
