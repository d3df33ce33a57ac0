"""Common parts of all studies' pages: means over the seeds, published orderings, the files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from scripts.lab.studies.differences import paired
from scripts.lab.studies.runs import ACCURACY, StudyResult, StudyRun, load_results, results_table
from vfl.config import ConfigError
from vfl.runs.atomic import write_atomically, write_csv
from vfl.runs.results import CLOCK
from vfl.runs.run_folder import Row

Values = dict[str, dict[int, float]]
"""A number by method and seed; larger is better."""


def spread(values: Sequence[float | None], form: Callable[[float], str]) -> str:
    """Return mean and sample deviation over the seeds, as ``12 ± 1``, with the number of values if some lack one."""
    known = [value for value in values if value is not None]
    if not known:
        return "not reached"
    missing = f" ({len(known)} of {len(values)} seeds)" if len(known) < len(values) else ""
    deviation = f" ± {form(stdev(known))}" if len(known) > 1 else ""
    return f"{form(mean(known))}{deviation}{missing}"


def cells(*tags: str) -> dict[str, Callable[[Row], str]]:
    """Return columns of ``results.csv``: tags unchanged, "" if a round has none."""
    return {tag: lambda row, tag=tag: f"{row[tag]:.6g}" if tag in row else "" for tag in tags}


CLIENTS = cells(ACCURACY, "loss/train", CLOCK)
"""Columns of horizontal runs."""


def percent(share: float) -> str:
    """Return a share as ``12.3 %``."""
    return f"{100 * share:.1f} %"


def by_method_and_seed(results: Sequence[StudyResult], quantity: Callable[[StudyResult], float]) -> Values:
    """Return a quantity of every run."""
    values: Values = {}
    for result in results:
        values.setdefault(result.method, {})[result.seed] = quantity(result)
    return values


def last_accuracies(results: Sequence[StudyResult]) -> Values:
    """Return every run's accuracy over the last tenth of its evaluations."""
    return by_method_and_seed(results, lambda result: result.last)


def beats(values: Values, better: str, worse: str, *, unit: str = "points", scale: float = 100.0) -> str:
    """Return whether a published ordering holds, by the paired differences over the seeds that both have."""
    difference = paired(values.get(better, {}), values.get(worse, {}), scale)
    if difference is None:
        return f"- {better} better than {worse}: not trained"
    seeds = f"{difference.seeds} seed{'s' if difference.seeds > 1 else ''}"
    return f"- {better} better than {worse}: {difference.verdict()} ({difference.text(2)} {unit}, {seeds})"


def matched(values: Values, method: str, controls: Mapping[str, str]) -> str:
    """Return a cell of the column ``matched``: a method's gain over its control, "" without one."""
    control = controls.get(method)
    difference = paired(values.get(method, {}), values.get(control, {})) if control else None
    return "" if difference is None else f"{difference.text()} over {control}"


def write_page(
    runs: Sequence[StudyRun],
    folder: Path,
    title: str,
    sections: Callable[[list[StudyResult]], Sequence[str]],
    columns: Mapping[str, Callable[[Row], object]] = CLIENTS,
) -> int:
    """Write page and numbers of the finished runs, with plots drawn by ``sections``; return the runs' number.

    Raises ConfigError if none is finished.
    """
    results = load_results(runs, folder / "runs")
    if not results:
        raise ConfigError(f"--out: {folder} holds no finished run yet; train without --plots-only")
    note = folder / "command.txt"
    about = f"```\n{note.read_text(encoding='utf-8').strip()}\n```\n\n" if note.exists() else ""
    about += f"{len(results)} of {len(runs)} runs are finished.\n\n" if len(results) < len(runs) else ""
    page = f"# {title}\n\n{about}" + "\n".join(sections(results))
    write_csv(folder / "results.csv", results_table(results, columns))
    write_atomically(folder / "README.md", page)
    return len(results)
