"""One training of a study, and its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from vfl.base.costs import savings
from vfl.config import ExperimentConfig
from vfl.runs.results import CLOCK, RunResult
from vfl.runs.run_folder import Row
from vfl.runs.stored_run import Run, is_finished

ACCURACY = "accuracy/test"


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

    @property
    def evaluated(self) -> list[Row]:
        """The rows of rounds with a test accuracy."""
        return [row for row in self.rows if ACCURACY in row]

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy of every round that was evaluated."""
        return [row[ACCURACY] for row in self.evaluated]

    @property
    def best(self) -> float:
        """Best test accuracy of all rounds, as papers on horizontal learning report it."""
        return max(self.accuracies)

    @property
    def last(self) -> float:
        """Mean test accuracy of the last tenth of the evaluations: less noisy than one round."""
        accuracies = self.accuracies
        return mean(accuracies[-max(1, len(accuracies) // 10) :])

    @property
    def uplink_saved(self) -> float:
        """Share of the uplink bytes that sparsification saved."""
        return savings(self.summary["uplink_bytes"], self.summary["dense_uplink_bytes"])

    def rounds_to(self, target: float) -> float | None:
        """Return the rounds until the accuracy first was ``target``; None if it never was."""
        index = self.round_reaching(target)
        return None if index is None else self.rows[index]["round"] + 1

    def seconds_to(self, target: float) -> float | None:
        """Return the simulated seconds until the accuracy first was ``target``; None if it never was."""
        index = self.round_reaching(target)
        return None if index is None else self.rows[index][CLOCK]


def load_results(runs: Sequence[StudyRun], runs_dir: Path) -> list[StudyResult]:
    """Read the finished runs, in their order."""
    return [
        StudyResult(*Run(runs_dir / run.folder).rows_and_summary(), run.study, run.method, run.seed)
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
