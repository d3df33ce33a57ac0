"""What the kinds of experiment differ in, seen from the room that runs them; looked up by ``mode``, here alone."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from vfl.config import ExperimentConfig, dotted_settings, dump_config
from vfl.config.registry import Registry
from vfl.runs.callbacks import ShowProgress
from vfl.runs.loop import Algorithm, Callback
from vfl.runs.tensorboard import REACHED, FrontPage, TensorBoard
from vfl.runs.workers import Alone
from vfl.runtime import Runtime


@dataclass(frozen=True)
class Stage:
    """Where a run is computed, shown and kept."""

    runtime: Runtime
    run_dir: Path
    console: Console
    progress: ShowProgress
    tensorboard: TensorBoard
    workers: Alone


class Built(NamedTuple):
    """What the loop trains, and the callbacks that are its own."""

    algorithm: Algorithm
    callbacks: Sequence[Callback] = ()


@dataclass(frozen=True)
class Mode:
    """One kind of experiment."""

    build: Callable[[ExperimentConfig, Stage], Built]
    """Loads the data and builds everything. Raises ValueError for data that is not there or does not fit."""
    table: Callable[[Mapping[str, Any]], Table]
    """Shows the summary of a finished run."""
    check_workers: Callable[[ExperimentConfig, int], None]
    """Raises ConfigError for an experiment that this number of processes under torchrun cannot share."""
    shown: Mapping[str, str] = field(default_factory=dict[str, str])
    """How a round's line tells the metrics that it adds to loss and accuracy: a format by tag."""
    predict: Callable[[Path, Path | Mapping[str, Path] | None], NDArray[np.float32]] | None = None
    """Probabilities [N, C] by the trained model in a folder, of a file's samples, owners' tables or the test set; None:
    not offered."""
    front_page: FrontPage = field(default_factory=lambda: REACHED)
    """The charts on which TensorBoard opens."""

    def stage(
        self,
        config: ExperimentConfig,
        runtime: Runtime,
        run_dir: Path,
        console: Console,
        workers: Alone | None = None,
        varied: Collection[str] = (),
    ) -> Stage:
        """Return the stage of a run in ``run_dir``; ``varied`` as in ``run_experiment``."""
        board = TensorBoard(run_dir, dump_config(config), dotted_settings(config), varied, self.front_page)
        return Stage(runtime, run_dir, console, ShowProgress(console, self.shown), board, workers or Alone())


MODES = Registry(
    "lvfl.modes",
    "mode",
    {"vertical": "parties.mode:VERTICAL", "horizontal": "vfl.horizontal.mode:HORIZONTAL"},
    "a vfl.runs.experiments.mode.Mode",
)
"""Named, not imported: this room is below the parties."""


def mode_of(config: ExperimentConfig) -> Mode:
    """Return the mode of an experiment. Raises ValueError for one that cannot be used."""
    return MODES.load(config.mode, lambda component: isinstance(component, Mode))
