"""Executors of trainings: several at once, each in its own folder, none able to harm another.

An ``Executor`` starts a training, reports its events and ends it. The base class chooses the next run, handles signals,
and restarts runs whose machine has died.

A run is an ordinary training in its own folder and process, forked from one that has imported PyTorch and computed
nothing. It reports every round through a pipe; only the parent writes tables, and a run dies with it. ``train.log`` is
locked while a run trains, also between machines. ``sweep.csv`` has no times, so an interrupted sweep gives the same
bytes; a run's threads are fixed when the sweep begins, because bits depend on them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vfl.config import ConfigError, Experiment
from vfl.config.settings import AboveZero, NotNegative, Positive, Section
from vfl.runs.signals import stop_on_signal

if TYPE_CHECKING:
    from vfl.runs.loop import Callback  # imports PyTorch


class Resources(Section):
    """Resources that one run needs."""

    cpus: Positive | None = None
    """CPUs and threads; null: the share of a local run, on Ray ``threads`` of the experiment or 1."""
    gpus: NotNegative | None = None
    """GPUs, 0.5 for two runs on each; null: 1 with ``device: cuda``, else 0. On Ray; local runs share the machine's
    GPUs."""
    memory_gb: AboveZero | None = None
    """GB (10^9 bytes) of memory; null: not checked. On Ray; local runs share the machine's memory."""


@dataclass(frozen=True)
class QueuedRun:
    """A training as an executor sees it: pickled and sent to other processes."""

    folder: str
    """Name of its folder."""
    config: Experiment
    varied: tuple[str, ...] = ()
    """Dotted keys of the settings that differ between the runs."""
    after: tuple[str, int] | None = None
    """Folder of another run and the number of rounds that it must complete, or end, before this one begins."""

    def prepare(self, runs_dir: Path) -> "Sequence[Callback]":
        """Prepare the folder, in the process that trains; return this run's own callbacks."""
        return ()


@dataclass(frozen=True)
class Progress:
    """Event: a run has begun, or completed a round."""

    rounds: int
    """Rounds done."""
    reached: str | None = None
    """Score of the round, if it was evaluated."""
    node: str = ""
    """Name of the node on which it runs; "" on this machine."""


@dataclass(frozen=True)
class RunEnded:
    """Event: a run has ended: finished, failed with an error of one line, or interrupted (neither)."""

    finished: bool
    error: str | None = None
    diverged: bool = False
    """The error is that a loss or metric was not finite."""
    may_pass: bool = False
    """The same run may succeed later."""


@dataclass(frozen=True)
class Lost:
    """Event: the machine of a run has died; the run restarts elsewhere."""


Event = Progress | RunEnded | Lost


R = TypeVar("R", bound=QueuedRun)
Handle = TypeVar("Handle")


class Executor(ABC, Generic[Handle]):
    """Base of the places that trainings run on. A ``Handle`` is a training that the executor has started."""

    def train(self, runs: Iterable[R], runs_dir: Path, on_event: Callable[[R, Event], None]) -> str | None:
        """Train the runs, in their order as far as ``after`` allows; call ``on_event`` in this process.

        A run that fails or is killed is reported so and the others go on. The first SIGINT or SIGTERM lets every
        running one complete its round and save it, and starts no other; a second one ends them at once
        (KeyboardInterrupt). Returns the name of the signal, or None. If this process dies, its runs die too.
        """
        waiting = list(runs)
        running: dict[Handle, R] = {}
        done: dict[str, int] = {}  # rounds, by folder
        signals: list[str] = []

        def interrupt(signal_name: str) -> None:
            signals.append(signal_name)
            for handle in running:
                self.interrupt(handle)

        try:
            with stop_on_signal(interrupt):
                while running or (waiting and not signals):
                    while not signals and (run := self._next(waiting, running.values(), done)):
                        waiting.remove(run)
                        handle = self.start(run, runs_dir)
                        running[handle] = run
                        if signals:  # came while it started, too early for `interrupt` to know it
                            self.interrupt(handle)
                    for handle in self.wait(list(running)):
                        run, event = running[handle], self.receive(handle, interrupted=bool(signals))
                        if isinstance(event, Progress):
                            done[run.folder] = event.rounds
                        else:
                            del running[handle]
                        if isinstance(event, Lost):
                            waiting.insert(0, run)  # first: others may wait for its rounds
                        on_event(run, event)
        finally:
            for handle in running:
                self.kill(handle)
        return signals[0] if signals else None

    def open_folder(self, runs_dir: Path) -> None:
        """Create the folder of the runs. Raises ConfigError, leaving no folder, if they could not be trained there."""
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            self.check(runs_dir)
        except (OSError, ConfigError) as error:
            with suppress(OSError):  # holds something
                runs_dir.rmdir()
                runs_dir.parent.rmdir()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"--out: {runs_dir.parent} cannot be written ({error.strerror})") from None

    def _next(self, waiting: Sequence[R], running: Iterable[R], done: Mapping[str, int]) -> R | None:
        """Return the first run that need not wait for another, if there is room for it."""
        at_work = list(running)
        # A run that has ended, finished or failed, or is not of this call, is not in here: nobody waits for it. One run
        # can always begin, as no two wait for each other.
        unfinished = {run.folder: done.get(run.folder, 0) for run in (*waiting, *at_work)}
        waits = {run.folder for run in waiting if run.after and unfinished.get(run.after[0], inf) < run.after[1]}
        run = next((run for run in waiting if run.folder not in waits), None)
        # No run overtakes it: if this one has no room, smaller ones wait as well.
        return run if run is not None and len(at_work) < self.slots(run) else None

    @abstractmethod
    def threads(self, wanted: int | None) -> int:
        """Return the number of threads of a run whose experiment asks for ``wanted``, None if it names no number."""

    @abstractmethod
    def slots(self, run: QueuedRun) -> int:
        """Return the number of runs like this one that fit at once. Raises ConfigError if not even one does."""

    @abstractmethod
    def check(self, runs_dir: Path) -> None:
        """Raise ConfigError, before anything is trained, if runs could not be trained in the folder."""

    @abstractmethod
    def start(self, run: QueuedRun, runs_dir: Path) -> Handle:
        """Start a training in its folder below ``runs_dir``."""

    @abstractmethod
    def wait(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Wait a while and return the handles from which an event can be received."""

    @abstractmethod
    def receive(self, handle: Handle, *, interrupted: bool) -> Event:
        """Return the next event of a training."""

    @abstractmethod
    def interrupt(self, handle: Handle) -> None:
        """Ask a training to end its round, save it and end."""

    @abstractmethod
    def kill(self, handle: Handle) -> None:
        """End a training at once."""


AnyExecutor = Executor[Any]
