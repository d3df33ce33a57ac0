"""Training from Python, as offered by ``import vfl`` (docs/python.md)."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vfl.base.errors import ConfigError
from vfl.base.process_state import standard_state
from vfl.config import Experiment, ExperimentConfig
from vfl.console import ShowConsole
from vfl.core.costs.controllers import Lightweighted, check_ratios
from vfl.runs.loop import Callback, Metrics, TrainingLoop
from vfl.runs.run import run_experiment
from vfl.runs.run_folder import choose_run_dir
from vfl.runs.stored_run import Run

Choose = Callable[[int, Metrics], Mapping[str, tuple[float, float]]]
"""Function that chooses a round's ratios: (alpha, beta) by party, from the round and the metrics so far, by tag."""


@standard_state()
def train(
    config: str | Path | Mapping[str, str | Path],
    overrides: Mapping[str, object] | None = None,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    ratios: Choose | None = None,
) -> Run:
    """Train an experiment in this process, as ``lvfl train`` does, and return the finished run.

    Args:
        config: a YAML file, the name of a shipped experiment, as "quickstart", or the tables by owner, as
            {"bank": "bank.yaml", "insurer": "insurer.yaml"}, each as ``lvfl describe`` writes it.
        overrides: settings that override the file's, by dotted key.
        run_dir: folder of the run; by default the next free one below ``runs``.
        resume: continue from the last checkpoint in ``run_dir``.
        callbacks: called after each round.
        ratios: chooses alpha and beta of each round in place of ``lightweighting``.

    Raises ValueError, one line, for a setting, data or a folder that cannot be used; KeyboardInterrupt after the
    checkpoint of a training that a signal has ended.
    """
    from vfl.data.tables.fitting import experiment_of_python  # imports the readers of tables

    experiment = experiment_of_python(config, overrides or {})
    for line in experiment.warnings():
        warnings.warn(line, stacklevel=3)
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
    config: Experiment

    def on_start(self, loop: TrainingLoop) -> None:
        """Replace the schedules."""
        if not isinstance(loop.algorithm, Lightweighted) or not isinstance(self.config, ExperimentConfig):
            raise ConfigError(f"ratios: mode {self.config.mode} has no lightweighting; leave them out")
        parties = self.config.parties
        loop.algorithm.assign = lambda round_index, _: check_ratios(
            "ratios", self.choose(round_index, dict(loop.last_metrics)), parties
        )
