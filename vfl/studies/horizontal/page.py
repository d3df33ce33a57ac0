"""The results page of the comparison: plots, and a section per study in Markdown."""

from collections.abc import Sequence
from pathlib import Path

from vfl.amounts import amount
from vfl.reports.markdown import section, table
from vfl.results import CLOCK
from vfl.studies.horizontal.studies import STUDIES, Study
from vfl.studies.page import Values, beats, last_accuracies, matched, percent, spread, write_page
from vfl.studies.plots import Panel, curves_of, draw_panels
from vfl.studies.runs import StudyResult, StudyRun

HEADINGS = (
    "method",
    "best accuracy",
    "accuracy, last tenth",
    "matched",
    "rounds to target",
    "simulated s to it",
    "bytes",
    "MACs",
)
COMPARED = (
    "Mean ± standard deviation over the seeds. matched: points of the last tenth over FedAvg at the server rate that "
    "makes its steps as long. There and in the orderings: mean of the paired differences ± half of its 95 % interval "
    "(Student's t)."
)


def write_results(runs: Sequence[StudyRun], folder: Path, title: str) -> int:
    """Draw, tabulate and report the runs that are finished; return how many they are. Raises ConfigError for none."""

    def sections(results: list[StudyResult]) -> list[str]:
        by_study = {name: [each for each in results if each.study == name] for name in STUDIES}
        return [_draw_and_tell(name, own, folder) for name, own in by_study.items() if own]

    return write_page(runs, folder, title, sections)


def _draw_and_tell(name: str, results: Sequence[StudyResult], folder: Path) -> str:
    panels = [
        Panel("", label, "test accuracy (%)", curves_of(results, across=across, scale=100))
        for label, across in (("round", "round"), ("simulated time (s)", CLOCK))
    ]
    draw_panels(panels, folder / f"{name}.png", STUDIES[name].title)
    return study_section(name, results, f"{name}.png")


def study_section(name: str, results: Sequence[StudyResult], image: str) -> str:
    """Return one study: its setting, plot, table, and which published orderings held."""
    study = STUDIES[name]
    target = common_target(results)
    by_method = {method: [each for each in results if each.method == method] for method in study.methods}
    values = last_accuracies(results)
    rows = [_row(method, own, target, values, study) for method, own in by_method.items() if own]
    about = f"Target: {target:.0%} (nine tenths of the median best accuracy). {COMPARED}"
    told = [*_orderings(study, results), *_time_saved(results, target)]
    return section(study.title, image, [about, "", *table(HEADINGS, rows), "", *told])


def common_target(results: Sequence[StudyResult]) -> float:
    """Return a target for rounds to target: nine tenths of the median of the methods' best accuracies."""
    best = sorted(result.best for result in results)
    return round(0.9 * best[len(best) // 2], 2)


def _row(method: str, own: Sequence[StudyResult], target: float, values: Values, study: Study) -> list[str]:
    whole = "{:.0f}".format
    return [
        method,
        spread([result.best for result in own]).text(percent),
        spread([result.last for result in own]).text(percent),
        matched(values, method, study.matched),
        spread([result.rounds_to(target) for result in own]).text(whole),
        spread([result.seconds_to(target) for result in own]).text(whole),
        f"{amount(sum(result.sent_bytes for result in own) / len(own))}B",
        amount(sum(result.macs for result in own) / len(own)),
    ]


def _orderings(study: Study, results: Sequence[StudyResult]) -> list[str]:
    """Return which published orderings hold, by the mean over the seeds of the last tenth's accuracy."""
    values = last_accuracies(results)
    trained = [pair for pair in study.orderings if values.keys() >= set(pair)]
    if not study.orderings:
        return []
    heading = f"Published orderings ({study.source}), here by the accuracy of the last tenth of the rounds:"
    return [heading, "", *(beats(values, *pair, verb="above", digits=1) for pair in trained), ""]


def _time_saved(results: Sequence[StudyResult], target: float) -> list[str]:
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
