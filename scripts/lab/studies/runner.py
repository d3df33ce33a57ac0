"""The runner of all studies: each run in its own folder, only once; finished runs are kept, killed ones continue.

A run that has a fork starts from the rounds that it shares with another (``forks.py``).
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from scripts.lab.studies.forks import Fork, SaveForks, needed_rounds, remove_spent_forks, start_from_fork
from scripts.lab.studies.runs import StudyRun
from vfl.base.costs import shares_saved
from vfl.runs.loop import Callback
from vfl.runs.stored_run import Run, is_finished
from vfl.sweeps.executor import AnyExecutor, Event, QueuedRun, RunEnded
from vfl.sweeps.sweep_view import SweepView


@dataclass(frozen=True, kw_only=True)
class SeriesRun(QueuedRun):
    """A run of a study in its series."""

    fork: Fork | None
    kept: frozenset[int]
    """Rounds from which others start."""

    def prepare(self, runs_dir: Path) -> Sequence[Callback]:
        """Copy the shared rounds; return the callback that keeps rounds for others."""
        if self.fork is not None:
            start_from_fork(self, self.fork, runs_dir)
        return [SaveForks(runs_dir / self.folder, self.kept)]


@dataclass(frozen=True)
class SeriesEnd:
    """End of a series."""

    signal_name: str | None
    """The signal that ended it; None if everything is done."""
    failures: Mapping[str, RunEnded]
    """Failures by folder; another call tries them again."""


def train_missing(
    runs: Sequence[StudyRun],
    runs_dir: Path,
    executor: AnyExecutor,
    console: Console,
    forks: Mapping[str, Fork] | None = None,
) -> SeriesEnd:
    """Train the unfinished runs in order; one with a fork waits for the rounds that it shares with another.

    Checkpoints of finished runs are deleted. Raises ConfigError for a folder that holds another configuration.
    """
    forks = forks or {}
    left = {run.folder: run for run in runs if not is_finished(runs_dir / run.folder, run.config)}
    failures: dict[str, RunEnded] = {}
    needed = needed_rounds(forks, left)
    executor.open_folder(runs_dir)
    view = SweepView(console, len(runs), runs_dir, kept=len(runs) - len(left))

    def on_event(run: SeriesRun, event: Event) -> None:
        summary = None
        if isinstance(event, RunEnded) and event.finished:
            del left[run.folder]  # before forks are removed: those that unfinished runs start from stay
            shutil.rmtree(runs_dir / run.folder / "checkpoints", ignore_errors=True)
            remove_spent_forks(forks, left, runs_dir)
            summary = Run(runs_dir / run.folder).summary
            summary |= shares_saved(summary)
        elif isinstance(event, RunEnded) and event.error is not None:
            failures[run.folder] = event
        view.show(run, event, summary)

    series = [
        SeriesRun(
            folder=folder,
            config=run.config,
            varied=("seed",),
            after=forks.get(folder),
            fork=forks.get(folder),
            kept=frozenset(needed.get(folder, ())),
        )
        for folder, run in left.items()
    ]
    with view:
        return SeriesEnd(executor.train(series, runs_dir, on_event), failures)
