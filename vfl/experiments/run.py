"""One training from a configuration: parties or clients in this process, the callbacks, the loop and its signals."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from parties.head_server import HeadServer
from parties.local import build_in_process
from parties.widths import ShowWidths
from vfl.callbacks import EarlyStop, JsonLines, ShowProgress
from vfl.checkpoint import CheckpointStore, CheckpointWriteError, ReadOnlyStore
from vfl.cli import DONE, INTERRUPTED
from vfl.config import ExperimentConfig, dotted_settings, dump_config
from vfl.horizontal import table as horizontal_table
from vfl.loop import Algorithm, Callback, TrainingLoop, stop_on_signal
from vfl.run_folder import check_run, only_process_in, open_run, write_summary
from vfl.runtime import Runtime, start_runtime
from vfl.tensorboard import TensorBoard
from vfl.vertical import table as vertical_table
from vfl.workers import Alone


@dataclass(frozen=True)
class Outcome:
    """How a training ended."""

    summary: dict[str, Any]
    """As in ``summary.json``, which is written only when the run is finished."""
    finished: bool
    """All rounds are done, or early stopping ended the run."""
    signal_name: str | None
    """The signal that asked for an end, which may have come in the last round; None without one."""
    stop_reason: str | None
    """Why the loop ended before its last round, signals included."""


def build_algorithm(
    config: ExperimentConfig,
    runtime: Runtime,
    run_dir: Path,
    console: Console,
    on_step: Callable[[int, int], None],
    workers: Alone | None = None,
) -> tuple[Algorithm, list[Callback]]:
    """Build what the loop trains, and the callbacks that are its own.

    Raises ValueError for data that is not there or does not fit.
    """
    if config.mode == "horizontal":
        from vfl.horizontal.build import build_horizontal  # scipy and matplotlib: over a second of everybody's start

        trainer, show_split = build_horizontal(config, runtime, run_dir, console, on_step, workers)
        return trainer, [show_split]
    return build_in_process(config, runtime, on_step), []


def run_experiment(
    config: ExperimentConfig,
    run_dir: Path,
    *,
    resume: bool,
    console: Console,
    extra_callbacks: Sequence[Callback] = (),
    workers: Alone | None = None,
    hparams: Mapping[str, Any] | None = None,
) -> Outcome:
    """Build the experiment and train it in ``run_dir``; the first SIGINT or SIGTERM ends it after a checkpoint.

    ``extra_callbacks`` come after all others. Of several ``workers`` the first one alone writes. ``hparams`` are the
    settings on TensorBoard's page of that name, by dotted key; None shows all. Raises ValueError for data or a folder
    that cannot be used.
    """
    if workers is not None and workers.rank > 0:
        return _follow(config, run_dir, console, workers)
    check_run(run_dir, config, resume=resume)
    # A series' last run: its data hang in reference cycles, and Python's collector counts objects, not their bytes.
    gc.collect()
    runtime = start_runtime(config)
    progress = ShowProgress(console)
    algorithm, own_callbacks = build_algorithm(config, runtime, run_dir, console, progress.on_step, workers)
    open_run(run_dir, config)
    console.print(f"{config.name}: run folder {run_dir}; watch it with: tensorboard --logdir {run_dir}")
    store = CheckpointStore(run_dir / "checkpoints", keep=config.checkpoint.keep)
    with only_process_in(run_dir):
        return train(algorithm, config, run_dir, store, progress, [*own_callbacks, *extra_callbacks], workers, hparams)


def _follow(config: ExperimentConfig, run_dir: Path, console: Console, workers: Alone) -> Outcome:
    """Do what the first worker does, and write nothing."""
    runtime = start_runtime(config)
    algorithm, _ = build_algorithm(config, runtime, run_dir, console, lambda done, total: None, workers)
    store = ReadOnlyStore(run_dir / "checkpoints", keep=config.checkpoint.keep)
    return train(algorithm, config, run_dir, store, ShowProgress(console), workers=workers)


def train(
    algorithm: Algorithm,
    config: ExperimentConfig,
    run_dir: Path,
    store: CheckpointStore,
    progress: ShowProgress,
    extra_callbacks: Sequence[Callback] = (),
    workers: Alone | None = None,
    hparams: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train in a folder that is open and locked, from the newest checkpoint in ``store`` on.

    The first of several ``workers`` has the folder and the callbacks; the others are ready when it is.
    """
    workers = workers or Alone()
    first = workers.rank == 0
    tensorboard = TensorBoard(run_dir, dump_config(config), dotted_settings(config) if hparams is None else hparams)
    callbacks: list[Callback] = [tensorboard, JsonLines(run_dir / "metrics.jsonl"), progress] if first else []
    if first and isinstance(algorithm, HeadServer):
        callbacks.append(ShowWidths(algorithm, tensorboard))
    if config.training.patience is not None:
        callbacks.append(EarlyStop(config.training.patience))
    loop = TrainingLoop(
        algorithm,
        config.training.rounds,
        [*callbacks, *extra_callbacks],
        checkpoints=store,
        checkpoint_every=config.checkpoint.every,
        evaluate_every=config.evaluation.every,
    )
    signals: list[str] = []

    def end(signal_name: str) -> None:
        signals.append(signal_name)
        loop.request_stop(signal_name, to_resume=True)
        again = " (again: at once)" if workers.size == 1 else ""
        progress.console.print(f"{signal_name}: ending after this round and its checkpoint{again}")

    workers.on_stop(end)
    with stop_on_signal(workers.ask_to_stop):
        try:
            summary = loop.run()
            finished = not loop.to_resume or loop.next_round == loop.rounds
            if finished and first:
                write_summary(run_dir, summary)
            workers.wait_for_all()  # torchrun ends the others as soon as one has ended by a signal
        except CheckpointWriteError:
            raise
        except OSError as error:
            raise OSError(f"{run_dir}: cannot be written ({error}); mend that, then continue with --resume") from error
    ended_early = loop.next_round < loop.rounds
    return Outcome(summary, finished, signals[0] if signals else None, loop.stop_reason if ended_early else None)


def show_outcome(outcome: Outcome, run_dir: Path, console: Console, *, horizontal: bool = False) -> int:
    """Show how a training ended and return the exit code."""
    if not outcome.finished:
        rounds = outcome.summary["rounds"]
        console.print(f"interrupted after round {rounds}; go on with --run-dir {run_dir} --resume")
        return INTERRUPTED
    if outcome.stop_reason:
        console.print(f"stopped early: {outcome.stop_reason}")
    table = horizontal_table if horizontal else vertical_table
    console.print(table.summary_table(outcome.summary))
    return DONE
