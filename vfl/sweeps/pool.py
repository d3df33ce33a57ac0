"""Trainings in processes of this machine.

Every run has a fresh process, forked from one that has imported PyTorch and computed nothing; ``training.py`` trains
there and reports its progress to the parent through a pipe. The parent itself need not import PyTorch.
"""

import multiprocessing
import os
import signal
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from vfl.config.components import MODES
from vfl.runs.run_folder import LOG
from vfl.runs.signals import end_with_parent
from vfl.sweeps.executor import Event, Executor, QueuedRun, Resources, RunEnded

PRELOADED = ["vfl.sweeps.training", *(mode.use.partition(":")[0] for mode in MODES.values())]
"""Modules that a run's process has imported. They are not imported here, as this room lies below the parties."""


def cores() -> int:
    """Return the number of cores that this process may use (all of them on macOS, which does not report it)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class LocalRun:
    """A training in a process of its own."""

    pipe: Connection
    process: ForkServerProcess


class LocalProcesses(Executor[LocalRun]):
    """Trains ``jobs`` runs at once on this machine."""

    def __init__(self, jobs: int = 1, resources: Resources | None = None) -> None:
        self.jobs, self.resources = jobs, resources or Resources()
        self._context = multiprocessing.get_context("forkserver")

    def threads(self, wanted: int | None) -> int:
        """Return the number of threads of a run, by default its share of the cores."""
        for name in ("gpus", "memory_gb"):
            if getattr(self.resources, name) is not None:
                warnings.warn(f"resources.{name}: local runs share what there is; --jobs says how many", stacklevel=2)
        return self.resources.cpus or max(1, (wanted or cores()) // self.jobs)

    def slots(self, run: QueuedRun) -> int:
        """Return the number of jobs."""
        return self.jobs

    def check(self, runs_dir: Path) -> None:
        """Do nothing: the caller has created the folder."""

    def start(self, run: QueuedRun, runs_dir: Path) -> LocalRun:
        """Start a process; the first call also starts the process from which all are forked."""
        self._context.set_forkserver_preload(PRELOADED)
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_train_here, args=(run, runs_dir, sender), name=run.folder)
        process.start()
        sender.close()  # the run's own end is then the last: its death closes the pipe
        return LocalRun(receiver, process)

    def wait(self, handles: Sequence[LocalRun]) -> Sequence[LocalRun]:
        """Wait for a message or a death."""
        ready = wait([handle.pipe for handle in handles])
        return [handle for handle in handles if handle.pipe in ready]

    def receive(self, handle: LocalRun, *, interrupted: bool) -> Event:
        """Return a run's next event, or how it died."""
        try:
            event: Event = handle.pipe.recv()
        except (EOFError, OSError):  # the process has closed its end without saying how it ended: it died
            handle.process.join()
            return _describe_death(handle.process.exitcode or 0, interrupted=interrupted)
        if isinstance(event, RunEnded):
            handle.process.join()
        return event

    def interrupt(self, handle: LocalRun) -> None:
        """Send SIGTERM."""
        handle.process.terminate()

    def kill(self, handle: LocalRun) -> None:
        """Send SIGKILL."""
        handle.process.kill()
        handle.process.join()


def _describe_death(code: int, *, interrupted: bool) -> RunEnded:
    if interrupted:
        return RunEnded(finished=False)
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return RunEnded(finished=False, error=f"the process ended without a result ({how}); see {LOG} in its folder")


def _train_here(run: QueuedRun, runs_dir: Path, pipe: Connection) -> None:
    """Train one run in this process, which trains no other."""
    end_with_parent()
    from vfl.sweeps.training import train  # imports PyTorch, as the process has that this one is forked from

    train(run, runs_dir, pipe.send)
