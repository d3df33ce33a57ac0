"""The results page of the comparison, in Markdown."""

from collections.abc import Sequence

from vfl.amounts import amount
from vfl.studies.horizontal.results import Result, common_target, spread
from vfl.studies.horizontal.studies import STUDIES, Study


def study_section(name: str, results: Sequence[Result], image: str) -> str:
    """Return one study: its setting, plot, table, and which published orderings held."""
    study = STUDIES[name]
    target = common_target(results)
    lines = [f"## {study.title}", "", f"![{study.title}]({image})", ""]
    lines += [
        f"Target: {target:.0%} (nine tenths of the median best accuracy). Mean ± standard deviation over the seeds.",
        "",
        "| method | best accuracy | accuracy, last tenth | rounds to target | simulated s to it | bytes | MACs |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in study.methods:
        own = [result for result in results if result.method == method]
        if own:
            lines.append(_row(method, own, target))
    return "\n".join([*lines, "", *_orderings(study, results), *_time_saved(results, target), ""])


def _row(method: str, own: Sequence[Result], target: float) -> str:
    percent, whole = _percent, "{:.0f}".format
    summaries = [result.summary for result in own]
    sent = sum(each["uplink_bytes"] + each["downlink_bytes"] for each in summaries) / len(summaries)
    macs = sum(each["train_macs"] for each in summaries) / len(summaries)
    cells = [
        spread([result.best for result in own]).text(percent),
        spread([result.last for result in own]).text(percent),
        spread([result.rounds_to(target) for result in own]).text(whole),
        spread([result.seconds_to(target) for result in own]).text(whole),
        f"{amount(sent)}B",
        amount(macs),
    ]
    return f"| {method} | " + " | ".join(cells) + " |"


def _orderings(study: Study, results: Sequence[Result]) -> list[str]:
    """Return which published orderings hold, by the mean over the seeds of the last tenth's accuracy."""
    if not study.orderings:
        return []
    lines = [f"Published orderings ({study.source}), here by the accuracy of the last tenth of the rounds:", ""]
    for better, worse in study.orderings:
        pair = [[result.last for result in results if result.method == method] for method in (better, worse)]
        if not all(pair):
            continue
        difference = 100 * (sum(pair[0]) / len(pair[0]) - sum(pair[1]) / len(pair[1]))
        wins = sum(first > second for first, second in zip(*pair, strict=False))
        verdict = "holds" if difference > 0 else "DOES NOT HOLD"
        seeds = min(map(len, pair))
        lines.append(f"- {better} above {worse}: {verdict} ({difference:+.1f} points, {wins} of {seeds} seeds)")
    return [*lines, ""]


def _time_saved(results: Sequence[Result], target: float) -> list[str]:
    """Return how much less simulated time the interval takes than waiting for the slowest, at equal accuracy.

    Only of methods that reached the target with every seed: a mean over the lucky ones would flatter.
    """
    spreads = {
        method: spread([result.seconds_to(target) for result in results if result.method == method])
        for method in ("fedavg_waiting", "fedavg", "dms", "fedasync")
    }
    times = {method: own.mean for method, own in spreads.items() if own.mean is not None and own.of == own.seeds}
    waiting = times.pop("fedavg_waiting", None)
    if waiting is None or not times:
        return []
    shares = [f"{method} {1 - seconds / waiting:.0%}" for method, seconds in times.items()]
    against = "Simulated time to the target saved against waiting for the slowest (fedavg_waiting)"
    return [f"{against}: {', '.join(shares)}."]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
