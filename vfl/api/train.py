"""Training from Python, as offered by ``import vfl`` (docs/python.md)."""

import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vfl.base.errors import ConfigError, PeerLost
from vfl.base.spelling import nearest
from vfl.config import ExperimentConfig, load_config, parse_config
from vfl.config.data import TABLE_KINDS
from vfl.config.files import lay_over, read_settings
from vfl.console import ShowConsole
from vfl.core.costs.schedule import Lightweighted, chosen_ratios
from vfl.data.tables.frames import write_frame
from vfl.runs.loop import Callback, Metrics, TrainingLoop
from vfl.runs.mode import mode_of
from vfl.runs.run import run_experiment
from vfl.runs.run_folder import Row, choose_run_dir, read_rows, read_summary

Choose = Callable[[int, Metrics], Mapping[str, tuple[float, float]]]
"""Function that chooses a round's ratios: (alpha, beta) by party, from the round and the metrics so far, by tag."""

Columns = Any
"""A pandas.DataFrame, or lists by column where pandas is not installed."""


class Run:
    """A finished training in its folder. Raises ValueError for a folder without a run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()
        if not (self.folder / "config.yaml").exists():
            raise ConfigError(f"{folder}: holds no run; name a folder of vfl.train or lvfl train")

    @cached_property
    def config(self) -> ExperimentConfig:
        """The resolved experiment."""
        return load_config(self.folder / "config.yaml")

    @cached_property
    def metrics(self) -> list[Row]:
        """One row per round: ``round`` (from 0) and the metrics by their TensorBoard tags."""
        return read_rows(self.folder)

    def metrics_frame(self) -> Columns:
        """Return ``metrics`` as columns by tag, a row per round."""
        return in_columns(self.metrics, index="round")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Results and costs, as in ``summary.json``."""
        return read_summary(self.folder)

    def predict(
        self, samples: ArrayLike | Mapping[str, object] | str | Path | None = None
    ) -> NDArray[np.floating[Any]]:
        """Return class probabilities [N, C], or values [N, 1] of a regression.

        Args:
            samples: whole images uint8 [N, C, H, W] of the training images' shape, or a file as ``lvfl predict --data``
                takes it; of tables new rows by owner, each a file or a frame (pyarrow, pandas, Polars, a mapping from
                column to values), predicted in the order of the label owner's; None for the test set.

        Raises ValueError for samples that do not fit, or a run that has no split model.
        """
        predict = mode_of(self.config).predict
        if predict is None:
            raise ConfigError(f"{self.folder}: mode is {self.config.mode}; only a vertical run predicts")
        if samples is None:
            return predict(self.folder, None)
        with tempfile.TemporaryDirectory() as folder:
            given = self._files(samples, Path(folder))
            try:
                return predict(self.folder, given)
            except (ValueError, PeerLost) as error:
                raise ConfigError(_in_python(str(error), Path(folder))) from None

    def _files(self, samples: object, folder: Path) -> Path | Mapping[str, Path]:
        """Return samples as files; samples in memory are written into a folder."""
        if isinstance(samples, str | Path):
            if self.config.data.dataset.kind in TABLE_KINDS:
                raise ConfigError(f"samples: say whose table {samples} is: {{owner: {str(samples)!r}}}")
            return Path(samples)
        if not isinstance(samples, Mapping):
            np.savez(folder / "samples.npz", images=np.asarray(cast(Any, samples)))
            return folder / "samples.npz"
        tables: dict[str, Path] = {}
        for owner, table in cast(Mapping[str, object], samples).items():
            if owner not in self.config.parties:
                raise ConfigError(f"samples: no owner is called {owner!r}{nearest(owner, self.config.parties)}")
            tables[owner] = Path(table) if isinstance(table, str | Path) else folder / owner
            if tables[owner].parent == folder:
                write_frame(tables[owner], f"samples: {owner}", table)
        if not tables:
            raise ConfigError("samples: there is no table; give {owner: table}")
        return tables


def _in_python(line: str, folder: Path) -> str:
    """Return an error's line for Python, without the command's options and the names of temporary files."""
    for name in (f"--data: {folder / 'samples.npz'}:", f"--data: {folder / 'samples.npz'}", "--data:", "--table:"):
        line = line.replace(name, "samples:")
    line = re.sub(re.escape(str(folder)) + r"/([\w.-]+)", r"the table of \1", line)
    return re.sub(r"; --when-absent .*$", "; give its table", line)


def train(
    config: str | Path,
    overrides: Mapping[str, object] | None = None,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    ratios: Choose | None = None,
) -> Run:
    """Train an experiment in this process, as ``lvfl train`` does, and return the finished run.

    Args:
        config: a YAML file, or the name of a shipped experiment, as "quickstart".
        overrides: settings that override the file's, by dotted key.
        run_dir: folder of the run; by default the next free one below ``runs``.
        resume: continue from the last checkpoint in ``run_dir``.
        callbacks: called after each round.
        ratios: chooses alpha and beta of each round in place of ``lightweighting``.

    Raises ValueError, one line, for a setting, data or a folder that cannot be used; KeyboardInterrupt after the
    checkpoint of a training that a signal has ended.
    """
    if not isinstance(cast(object, config), str | Path):
        what = f"a YAML file, or the name of a shipped experiment; got {type(config).__name__}"
        raise ConfigError(f"config: expected {what}; settings go into overrides")
    experiment = parse_config(lay_over(read_settings(Path(config)), overrides or {}))
    for line in experiment.warnings():
        warnings.warn(line, stacklevel=2)
    folder = Path(run_dir) if run_dir else choose_run_dir(experiment.name, Path("runs"), resume=resume)
    outcome = run_experiment(
        experiment,
        folder,
        resume=resume,
        console=ShowConsole(),
        extra_callbacks=[*([] if ratios is None else [_Chooser(ratios, experiment)]), *callbacks],
    )
    if not outcome.finished:
        raise outcome.interruption(folder)
    return Run(folder)


def report(runs: Sequence[Run], file: str | Path) -> None:
    """Write a page that compares finished runs, an HTML file that opens offline. Raises ValueError if that fails."""
    from vfl.reports.runs import load_runs  # it draws: over half a second
    from vfl.reports.write import write_page

    if not runs:
        raise ConfigError("runs: there are none to report on")
    write_page(load_runs([run.folder for run in runs], runs[0].folder), Path(file))


@dataclass(frozen=True, eq=False)
class _Chooser(Callback):
    """Lets a function choose each round's ratios from the metrics of earlier rounds."""

    choose: Choose
    config: ExperimentConfig

    def on_start(self, loop: TrainingLoop) -> None:
        """Replace the schedules."""
        if not isinstance(loop.algorithm, Lightweighted):
            raise ConfigError("ratios: mode horizontal has no lightweighting; leave them out")
        loop.algorithm.assign = lambda round_index, _: chosen_ratios(
            "ratios", self.choose(round_index, dict(loop.last_metrics)), self.config.parties
        )


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
