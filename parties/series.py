"""A series of trainings, each in its own folder, each only once: what is finished is kept, what was killed goes on."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from parties.run import Outcome, run_experiment
from vfl.config import ExperimentConfig
from vfl.run_folder import is_finished


def train_series(
    runs: Mapping[str, ExperimentConfig],
    runs_dir: Path,
    console: Console,
    on_finished: Callable[[str, Outcome], None] = lambda folder, outcome: None,
) -> str | None:
    """Train what is not finished, by folder below ``runs_dir``; checkpoints of finished runs are deleted.

    Returns the name of the signal that ended the series, None where all is done. Raises ValueError for a folder that
    holds another configuration.
    """
    missing = {folder: config for folder, config in runs.items() if not is_finished(runs_dir / folder, config)}
    for folder, config in missing.items():
        outcome = run_experiment(config, runs_dir / folder, resume=True, console=console)
        if outcome.finished:
            shutil.rmtree(runs_dir / folder / "checkpoints", ignore_errors=True)
            on_finished(folder, outcome)
        if outcome.signal_name:
            return outcome.signal_name
    return None
