"""Starting a run from the rounds that it shares with another: with equal seed and ratios both compute the same bits."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch.utils.tensorboard import SummaryWriter

from vfl.runs.atomic import write_atomically
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.loop import Callback, Metrics, TrainingLoop
from vfl.runs.run_folder import check_run, open_run
from vfl.runs.stored_run import Run
from vfl.sweeps.executor import QueuedRun


class Fork(NamedTuple):
    """A possible start of a run: the checkpoint that another one had before ``round_index``."""

    parent: str
    """Folder of the other run."""
    round_index: int
    """First round in which the two differ."""


MANY = 1_000_000
"""Number of checkpoints kept: forks are removed when no run needs them, never because of newer ones."""


class SaveForks(Callback):
    """Keeps a second copy of the checkpoints from which other runs start, safe from those that follow."""

    def __init__(self, run_dir: Path, rounds: Iterable[int]) -> None:
        self.rounds = set(rounds)
        self.forks = fork_store(run_dir)

    def on_start(self, loop: TrainingLoop) -> None:
        """Copy the checkpoint if the run was killed between saving and copying it."""
        self._keep(loop)

    def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
        """Copy the checkpoint before a round in which other runs diverge from this one."""
        if loop.next_round in self.rounds:
            loop.save()  # also where the loop itself would not: it saves every few rounds, after all callbacks
        self._keep(loop)

    def _keep(self, loop: TrainingLoop) -> None:
        assert loop.checkpoints is not None
        if loop.next_round in self.rounds and loop.next_round not in self.forks.rounds():
            self.forks.save(loop.next_round, loop.checkpoints.load(loop.next_round))


def fork_store(run_dir: Path) -> CheckpointStore:
    """Return the store of the checkpoints that a run keeps for others."""
    return CheckpointStore(run_dir / "forks", keep=MANY)


def start_from_fork(run: QueuedRun, fork: Fork, runs_dir: Path) -> None:
    """Give a run without checkpoints the rows and the checkpoint of the rounds that it shares with another.

    If the other kept none for it, it starts from scratch, with the same result.
    """
    run_dir, parent_dir = runs_dir / run.folder, runs_dir / fork.parent
    own, forks = CheckpointStore(run_dir / "checkpoints"), fork_store(parent_dir)
    if own.rounds() or fork.round_index not in forks.rounds():
        return
    check_run(run_dir, run.config, resume=True)  # the folder may be that of a try that was killed here
    open_run(run_dir, run.config)
    rows = [row for row in Run(parent_dir).metrics if row["round"] < fork.round_index]
    write_atomically(run_dir / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with SummaryWriter(str(run_dir), purge_step=0) as writer:  # of a try that was killed here
        for row in rows:
            for tag, value in row.items():
                if tag != "round":
                    writer.add_scalar(tag, value, int(row["round"]))  # pyright: ignore[reportUnknownMemberType]  # unannotated in PyTorch
    own.save(fork.round_index, forks.load(fork.round_index))  # last: it marks the run as begun


def needed_rounds(forks: Mapping[str, Fork], left: Iterable[str]) -> dict[str, set[int]]:
    """Return the rounds that unfinished runs start from, by the folder of the run that keeps them."""
    needed: dict[str, set[int]] = {}
    for fork in (forks[folder] for folder in left if folder in forks):
        needed.setdefault(fork.parent, set()).add(fork.round_index)
    return needed


def remove_spent_forks(forks: Mapping[str, Fork], left: Iterable[str], runs_dir: Path) -> None:
    """Delete the checkpoints that no unfinished run starts from."""
    for parent in {fork.parent for fork in forks.values()} - needed_rounds(forks, left).keys():
        shutil.rmtree(runs_dir / parent / "forks", ignore_errors=True)
