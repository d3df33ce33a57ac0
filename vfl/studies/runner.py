"""A series of trainings, each in its own folder, each only once: what is finished is kept, what was killed goes on."""

import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console

from vfl.atomic import write_atomically
from vfl.config import ExperimentConfig
from vfl.errors import Diverged
from vfl.experiments.run import Outcome, run_experiment
from vfl.run_folder import is_finished


def train_series(
    runs: Mapping[str, ExperimentConfig],
    runs_dir: Path,
    console: Console,
    on_finished: Callable[[str, Outcome], None] = lambda folder, outcome: None,
    on_diverged: Callable[[str, Diverged], None] = lambda folder, error: None,
) -> str | None:
    """Train what is not finished, by folder below ``runs_dir``; checkpoints of finished runs are deleted.

    A run that diverges ends alone; another call tries it again. Returns the name of the signal that ended the series,
    None where all is done. Raises ValueError for a folder that holds another configuration.
    """
    missing = {folder: config for folder, config in runs.items() if not is_finished(runs_dir / folder, config)}
    for folder, config in missing.items():
        try:
            outcome = run_experiment(config, runs_dir / folder, resume=True, console=console)
        except Diverged as error:
            on_diverged(folder, error)
            continue
        if outcome.finished:
            shutil.rmtree(runs_dir / folder / "checkpoints", ignore_errors=True)
            on_finished(folder, outcome)
        if outcome.signal_name:
            return outcome.signal_name
    return None


def train_for_page(
    runs: Mapping[str, ExperimentConfig],
    out: Path,
    console: Console,
    tell: Callable[[str], None],
    *,
    command: str,
    data_note: str,
) -> str | None:
    """Train a series below ``out`` and note there, for its page of results, by which command; return as above.

    ``tell`` shows a line for every run that ends, ``console`` what happens within one.
    """
    tell(f"{len(runs)} runs")

    def show(folder: str, outcome: Outcome) -> None:
        accuracy, seconds = outcome.summary["test_accuracy"], outcome.summary["wall_time_s"]
        tell(f"{folder}: test accuracy {accuracy:.2%}, {seconds:.0f} s")

    diverged: list[str] = []

    def show_diverged(folder: str, error: Diverged) -> None:
        diverged.append(f"diverged: {folder}: {error}")
        tell(diverged[-1])

    signal_name = train_series(runs, out / "runs", console, show, show_diverged)
    if signal_name:
        tell(f"{signal_name}: the same command goes on")
    else:
        when = f"{datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}"
        write_atomically(out / "command.txt", "\n".join([command, when, data_note, *diverged, ""]))
    return signal_name
