"""The runner of all studies: each run in its own folder, only once; what is finished is kept, what was killed goes on.

A run that has a fork starts from the rounds that it shares with another (``forks.py``).
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from vfl.errors import Diverged
from vfl.experiments.run import run_experiment
from vfl.run_folder import is_finished
from vfl.studies.forks import Fork, SaveForks, needed_rounds, remove_spent_forks, start_from_fork
from vfl.studies.runs import StudyResult, StudyRun, load_result


def train_missing(
    runs: Sequence[StudyRun],
    runs_dir: Path,
    console: Console,
    on_finished: Callable[[StudyRun, StudyResult], None],
    on_diverged: Callable[[StudyRun, Diverged], None],
    forks: Mapping[str, Fork] | None = None,
) -> str | None:
    """Train what is not finished, in order; checkpoints of finished runs are deleted.

    A run that diverges ends alone; another call tries it again. Returns the name of the signal that ended the series,
    None where all is done. Raises ValueError for a folder that holds another configuration.
    """
    forks = forks or {}
    left = [run for run in runs if not is_finished(runs_dir / run.folder, run.config)]
    for run in list(left):
        run_dir = runs_dir / run.folder
        if run.folder in forks:
            start_from_fork(run, forks[run.folder], runs_dir)
        keep = SaveForks(run_dir, needed_rounds(forks, left).get(run.folder, set()))
        try:
            outcome = run_experiment(
                run.config, run_dir, resume=True, console=console, extra_callbacks=[keep], varied=("seed",)
            )
        except Diverged as error:
            on_diverged(run, error)
            continue
        if outcome.finished:
            left.remove(run)
            shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
            remove_spent_forks(runs, forks, left, runs_dir)
            on_finished(run, load_result(run, runs_dir))
        if outcome.signal_name:
            return outcome.signal_name
    return None
