"""One training from a configuration: the mode builds it; callbacks, the loop and signals are added here."""

import gc
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from vfl.config import Experiment, dump_config
from vfl.console import DONE, INTERRUPTED, print_table
from vfl.runs.callbacks import EarlyStop, JsonLines
from vfl.runs.checkpoint import CheckpointStore, CheckpointWriteError, ReadOnlyStore
from vfl.runs.loop import Callback, TrainingLoop
from vfl.runs.mode import Built, Stage, mode_of
from vfl.runs.run_folder import begin_run, check_run, only_process_in, update_config, with_threads_of_run, write_summary
from vfl.runs.runtime import start_runtime, with_threads
from vfl.runs.signals import stop_on_signal
from vfl.runs.tensorboard import how_to_watch, opening
from vfl.runs.tensorboard_hparams import hparams_of
from vfl.runs.torchrun_group import SingleProcess


@dataclass(frozen=True)
class RunOutcome:
    """End of a training."""

    summary: dict[str, Any]
    """Content of ``summary.json``, which is written only when the run is finished."""
    finished: bool
    """All rounds are done, or early stopping ended the run."""
    signal_name: str | None
    """The signal that asked for an end, possibly in the last round; None without one."""
    stop_reason: str | None
    """Reason for which the loop ended before its last round, signals included."""

    def interruption(self, run_dir: Path) -> KeyboardInterrupt:
        """Return the exception that a Python program gets for an unfinished run."""
        rounds = self.summary["rounds"]
        return KeyboardInterrupt(f"interrupted after {rounds} rounds; go on with run_dir={str(run_dir)!r}, resume=True")


class KeepConfig(Callback):
    """Writes a resumed run's settings and places of data once its data have proved to be the same."""

    def __init__(self, run_dir: Path, config: Experiment) -> None:
        self.run_dir, self.config = run_dir, config

    def on_start(self, loop: TrainingLoop) -> None:
        """Write what has changed."""
        update_config(self.run_dir, self.config)


def run_experiment(
    config: Experiment,
    run_dir: Path,
    *,
    resume: bool,
    console: Console,
    extra_callbacks: Sequence[Callback] = (),
    workers: SingleProcess | None = None,
    varied: Collection[str] = (),
    build: Callable[[Any, Stage], Built] | None = None,
) -> RunOutcome:
    """Build the experiment and train it in ``run_dir``; the first SIGINT or SIGTERM ends it after a checkpoint.

    ``extra_callbacks`` run after all others. Of several ``workers`` only the first writes. ``varied`` are the dotted
    keys of the settings that its sweep varies. ``build`` replaces the mode's own, for experiments given as Python
    objects. Raises ValueError for data or a folder that cannot be used.
    """
    mode, workers = mode_of(config), workers or SingleProcess()
    first = workers.rank == 0
    config, threads = with_threads_of_run(run_dir, config), torch.get_num_threads()
    if first:
        check_run(run_dir, config, resume=resume)
    chooses = config.threads is None and not (run_dir / "config.yaml").exists()
    # The run before in this process: its data hang in cycles, and Python's collector counts objects, not their bytes.
    gc.collect()
    stage = mode.stage(config, start_runtime(config), run_dir, console, workers, varied)
    built = (build or mode.build)(config, stage)  # before there is a folder: data that cannot be used leave none behind
    told = ""
    if chooses:
        config = with_threads(config)
        stage.tensorboard.config, stage.tensorboard.settings = dump_config(config), hparams_of(config)
        told = f"threads={config.threads}, by the work of a step; "
    checkpoints = run_dir / "checkpoints"
    try:
        if not first:
            return train(built, config, stage, ReadOnlyStore(checkpoints, keep=config.checkpoint.keep))
        begin_run(run_dir, config)
        charts = opening(stage.tensorboard.front_page, built.algorithm.metric)
        console.print(f"{config.name}: run folder {run_dir}; {told}{how_to_watch(run_dir, charts)}")
        with only_process_in(run_dir):
            store = CheckpointStore(checkpoints, keep=config.checkpoint.keep)
            if resume and not store.rounds():
                console.print("--resume: no checkpoint is saved; begins with round 1")
            return train(built, config, stage, store, extra_callbacks)
    finally:
        if chooses:  # the next run of this process chooses anew
            torch.set_num_threads(threads)


def train(
    built: Built,
    config: Experiment,
    stage: Stage,
    store: CheckpointStore,
    extra_callbacks: Sequence[Callback] = (),
) -> RunOutcome:
    """Train in a folder that is open and locked, from the newest checkpoint in ``store`` on.

    Of several workers, the first has the folder and the callbacks; the others start once it is ready.
    """
    workers, run_dir = stage.workers, stage.run_dir
    first = workers.rank == 0
    callbacks: list[Callback] = []
    if first:
        rows = JsonLines(run_dir / "metrics.jsonl")
        callbacks += [KeepConfig(run_dir, config), stage.tensorboard, rows, stage.progress, *built.callbacks]
    if config.training.patience is not None:
        callbacks.append(EarlyStop(config.training.patience))
    loop = TrainingLoop(
        built.algorithm,
        config.training.rounds,
        [*callbacks, *extra_callbacks],
        checkpoints=store,
        checkpoint_every=config.checkpoint.every,
        evaluate_every=config.evaluation.every,
        evaluated=config.data.evaluated,
    )
    signals: list[str] = []

    def end(signal_name: str) -> None:
        signals.append(signal_name)
        loop.request_stop(signal_name, to_resume=True)
        again = " (again: at once)" if workers.size == 1 else ""
        stage.console.print(f"{signal_name}: ending after this round and its checkpoint{again}")

    workers.on_stop(end)
    with stop_on_signal(workers.ask_to_stop):
        try:
            summary = loop.run()
            # A stop that was asked for in the last round has ended nothing early.
            finished = not loop.to_resume or loop.next_round == loop.rounds
            if finished and first:
                write_summary(run_dir, summary)
            workers.wait_for_all()  # torchrun ends the others as soon as one has ended by a signal
        except KeyboardInterrupt:
            if store.rounds():
                raise
            raise KeyboardInterrupt("interrupted before the first checkpoint: nothing was saved") from None
        except CheckpointWriteError:  # an OSError that says by itself what is left and what to do
            raise
        except OSError as error:
            where, why = error.filename or run_dir, error.strerror or error
            raise OSError(f"{where}: cannot be written ({why}); mend that, then continue with --resume") from error
    ended_early = loop.next_round < loop.rounds
    return RunOutcome(summary, finished, signals[0] if signals else None, loop.stop_reason if ended_early else None)


def show_outcome(outcome: RunOutcome, config: Experiment, run_dir: Path, console: Console) -> int:
    """Print the end of a training and return the exit code."""
    if not outcome.finished:
        rounds = outcome.summary["rounds"]
        console.print(f"interrupted after {rounds} rounds; go on with --run-dir {run_dir} --resume")
        return INTERRUPTED
    if outcome.stop_reason:
        console.print(f"stopped early: {outcome.stop_reason}")
    print_table(console, mode_of(config).table(outcome.summary))
    return DONE
