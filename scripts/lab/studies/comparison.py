"""A page of studies: plots, a table of each study, and whether the published orderings hold."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median_high

from scripts.lab.studies.page import (
    CLIENTS,
    Values,
    beats,
    cells,
    last_accuracies,
    matched,
    percent,
    spread,
    write_page,
)
from scripts.lab.studies.plots import Panel, curves_of, draw_panels
from scripts.lab.studies.runs import StudyResult, StudyRun
from scripts.lab.studies.study import Study, horizontal_studies
from vfl.base.amounts import amount
from vfl.reports.markdown import section, table
from vfl.runs.results import CLOCK
from vfl.runs.run_folder import Row

HEADINGS = (
    "method",
    "seeds",
    "best accuracy",
    "accuracy, last tenth",
    "matched",
    "rounds to target",
    "simulated s to it",
    "bytes",
    "MACs",
)
SENT = "uplink_bytes/clients", "downlink_bytes/clients"
COLUMNS: Mapping[str, Callable[[Row], str]] = {
    **CLIENTS,
    "bytes/clients": lambda row: f"{sum(row[tag] for tag in SENT):.6g}" if SENT[0] in row else "",
    **cells("local_steps/mean", "dms/weighted_steps", "fedmom/alignment"),
}
"""Columns of ``results.csv``: bytes are of both ways, the last two of their algorithms alone."""
READING = (
    "Mean ± standard deviation over the seeds. matched: points of the last tenth over its control, FedAvg at a larger "
    "server rate. There and in the orderings: mean of the paired differences ± half of its 95 % interval "
    "(Student's t). Targets are nine tenths of the median best accuracy.\n"
)


def write_results(runs: Sequence[StudyRun], folder: Path, title: str) -> int:
    """Draw, tabulate and report the finished runs; return their number. Raises ConfigError for none."""

    def sections(results: list[StudyResult]) -> list[str]:
        by_study = {name: (study, of_study(results, name)) for name, study in horizontal_studies().items()}
        return [READING, *(_draw_and_tell(name, *each, folder) for name, each in by_study.items() if each[1])]

    return write_page(runs, folder, title, sections, COLUMNS)


def _draw_and_tell(name: str, study: Study, results: Sequence[StudyResult], folder: Path) -> str:
    panels = [accuracy_panel("", results), accuracy_panel("", results, CLOCK)]
    draw_panels(panels, folder / f"{name}.png", study.title)
    return section(study.title, f"{name}.png", told_of(study, results))


def of_study(results: Sequence[StudyResult], name: str) -> list[StudyResult]:
    """Return the results of one study."""
    return [result for result in results if result.study == name]


def accuracy_panel(title: str, results: Sequence[StudyResult], across: str = "round") -> Panel:
    """Return the test accuracies of a study over its rounds, or over ``CLOCK``."""
    label = "simulated time (s)" if across == CLOCK else across
    return Panel(title, label, "test accuracy (%)", curves_of(results, across=across, scale=100))


def told_of(study: Study, results: Sequence[StudyResult]) -> list[str]:
    """Return a study's section: its target, its table, and the published orderings that held."""
    target = common_target(results)
    values = last_accuracies(results)
    by_method = {method: [each for each in results if each.method == method] for method in study.methods}
    rows = [_row(method, own, target, values, study.matched) for method, own in by_method.items() if own]
    told = [f"Target: {target:.0%}.", "", *table(HEADINGS, rows), ""]
    if study.orderings:
        trained = [pair for pair in study.orderings if values.keys() >= set(pair)]
        heading = f"Published orderings ({study.source}), here by the accuracy of the last tenth of the rounds:"
        told += [heading, "", *(beats(values, *pair) for pair in trained), ""]
    return told + _time_saved(by_method, target)


def common_target(results: Sequence[StudyResult]) -> float:
    """Return a target for rounds to target: nine tenths of the median of the runs' best accuracies."""
    # The median: one method that fails, or shines, moves the target of the others little.
    return round(0.9 * median_high(result.best for result in results), 2)


def _row(
    method: str, own: Sequence[StudyResult], target: float, values: Values, controls: Mapping[str, str]
) -> list[str]:
    whole = "{:.0f}".format
    return [
        method,
        str(len(own)),
        spread([result.best for result in own], percent),
        spread([result.last for result in own], percent),
        matched(values, method, controls),
        spread([result.rounds_to(target) for result in own], whole),
        spread([result.seconds_to(target) for result in own], whole),
        f"{amount(mean(result.sent_bytes for result in own))}B",
        amount(mean(result.macs for result in own)),
    ]


def _time_saved(by_method: Mapping[str, Sequence[StudyResult]], target: float) -> list[str]:
    """Return the simulated time saved by the fixed interval, against waiting for the slowest, at equal accuracy.

    Only methods that reached the target with every seed are included: a mean over the lucky ones would flatter.
    """
    compared = ("fedavg_waiting", "fedavg", "dms", "fedasync")
    times: dict[str, float] = {}
    for method in compared:
        seconds = [each.seconds_to(target) for each in by_method.get(method, ())]
        reached = [each for each in seconds if each is not None]
        if reached and len(reached) == len(seconds):
            times[method] = mean(reached)
    waiting = times.pop("fedavg_waiting", None)
    if waiting is None or not times:
        return []
    shares = [f"{method} {1 - seconds / waiting:.0%}" for method, seconds in times.items()]
    against = "Simulated time to the target saved against waiting for the slowest (fedavg_waiting)"
    return [f"{against}: {', '.join(shares)}."]
