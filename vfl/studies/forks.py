"""Trains the runs of the paper's figures one after another, each in its own folder, each only once.

A run that has a fork starts from the other run's checkpoint of that round: with equal seed and ratios both would
compute the same bits up to there.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from torch.utils.tensorboard import SummaryWriter

from vfl.atomic import write_atomically
from vfl.checkpoint import CheckpointStore
from vfl.experiments.run import run_experiment
from vfl.loop import Callback, Metrics, TrainingLoop
from vfl.run_folder import check_run, is_finished, open_run, read_rows
from vfl.studies.lvfl.plan import Fork, Plan, Run
from vfl.studies.lvfl.results import Result, load_result

MANY = 1_000_000
"""Forks are removed when no run needs them, never because of newer ones."""


class SaveForks(Callback):
    """Keeps a second copy of the checkpoints from which other runs start, safe from those that follow."""

    def __init__(self, run_dir: Path, rounds: Iterable[int]) -> None:
        self.rounds = set(rounds)
        self.forks = fork_store(run_dir)

    def on_start(self, loop: TrainingLoop) -> None:
        """Make up for a run that was killed between the checkpoint and its copy."""
        self._keep(loop)

    def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
        """Save a checkpoint before the round in which others go another way."""
        if loop.next_round in self.rounds:
            loop.save()
        self._keep(loop)

    def _keep(self, loop: TrainingLoop) -> None:
        assert loop.checkpoints is not None
        if loop.next_round in self.rounds and loop.next_round not in self.forks.rounds():
            self.forks.save(loop.next_round, loop.checkpoints.load(loop.next_round))


def fork_store(run_dir: Path) -> CheckpointStore:
    """Return the checkpoints that a run keeps for others."""
    return CheckpointStore(run_dir / "forks", keep=MANY)


def run_all(plan: Plan, runs_dir: Path, console: Console, on_finished: Callable[[Result, int], None]) -> str | None:
    """Train what is not finished, in the plan's order; call ``on_finished`` with each new result and its position.

    Checkpoints of finished runs are deleted. Returns the name of the signal that ended the series, None where all
    is done. Raises ValueError for a folder that holds another configuration.
    """
    open_runs = [run for run in plan.runs if not is_finished(runs_dir / run.folder, run.config)]
    for position, run in enumerate(plan.runs):
        if run not in open_runs:
            continue
        run_dir = runs_dir / run.folder
        fork = plan.forks.get(run.folder)
        if fork is not None:
            start_from_fork(run, fork, runs_dir)
        forks = SaveForks(run_dir, _needed(plan, open_runs).get(run.folder, set()))
        outcome = run_experiment(run.config, run_dir, resume=True, console=console, extra_callbacks=[forks])
        if outcome.finished:
            open_runs.remove(run)
            shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
            _remove_spent_forks(plan, open_runs, runs_dir)
            on_finished(load_result(run_dir, run), position)
        if outcome.signal_name:
            return outcome.signal_name
    return None


def start_from_fork(run: Run, fork: Fork, runs_dir: Path) -> bool:
    """Give a run that has not begun the checkpoint and the rows of the rounds it shares with another.

    Returns whether it did: not where the run has a checkpoint of its own, or the other kept none for it (then the
    run starts from scratch, with the same result).
    """
    run_dir, parent_dir = runs_dir / run.folder, runs_dir / fork.parent
    own, forks = CheckpointStore(run_dir / "checkpoints"), fork_store(parent_dir)
    if own.rounds() or fork.round_index not in forks.rounds():
        return False
    check_run(run_dir, run.config, resume=True)
    open_run(run_dir, run.config)
    rows = [row for row in read_rows(parent_dir) if row["round"] < fork.round_index]
    write_atomically(run_dir / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with SummaryWriter(str(run_dir), purge_step=0) as writer:  # of a try that was killed here
        for row in rows:
            for tag, value in row.items():
                if tag != "round":
                    writer.add_scalar(tag, value, int(row["round"]))  # pyright: ignore[reportUnknownMemberType]  # unannotated in PyTorch
    own.save(fork.round_index, forks.load(fork.round_index))  # last: it marks the run as begun
    return True


def _needed(plan: Plan, open_runs: Iterable[Run]) -> dict[str, set[int]]:
    """Return the rounds that unfinished runs start from, by the folder of the run that keeps them."""
    needed: dict[str, set[int]] = {}
    for run in open_runs:
        fork = plan.forks.get(run.folder)
        if fork is not None:
            needed.setdefault(fork.parent, set()).add(fork.round_index)
    return needed


def _remove_spent_forks(plan: Plan, open_runs: Iterable[Run], runs_dir: Path) -> None:
    needed = _needed(plan, open_runs)
    for run in plan.runs:
        if run.folder not in needed:
            shutil.rmtree(runs_dir / run.folder / "forks", ignore_errors=True)
