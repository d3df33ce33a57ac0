"""A run as its folder has it: the one reader of runs, for the commands and for Python alike."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vfl.base.errors import WhenAbsent
from vfl.config import (
    ConfigError,
    Experiment,
    ExperimentConfig,
    changed_keys,
    changed_keys_but_places,
)
from vfl.config.components import MODES
from vfl.config.files import load_stored_config
from vfl.config.prediction import PredictionConfig, read_prediction
from vfl.config.shipped import kind_of
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.run_folder import Row, read_json, saved_config, whole_rows

Columns = Any
"""A pandas.DataFrame, or lists by column where pandas is not installed."""


class Run:
    """A training in its folder. Raises ValueError for a folder without a run.

    ``places`` say where its data lie now, if they were moved, as ``data.tables.bank.file=bank.csv``.
    """

    def __init__(self, folder: str | Path, places: Sequence[str] = ()) -> None:
        self.folder, self._named, self._places = Path(folder).resolve(), str(folder), places
        if not (self.folder / "config.yaml").exists():
            joint = self.folder / "lvfl"
            compared = f", or {joint}, lvfl compare's joint run" if (joint / "config.yaml").exists() else ""
            told = kind_of(self.folder) or f"; name a folder of vfl.train or lvfl train{compared}"
            raise ConfigError(f"{folder}: holds no run{told}")

    def __str__(self) -> str:
        """Return the folder as it was named, for messages."""
        return self._named

    @property
    def vertical(self) -> ExperimentConfig:
        """``config`` of a vertical run. Raises ConfigError for another."""
        if isinstance(self.config, ExperimentConfig):
            return self.config
        raise ConfigError(f"{self}: mode is {self.config.mode}; only a vertical run has a split model")

    @cached_property
    def config(self) -> Experiment:
        """The resolved experiment. Raises ConfigError for ``places`` that are other settings."""
        if not self._places:
            return load_stored_config(self.folder / "config.yaml")
        # The places first: a misspelt one is refused before the run's data source is imported.
        moved = load_stored_config(self.folder / "config.yaml", self._places).with_whole_paths()
        own = load_stored_config(self.folder / "config.yaml")
        if changes := changed_keys_but_places(own, moved):
            raise ConfigError(f"{changes[0]}: is fixed in a run; name only where its data lie now, as data.file=FILE")
        return moved

    @cached_property
    def prediction(self) -> PredictionConfig:
        """The settings with which its parties answer; of an earlier version's run those of its experiment."""
        kept = None if self._places else read_prediction(self.folder)
        return self.vertical if kept is None else kept

    @property
    def checkpoints(self) -> CheckpointStore:
        """The checkpoints that are kept."""
        return CheckpointStore(self.folder / "checkpoints")

    def saved_rounds(self) -> list[int]:
        """Return the rounds after which its split model was saved, ascending. Raises ConfigError if there is none.

        Commands call it before they import PyTorch.
        """
        rounds = self.checkpoints.rounds()
        if not rounds:
            raise ConfigError(f"{self}: has no checkpoint (a sweep keeps them with --keep-checkpoints); train it again")
        _ = self.prediction  # only a vertical run has one
        return rounds

    @property
    def finished(self) -> bool:
        """The training has ended, with its last round or its early stop, and so there is a summary."""
        return (self.folder / "summary.json").exists()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Results and costs, as in ``summary.json``. Raises ValueError for one that is malformed or not there."""
        return read_json(self.folder / "summary.json", ("uplink_bytes", "train_macs"))

    @cached_property
    def metrics(self) -> list[Row]:
        """One row per round: ``round`` (from 0) and the metrics by their TensorBoard tags.

        Warns of rounds that a cut, damaged or lost file no longer has.
        """
        rows = whole_rows(self.folder)
        present = {int(row["round"]) for row in rows}
        rounds = self.summary.get("rounds", 0) if self.finished else max(present, default=-1) + 1
        if lost := sorted({*range(rounds)} - present):
            named = ", ".join(str(each + 1) for each in lost[:5]) + ", ..." * (len(lost) > 5)
            told = f"{len(lost)} of {rounds} rounds have no row (round {named}); what shows rounds lacks them"
            warnings.warn(f"{self.folder / 'metrics.jsonl'}: {told}", stacklevel=2)
        return rows

    def rows_and_summary(self) -> tuple[tuple[Row, ...], dict[str, Any]]:
        """Return the rows and the summary of a finished run. Raises ValueError if they cannot be read.

        Rows of rounds that a resumed run has added since are left out: they belong to its next summary.
        """
        try:
            return tuple(row for row in self.metrics if row["round"] < self.summary["rounds"]), self.summary
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot be read ({error}); train it again") from None

    def metrics_frame(self) -> Columns:
        """Return ``metrics`` as columns by tag, a row per round."""
        return in_columns(self.metrics, index="round")

    def predict(self, samples: Any = None) -> NDArray[np.floating[Any]]:
        """Return class probabilities [N, C], or values [N, 1] of a regression.

        Args:
            samples: whole images uint8 [N, C, H, W] of the training images' shape, or a file as ``lvfl predict --data``
                takes it; of tables new rows by owner, each a file or a frame (pyarrow, pandas, Polars, a mapping from
                column to values), predicted in the order of the label owner's; None for the test set.

        Raises ValueError for samples that do not fit, or a run that has no split model.
        """
        from vfl.base.process_state import standard_state

        with standard_state():
            return resolve_name(MODES[self.prediction.mode].predict)(self, samples)

    def explain(
        self, samples: Any = None, *, of: str | None = None, steps: int = 16, when_absent: WhenAbsent = "placeholder"
    ) -> Any:
        """Return what each owner and each of its columns moved: ``vfl.predict.reasons.Reasons`` (docs/tables.md).

        Args:
            samples: as for ``predict``.
            of: class whose log odds are explained; None: of two the positive one, of more the one predicted.
            steps: of the path from an owner's reference to its row.
            when_absent: what stands for an owner without a row, and for one who has not come yet: its learned
                ``placeholder``, ``zeros``, its ``mean`` embedding, or ``own``, the others' own classifiers.

        Raises ValueError as ``predict``, and for an unknown class.
        """
        from vfl.base.process_state import standard_state

        with standard_state():
            return resolve_name(MODES[self.prediction.mode].explain)(self, samples, of, steps, when_absent)


def is_finished(run_dir: Path, config: Experiment) -> bool:
    """Return whether the folder holds all rounds of this configuration, or those up to its early stop.

    Raises ConfigError if it holds a run of another one.
    """
    if not (run_dir / "config.yaml").exists():
        return False
    # All settings, not only the `fixed` ones: runs that are compared must not differ in their rounds either.
    changes = changed_keys(saved_config(run_dir), config.with_whole_paths())
    if changes:
        raise ConfigError(
            f"--out: {run_dir} holds a run with other settings: {', '.join(changes)}; name another folder"
        )
    run = Run(run_dir)
    return run.finished and (config.training.patience is not None or run.summary["rounds"] == config.training.rounds)


def in_columns(rows: Sequence[Mapping[str, Any]], index: str) -> Columns:
    """Return rows as columns, with column ``index`` as the frame's index; None if a row lacks a value."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    try:
        import pandas as pd  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]  # the user's, if there
    except ImportError:
        return columns
    frame: Any = pd.DataFrame(columns)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return frame.set_index(index)
