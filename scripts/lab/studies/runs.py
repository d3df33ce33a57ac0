"""One training of a study, and its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vfl.config import ExperimentConfig
from vfl.runs.results import RunResult, read_result
from vfl.runs.run_folder import Row, is_finished


@dataclass(frozen=True)
class StudyRun:
    """One training."""

    study: str
    """Name of one comparison among several; "" if it is the only one."""
    method: str
    """A curve of its figure."""
    seed: int
    config: ExperimentConfig

    @property
    def folder(self) -> str:
        """Name of the run's folder."""
        return "-".join(filter(None, (self.study, self.method, f"seed{self.seed}")))


@dataclass(frozen=True)
class StudyResult(RunResult):
    """A finished training of a study."""

    study: str
    method: str
    seed: int


def load_results(runs: Sequence[StudyRun], runs_dir: Path) -> list[StudyResult]:
    """Read the finished runs, in their order."""
    return [
        StudyResult(*read_result(runs_dir / run.folder), run.study, run.method, run.seed)
        for run in runs
        if is_finished(runs_dir / run.folder, run.config)
    ]


def results_table(results: Sequence[StudyResult], columns: Mapping[str, Callable[[Row], object]]) -> list[list[object]]:
    """Return headings, then a row per run and evaluated round: the run's names, then the columns."""
    rows = ((result, row) for result in results for row in result.evaluated)
    return [
        ["study", "method", "seed", "round", *columns],
        *(
            [result.study, result.method, result.seed, int(row["round"]), *(cell(row) for cell in columns.values())]
            for result, row in rows
        ),
    ]
