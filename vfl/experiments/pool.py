"""Trainings in processes of their own: several at once, each in its own folder, none able to hurt another.

Every run has a fresh process, forked from one that has imported PyTorch and computed nothing. It tells its parent
how far it is through a pipe; what it prints goes to ``train.log`` in its folder.
"""

import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from vfl.cli import ShowConsole
from vfl.experiments.mode import MODES
from vfl.experiments.run import run_experiment
from vfl.experiments.sweep_plan import SweepRun
from vfl.loop import Callback, Metrics, TrainingLoop
from vfl.metrics import shown, title
from vfl.orphans import end_with_parent
from vfl.signals import stop_on_signal

LOG = "train.log"


@dataclass(frozen=True)
class Progress:
    """A run has ended a round."""

    rounds: int
    """Rounds done."""
    reached: str | None
    """Score of the round, where it was evaluated."""


@dataclass(frozen=True)
class Ended:
    """A run has ended: finished, failed with an error of one line, or interrupted (neither)."""

    finished: bool
    error: str | None = None


Event = Progress | Ended


class Tell(Callback):
    """Tells the parent process of every round."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def on_start(self, loop: TrainingLoop) -> None:
        """Tell where a resumed run stands."""
        self.pipe.send(Progress(loop.next_round, None))

    def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
        """Tell the round."""
        metric = loop.metric
        score = metrics.get(f"{metric}/test")
        told = None if score is None else f"{title(metric)} {shown(metric, score)}"
        self.pipe.send(Progress(round_index + 1, told))


def train_in_processes(
    runs: Sequence[SweepRun],
    runs_dir: Path,
    jobs: int,
    on_event: Callable[[SweepRun, Event], None],
) -> str | None:
    """Train the runs, at most ``jobs`` at once, in their order; call ``on_event`` in this process.

    A run that fails or is killed is told as such and the others go on. The first SIGINT or SIGTERM lets every running
    one end its round and save it, and starts no other; a second one ends them at once (KeyboardInterrupt). Returns
    the name of the signal, None without one. When this process dies, so do its runs.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *{MODES.load(run.config.mode).build.__module__ for run in runs}])
    left = list(runs)
    running: dict[Connection, tuple[SweepRun, ForkServerProcess]] = {}
    signals: list[str] = []

    def interrupt(signal_name: str) -> None:
        signals.append(signal_name)
        for _, process in running.values():
            process.terminate()

    try:
        with stop_on_signal(interrupt):
            while running or (left and not signals):
                while left and len(running) < jobs and not signals:
                    run = left.pop(0)
                    pipe, process = _start(context, run, runs_dir / run.folder)
                    running[pipe] = (run, process)
                    on_event(run, Progress(0, None))
                    if signals:  # came while it started, too early for `interrupt` to know it
                        process.terminate()
                for pipe in wait(list(running)):
                    assert isinstance(pipe, Connection)
                    run, process = running[pipe]
                    event = _receive(pipe, process, interrupted=bool(signals))
                    if isinstance(event, Ended):
                        del running[pipe]
                        process.join()
                    on_event(run, event)
    finally:
        for _, process in running.values():
            process.kill()
            process.join()
    return signals[0] if signals else None


def _start(context: ForkServerContext, run: SweepRun, run_dir: Path) -> tuple[Connection, ForkServerProcess]:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_train, args=(run, run_dir, sender), name=run.folder)
    process.start()
    sender.close()  # the run's own end is then the last: its death closes the pipe
    return receiver, process


def _receive(pipe: Connection, process: ForkServerProcess, *, interrupted: bool) -> Event:
    try:
        return pipe.recv()
    except (EOFError, OSError):
        process.join()
    code = process.exitcode or 0
    if interrupted:
        return Ended(finished=False)
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return Ended(finished=False, error=f"the process ended without a result ({how}); see {LOG} in its folder")


def _train(run: SweepRun, run_dir: Path, pipe: Connection) -> None:
    """Train one run in this process, which belongs to it alone."""
    end_with_parent()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with (run_dir / LOG).open("a", encoding="utf-8") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            console = ShowConsole(file=log)

            def show_warning(message: Warning | str, *_where: object) -> None:
                console.print(f"warning: {message}")

            warnings.showwarning = show_warning
            pipe.send(_outcome(run, run_dir, console, pipe))
    except OSError as error:
        pipe.send(Ended(finished=False, error=_one_line(error)))


def _outcome(run: SweepRun, run_dir: Path, console: ShowConsole, pipe: Connection) -> Ended:
    try:
        outcome = run_experiment(
            run.config, run_dir, resume=True, console=console, extra_callbacks=[Tell(pipe)], varied=tuple(run.settings)
        )
    except KeyboardInterrupt:
        return Ended(finished=False)
    except Exception as error:  # whatever it is, the other runs go on, and the log has all of it
        console.print(traceback.format_exc())
        expected = isinstance(error, ValueError | OSError)
        return Ended(finished=False, error=_one_line(error) if expected else f"{type(error).__name__}: {error}")
    return Ended(outcome.finished)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
