"""The numbers of finished runs: accuracy over the rounds, what each pruning cost, what was saved."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vfl.costs import savings
from vfl.run_folder import Row, is_finished, read_rows
from vfl.studies.lvfl.plan import Plan, Run

ACCURACY = "accuracy/test"


@dataclass(frozen=True)
class Pruning:
    """One pruning of a run. Accuracies are those at the end of a round, in [0, 1]."""

    round_index: int
    alpha: float
    """Mean over the parties, after the pruning."""
    before: float
    """Accuracy one round earlier."""
    during: float
    """Accuracy at the end of the pruning's own round, whose other exchanges have already repaired some of it."""
    recovery_rounds: int | None
    """Rounds until the accuracy was at least ``before`` again, 0 if it never fell below; None: not by ``until``."""
    until: int
    """First round in which no recovery was looked for: the next pruning's, or the end."""

    @property
    def drop(self) -> float:
        """Accuracy lost from one round to the next; negative where it rose."""
        return self.before - self.during


@dataclass(frozen=True)
class Result:
    """A finished run."""

    method: str
    seed: int
    rows: tuple[Row, ...]
    summary: dict[str, Any]

    @property
    def accuracy(self) -> list[float]:
        """Test accuracy in [0, 1] of every round."""
        return [row[ACCURACY] for row in self.rows]

    @property
    def compute_saved(self) -> float:
        """Share of the multiply-accumulates of training that pruning spared."""
        return savings(self.summary["train_macs"], self.summary["unpruned_train_macs"])

    @property
    def communication_saved(self) -> float:
        """Share of the bytes of training, both ways, that sparsification spared."""
        sent = self.summary["uplink_bytes"] + self.summary["downlink_bytes"]
        return savings(sent, self.summary["dense_uplink_bytes"] + self.summary["dense_downlink_bytes"])

    @property
    def uplink_saved(self) -> float:
        """Share of the parties' sent bytes that sparsification spared."""
        return savings(self.summary["uplink_bytes"], self.summary["dense_uplink_bytes"])

    def mean_accuracy(self, start: int, stop: int) -> float:
        """Return the mean test accuracy of the rounds ``start`` to ``stop`` - 1."""
        chosen = self.accuracy[start:stop]
        return sum(chosen) / len(chosen)

    def ratio(self, name: str) -> list[float]:
        """Return ``alpha`` or ``beta`` of every round, mean over the parties."""
        return [_over_parties(row, name, mean=True) for row in self.rows]

    def prunings(self) -> list[Pruning]:
        """Return the rounds in which alpha rose; not round 0, before which there is no accuracy."""
        alphas, accuracy = self.ratio("alpha"), self.accuracy
        rises = [index for index in range(1, len(alphas)) if alphas[index] > alphas[index - 1]]
        found: list[Pruning] = []
        for start, until in zip(rises, [*rises, len(alphas)][1:], strict=True):
            before = accuracy[start - 1]
            recovered = (index - start for index in range(start, until) if accuracy[index] >= before)
            found.append(Pruning(start, alphas[start], before, accuracy[start], next(recovered, None), until))
        return found


def load_result(run_dir: Path, run: Run) -> Result:
    """Read a finished run."""
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    return Result(run.method, run.seed, tuple(read_rows(run_dir)), summary)


def load_results(plan: Plan, runs_dir: Path) -> list[Result]:
    """Read the plan's runs that are finished, in its order."""
    return [
        load_result(runs_dir / run.folder, run) for run in plan.runs if is_finished(runs_dir / run.folder, run.config)
    ]


def results_csv(results: Sequence[Result]) -> str:
    """Return one line per run and round."""
    shared = (ACCURACY, "loss/train", "loss/test", "savings/compute", "savings/communication")
    summed = ("macs_per_sample", "uplink_bytes", "downlink_bytes", "train_time_s")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "seed", "round", *shared, "alpha", "beta", *summed])
    for result in results:
        for row in result.rows:
            ratios = [_over_parties(row, name, mean=True) for name in ("alpha", "beta")]
            totals = [_over_parties(row, name) for name in summed]
            writer.writerow([result.method, result.seed, row["round"], *(row[tag] for tag in shared), *ratios, *totals])
    return text.getvalue()


def _over_parties(row: Row, name: str, *, mean: bool = False) -> float:
    values = [value for tag, value in row.items() if tag.startswith(f"{name}/")]
    return sum(values) / (len(values) if mean else 1)
