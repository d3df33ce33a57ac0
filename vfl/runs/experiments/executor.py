"""Where trainings run: several at once, each in its own folder, none able to hurt another.

An ``Executor`` starts a training, tells what happens to it and ends it. Which one is next, what a signal means and
what becomes of a training whose machine has died is the same for all of them, and stands here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vfl.config import ConfigError, ExperimentConfig
from vfl.config.settings import AboveZero, NotNegative, Positive, Section
from vfl.runs.signals import stop_on_signal

if TYPE_CHECKING:
    from vfl.runs.loop import Callback  # imports PyTorch


class Resources(Section):
    """What one run needs."""

    cpus: Positive | None = None
    """CPUs and threads; null: the share of a local run, on Ray ``threads`` of the experiment or 1."""
    gpus: NotNegative | None = None
    """GPUs, 0.5 for two runs on each; null: 1 with ``device: cuda``, else 0. On Ray; local runs share what there is."""
    memory_gb: AboveZero | None = None
    """GB (10^9 bytes) of memory; null: not looked at. On Ray; local runs share what there is."""


@dataclass(frozen=True)
class Run:
    """A training as an executor sees it. It is sent to other processes."""

    folder: str
    """Name of its folder."""
    config: ExperimentConfig
    varied: tuple[str, ...] = ()
    """Dotted keys of the settings that differ between the runs."""
    after: tuple[str, int] | None = None
    """Folder of a run, and how many rounds it must have done, unless it has ended, before this one begins."""

    def prepare(self, runs_dir: Path) -> "Sequence[Callback]":
        """Prepare the folder, in the process that trains; return the callbacks that are this run's own."""
        return ()


@dataclass(frozen=True)
class Progress:
    """A run has begun, or ended a round."""

    rounds: int
    """Rounds done."""
    reached: str | None = None
    """Score of the round, where it was evaluated."""
    node: str = ""
    """Where it runs; "" on this machine."""


@dataclass(frozen=True)
class Ended:
    """A run has ended: finished, failed with an error of one line, or interrupted (neither)."""

    finished: bool
    error: str | None = None
    diverged: bool = False
    """The error is that training left the finite numbers."""
    may_pass: bool = False
    """The same run may succeed later."""


@dataclass(frozen=True)
class Lost:
    """The machine of a run has died; the run goes on elsewhere."""


Event = Progress | Ended | Lost


R = TypeVar("R", bound=Run)
Handle = TypeVar("Handle")


class Executor(ABC, Generic[Handle]):
    """Where trainings run. A ``Handle`` is a training that it has started."""

    def train(self, runs: Iterable[R], runs_dir: Path, on_event: Callable[[R, Event], None]) -> str | None:
        """Train the runs, in their order as far as ``after`` lets them; call ``on_event`` in this process.

        A run that fails or is killed is told as such and the others go on. The first SIGINT or SIGTERM lets every
        running one end its round and save it, and starts no other; a second one ends them at once
        (KeyboardInterrupt). Returns the name of the signal, None without one. When this process dies, so do its runs.
        """
        left = list(runs)
        running: dict[Handle, R] = {}
        done: dict[str, int] = {}  # rounds, by folder
        signals: list[str] = []

        def interrupt(signal_name: str) -> None:
            signals.append(signal_name)
            for handle in running:
                self.interrupt(handle)

        try:
            with stop_on_signal(interrupt):
                while running or (left and not signals):
                    while not signals and (run := self._next(left, running.values(), done)):
                        left.remove(run)
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
                            left.insert(0, run)  # first: others may wait for its rounds
                        on_event(run, event)
        finally:
            for handle in running:
                self.kill(handle)
        return signals[0] if signals else None

    def open_folder(self, runs_dir: Path) -> None:
        """Make the folder of the runs. Raises ConfigError, and leaves no empty one, where they could not be trained."""
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

    def _next(self, left: Sequence[R], running: Iterable[R], done: Mapping[str, int]) -> R | None:
        """Return the first run that need not wait for another, where there is a place for it."""
        at_work = list(running)
        # A run that has ended, finished or failed, or is not of this call, is not in here: nobody waits for it. One run
        # can always begin, as no two wait for each other.
        unfinished = {run.folder: done.get(run.folder, 0) for run in (*left, *at_work)}
        run = next((run for run in left if run.after is None or not _behind(unfinished, *run.after)), None)
        # Nobody overtakes it: where there is no place for this one, the next, smaller one waits as well.
        return run if run is not None and len(at_work) < self.places(run) else None

    @abstractmethod
    def threads(self, wanted: int | None) -> int:
        """Return the threads of a run of an experiment that asks for so many, None leaving it open."""

    @abstractmethod
    def places(self, run: Run) -> int:
        """Return how many such runs find room at once. Raises ConfigError where not even one does."""

    @abstractmethod
    def check(self, runs_dir: Path) -> None:
        """Raise ConfigError, before anything is trained, where runs could not be trained in the folder."""

    @abstractmethod
    def start(self, run: Run, runs_dir: Path) -> Handle:
        """Start a training in its folder below ``runs_dir``."""

    @abstractmethod
    def wait(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Return those of which something can be received, waiting for it a while."""

    @abstractmethod
    def receive(self, handle: Handle, *, interrupted: bool) -> Event:
        """Return what has happened."""

    @abstractmethod
    def interrupt(self, handle: Handle) -> None:
        """Ask a training to end its round, save it and end."""

    @abstractmethod
    def kill(self, handle: Handle) -> None:
        """End a training at once."""


def _behind(unfinished: Mapping[str, int], folder: str, rounds: int) -> bool:
    return folder in unfinished and unfinished[folder] < rounds


AnyExecutor = Executor[Any]
