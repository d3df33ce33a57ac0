"""What the commands of the paper studies share: their options, and training what is missing before the page."""

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from vfl.atomic import write_atomically
from vfl.cli import DONE, INTERRUPTED, OneLineParser, ShowConsole
from vfl.errors import Diverged
from vfl.studies.benchmarks.report import describe_machine
from vfl.studies.forks import Fork
from vfl.studies.runner import train_missing
from vfl.studies.runs import StudyResult, StudyRun


def study_parser(description: str | None) -> OneLineParser:
    """Return a parser of the options that all studies have."""
    parser = OneLineParser(description)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the runs and the results")
    parser.add_argument("--seeds", default="0", help="as 0,1,2 (default: 0); a seed is finished before the next begins")
    parser.add_argument("--data-note", default="", help="what the results page says about the data")
    parser.add_argument("--plots-only", action="store_true", help="train nothing")
    return parser


def run_study(
    arguments: argparse.Namespace,
    runs: Sequence[StudyRun],
    write_page: Callable[[], int],
    console: ShowConsole,
    forks: Mapping[str, Fork] | None = None,
) -> int:
    """Train what is missing, a line for every run that ends, and write the page of what is finished.

    What happens within a run is shown on a terminal's stderr. Raises ConfigError where nothing is finished.
    """
    if not arguments.plots_only:
        within = ShowConsole(stderr=True, quiet=not sys.stderr.isatty())
        diverged: list[str] = []

        def show(run: StudyRun, result: StudyResult) -> None:
            saved = f"compute saved {result.macs_saved:.1%}, communication saved {result.bytes_saved:.1%}"
            seconds = f"{result.summary['wall_time_s']:.0f} s"
            console.print(f"{run.folder}: test accuracy {result.score:.2%}, {saved}, {seconds}")

        def show_diverged(run: StudyRun, error: Diverged) -> None:
            diverged.append(f"diverged: {run.folder}: {error}")
            console.print(diverged[-1])

        console.print(f"{len(runs)} runs")
        signal_name = train_missing(runs, arguments.out / "runs", within, show, show_diverged, forks)
        if signal_name:
            console.print(f"{signal_name}: the same command goes on; with --plots-only it draws what is finished")
            return INTERRUPTED
        _note(arguments, diverged)
    console.print(f"{write_page()} finished runs: {arguments.out / 'README.md'}")
    return DONE


def _note(arguments: argparse.Namespace, diverged: Sequence[str]) -> None:
    """Keep for the page by which command, when and where the runs were trained."""
    machine = describe_machine()
    when = f"{datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, {machine['cpu']}, {machine['cores']} cores"
    command = shlex.join(["python", f"scripts/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    write_atomically(arguments.out / "command.txt", "\n".join([command, when, arguments.data_note, *diverged, ""]))
