"""The numbers of finished runs: accuracy over rounds and simulated time, and when a target was reached."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vfl.run_folder import Row, is_finished, read_rows
from vfl.studies.horizontal.studies import Run

ACCURACY = "accuracy/test"
CLOCK = "simulated_time_s/total"


@dataclass(frozen=True)
class Result:
    """A finished run."""

    study: str
    method: str
    seed: int
    rows: tuple[Row, ...]
    """Rounds that were evaluated."""
    summary: dict[str, Any]

    @property
    def best(self) -> float:
        """Best test accuracy of all rounds, in [0, 1]: what the papers report."""
        return max(row[ACCURACY] for row in self.rows)

    @property
    def last(self) -> float:
        """Mean test accuracy of the last tenth of the rounds: less noisy than one round."""
        tail = self.rows[-max(1, len(self.rows) // 10) :]
        return mean(row[ACCURACY] for row in tail)

    def rounds_to(self, target: float) -> float | None:
        """Return the rounds until the accuracy first was ``target``; None if it never was."""
        return next((row["round"] + 1 for row in self.rows if row[ACCURACY] >= target), None)

    def seconds_to(self, target: float) -> float | None:
        """Return the simulated seconds until the accuracy first was ``target``; None if it never was."""
        return next((row[CLOCK] for row in self.rows if row[ACCURACY] >= target), None)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over the seeds; ``of`` of the ``seeds`` had a value."""

    mean: float | None
    deviation: float
    of: int
    seeds: int

    def text(self, form: Callable[[float], str]) -> str:
        """Return e.g. ``12 ± 1``, with the number of seeds where some had no value."""
        if self.mean is None:
            return "not reached"
        missing = f" ({self.of} of {self.seeds} seeds)" if self.of < self.seeds else ""
        deviation = f" ± {form(self.deviation)}" if self.of > 1 else ""
        return f"{form(self.mean)}{deviation}{missing}"


def spread(values: Sequence[float | None]) -> Spread:
    """Return mean and sample standard deviation of the values that are there."""
    there = [value for value in values if value is not None]
    deviation = stdev(there) if len(there) > 1 else 0.0
    return Spread(mean(there) if there else None, deviation, len(there), len(values))


def load_results(runs: Sequence[Run], runs_dir: Path) -> list[Result]:
    """Read the runs that are finished, in their order."""
    results: list[Result] = []
    for run in runs:
        run_dir = runs_dir / run.folder
        if is_finished(run_dir, run.config):
            summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
            rows = tuple(row for row in read_rows(run_dir) if ACCURACY in row)
            results.append(Result(run.study, run.method, run.seed, rows, summary))
    return results


def common_target(results: Sequence[Result]) -> float:
    """Return a target for rounds to target: nine tenths of the median of the methods' best accuracies."""
    best = sorted(result.best for result in results)
    return round(0.9 * best[len(best) // 2], 2)


def results_csv(results: Sequence[Result]) -> str:
    """Return one line per run and evaluated round."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    tags = (ACCURACY, "loss/test", "loss/train", CLOCK, "uplink_bytes/clients", "downlink_bytes/clients")
    writer.writerow(["study", "method", "seed", "round", *tags])
    for result in results:
        for row in result.rows:
            cells = [f"{row[tag]:.6g}" if tag in row else "" for tag in tags]
            writer.writerow([result.study, result.method, result.seed, int(row["round"]), *cells])
    return text.getvalue()
