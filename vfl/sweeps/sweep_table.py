"""``sweep.csv``: a line per run with results and costs; ``times.csv``: values that differ between equal trainings."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vfl.base.metrics import evaluated, reached
from vfl.runs.atomic import write_csv
from vfl.sweeps.sweep_plan import SweepRun

COUNTED = ("uplink_bytes", "downlink_bytes", "dense_uplink_bytes", "dense_downlink_bytes")
COMPUTED = ("train_macs", "unpruned_train_macs")
REACHED = ("rounds", "test_accuracy", "test_loss", "metric", "score")
SAVED = ("savings_compute", "savings_communication")
RESULTS = (*REACHED, *SAVED, *COUNTED, *COMPUTED, "simulated_time_s", "model_digest")
TABLE = "sweep.csv"
TIMES = "times.csv"


def write_tables(
    folder: Path,
    runs: Sequence[SweepRun],
    summaries: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, str],
) -> None:
    """Write both tables whole. The first depends only on the runs' settings and results, not on any clock.

    ``summaries`` are those of the finished runs, with ``shares_saved``, and ``failures`` one line per failed one, both
    by folder; all others are ``open``.
    """
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    of_validation = any(evaluated(summary) == "validation" for summary in summaries.values())
    results = (*RESULTS, "validation_accuracy", "validation_loss") if of_validation else RESULTS
    rows: list[list[Any]] = [["run", *keys, "status", *results, "error"]]
    times: list[list[Any]] = [["run", "wall_time_s", "threads"]]
    for run in runs:
        result: dict[str, Any] = {}
        status = "failed" if run.folder in failures else "open"
        if run.folder in summaries:
            summary = summaries[run.folder]
            status, result = "finished", {**summary, **score(summary)}
            times.append([run.folder, f"{summary['wall_time_s']:.1f}", run.config.threads])
        settings = [_cell(run.settings.get(key, "")) for key in keys]
        outcome = [_cell(result.get(name, "")) for name in results]
        rows.append([run.folder, *settings, status, *outcome, failures.get(run.folder, "")])
    write_csv(folder / TABLE, rows)
    write_csv(folder / TIMES, times)


def score(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metric by which a run is compared, and its value."""
    metric, values = reached(summary)
    return {"metric": metric, "score": values[metric]}


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list | tuple) else value
