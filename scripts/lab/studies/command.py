"""Common parts of the paper studies' commands: options, and training the missing runs before writing the page."""

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from scripts.lab.benchmarks.report import describe_machine
from scripts.lab.studies.forks import Fork
from scripts.lab.studies.runner import train_missing
from scripts.lab.studies.runs import StudyRun
from vfl.base.errors import TryLater
from vfl.config import ConfigError
from vfl.console import DONE, INTERRUPTED, OneLineParser, ShowConsole, add_executor_options
from vfl.runs.atomic import write_atomically
from vfl.runs.run_folder import LOG
from vfl.sweeps.choose_executor import open_executor
from vfl.sweeps.executor import Resources
from vfl.sweeps.sweep_view import names


def add_study_arguments(parser: OneLineParser) -> None:
    """Add the options common to all studies."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the runs and the results")
    parser.add_argument("--seeds", default="0", help="as 0,1,2 (default: 0); a seed is finished before the next begins")
    parser.add_argument("--data-note", default="", help="what the results page says about the data")
    add_executor_options(parser)
    parser.add_argument("--plots-only", action="store_true", help="train nothing")


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Parse an option's ``0,1,2``. Raises ConfigError, naming the option."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts) or len(set(map(int, parts))) < len(parts):
        raise ConfigError(f"{option}: {text!r} is not a list of different whole numbers, as 0,1,2")
    return tuple(int(part) for part in parts)


def run_study(
    arguments: argparse.Namespace,
    runs: Sequence[StudyRun],
    write_page: Callable[[], int],
    console: ShowConsole,
    forks: Mapping[str, Fork] | None = None,
) -> int:
    """Train the missing runs, with a line for every run that ends, and write the page of the finished ones.

    Raises ConfigError if nothing is finished, and for runs that have failed but not diverged.
    """
    if not arguments.plots_only:
        console.print(f"{len(runs)} runs")
        with open_executor(arguments, Resources()) as executor:
            end = train_missing(runs, arguments.out / "runs", executor, console, forks)
        if end.signal_name:
            console.print(f"{end.signal_name}: the same command goes on; with --plots-only it draws what is finished")
            return INTERRUPTED
        if failed := [folder for folder, each in end.failures.items() if not each.diverged]:
            error = TryLater if any(each.may_pass for each in end.failures.values()) else ConfigError
            raise error(f"failed: {names(failed)}; see {LOG} in the runs' folders below {arguments.out / 'runs'}")
        _note(arguments, [f"diverged: {folder}: {each.error}" for folder, each in end.failures.items()])
    console.print(f"{write_page()} finished runs: {arguments.out / 'README.md'}")
    return DONE


def _note(arguments: argparse.Namespace, diverged: Sequence[str]) -> None:
    """Save, for the page, the command, time and machine of the training."""
    machine = describe_machine()
    when = f"{datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, {machine['cpu']}, {machine['cores']} cores"
    called, *options = sys.argv
    command = shlex.join(["python", "-m", f"scripts.lab.{Path(called).stem}", *options])
    write_atomically(arguments.out / "command.txt", "\n".join([command, when, arguments.data_note, *diverged, ""]))
