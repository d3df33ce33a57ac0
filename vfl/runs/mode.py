"""Modes: how experiments differ beside their types."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from vfl.config import Experiment, dump_config
from vfl.config.components import MODES
from vfl.config.shared import Computation
from vfl.runs.callbacks import ShowProgress
from vfl.runs.loop import Algorithm, Callback
from vfl.runs.runtime import Runtime
from vfl.runs.tensorboard import REACHED, FrontPage, TensorBoard
from vfl.runs.tensorboard_hparams import hparams_of
from vfl.runs.torchrun_group import SingleProcess


@dataclass(frozen=True)
class Stage:
    """Environment of a run: device, folder, console, and the other workers."""

    runtime: Runtime
    run_dir: Path
    console: Console
    progress: ShowProgress
    tensorboard: TensorBoard
    workers: SingleProcess


class Built(NamedTuple):
    """An algorithm for the loop, and its own callbacks."""

    algorithm: Algorithm
    callbacks: Sequence[Callback] = ()


@dataclass(frozen=True)
class Mode:
    """One kind of experiment."""

    build: Callable[[Any, Stage], Built]
    """Load the data and build everything. Raises ValueError for data that is missing or does not fit."""
    table: Callable[[Mapping[str, Any]], Table]
    """Return the summary of a finished run as a table."""
    check_workers: Callable[[Any, int], float]
    """Return the seconds that processes under torchrun wait for each other. Raise ConfigError for an experiment that
    this number of them cannot share."""
    shown: Mapping[str, str] = field(default_factory=dict[str, str])
    """Formats, by tag, of the metrics that a round's line shows beside loss and accuracy."""
    front_page: FrontPage = field(default_factory=lambda: REACHED)
    """Charts on which TensorBoard opens."""

    def stage(
        self,
        config: Experiment,
        runtime: Runtime,
        run_dir: Path,
        console: Console,
        workers: SingleProcess | None = None,
        varied: Collection[str] = (),
    ) -> Stage:
        """Return the stage of a run in ``run_dir``; ``varied`` as in ``run_experiment``."""
        board = TensorBoard(run_dir, dump_config(config), hparams_of(config), varied, self.front_page)
        return Stage(runtime, run_dir, console, ShowProgress(console, self.shown), board, workers or SingleProcess())


def mode_of(config: Computation) -> Mode:
    """Return the mode of an experiment."""
    return resolve_name(MODES[config.mode].use)
