"""Trains a sweep in its folder: ``sweep.json``, ``runs/``, and two tables.

``sweep.csv`` has a line per run with results and costs, ``times.csv`` the values that differ between equal trainings.

The same call continues a sweep: finished runs are kept, killed ones continue from their checkpoints, failed ones are
tried again.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from vfl.base.costs import shares_saved
from vfl.base.metrics import evaluated, reached
from vfl.config import ConfigError
from vfl.config.shipped import SWEEP
from vfl.runs.atomic import write_atomically, write_csv
from vfl.runs.run_folder import only_process_in, private_files, read_manifest
from vfl.runs.stored_run import Run, is_finished
from vfl.sweeps.executor import AnyExecutor, Event, RunEnded
from vfl.sweeps.sweep_plan import Sweep, SweepRun
from vfl.sweeps.sweep_view import SweepView

COUNTED = ("uplink_bytes", "downlink_bytes", "dense_uplink_bytes", "dense_downlink_bytes")
COMPUTED = ("train_macs", "unpruned_train_macs")
REACHED = ("rounds", "test_accuracy", "test_loss", "metric", "score")
SAVED = ("savings_compute", "savings_communication")
RESULTS = (*REACHED, *SAVED, *COUNTED, *COMPUTED, "simulated_time_s", "model_digest")
TABLE = "sweep.csv"
TIMES = "times.csv"


@dataclass
class SweepState:
    """The runs known so far and their results, by folder."""

    folder: Path
    keep_checkpoints: bool
    """Keep the checkpoints of finished runs as well."""
    runs: list[SweepRun] = field(default_factory=list[SweepRun])
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    may_pass: bool = False
    """A run failed that may succeed later."""

    @property
    def runs_dir(self) -> Path:
        """Folder of the runs' folders."""
        return self.folder / "runs"

    def add(self, runs: Sequence[SweepRun]) -> None:
        """Add runs, and the results that exist. Raises ConfigError for a folder with other settings."""
        for run in runs:
            self.runs.append(run)
            if is_finished(self.runs_dir / run.folder, run.config):
                self.read(run)

    def read(self, run: SweepRun) -> None:
        """Read a finished run's summary."""
        summary = Run(self.runs_dir / run.folder).summary
        self.summaries[run.folder] = summary | shares_saved(summary)

    def take(self, run: SweepRun, event: RunEnded) -> None:
        """Record the end of a run, and write the tables."""
        if event.finished:
            self.read(run)
            if not self.keep_checkpoints:
                shutil.rmtree(self.runs_dir / run.folder / "checkpoints", ignore_errors=True)
        if event.error is not None:
            self.failures[run.folder] = event.error
            self.may_pass |= event.may_pass
        self.write()

    def write(self) -> None:
        """Write the tables."""
        write_tables(self.folder, self.runs, self.summaries, self.failures)


@private_files()
def train_sweep(
    sweep: Sweep, folder: Path, executor: AnyExecutor, console: Console, *, keep_checkpoints: bool
) -> SweepState:
    """Train the runs that are not finished. Checkpoints of finished runs are deleted unless kept.

    The threads of a run are chosen when the sweep begins and then fixed: a run's bits depend on them. Raises
    ConfigError for a folder that holds other runs or that another process works in, KeyboardInterrupt at the end of a
    sweep that a signal has ended.
    """
    fixed = _fixed_settings(sweep, folder, executor, console)
    state = SweepState(folder, keep_checkpoints)
    state.add(sweep.runs(fixed["threads"]))
    if unfinished := [run for run in state.runs if run.folder not in state.summaries]:
        executor.slots(unfinished[0])  # refuses what has room nowhere, before anything is written
    executor.open_folder(state.runs_dir)
    view = SweepView(console, len(state.runs), state.runs_dir)
    with only_process_in(folder), view:
        _train_runs(state, fixed, executor, view)
    return state


def foresee(sweep: Sweep, folder: Path, executor: AnyExecutor) -> list[str]:
    """Return a preview: the runs with their state, and the minutes that are left. Trains nothing.

    Minutes are estimated from the mean of the finished runs. Raises ConfigError as ``train_sweep``.
    """
    state = SweepState(folder, keep_checkpoints=True)
    state.add(sweep.runs(_fixed_settings(sweep, folder, executor, Console(quiet=True))["threads"]))
    finished = {run.folder: run.folder in state.summaries for run in state.runs}
    lines = [f"{name}: {'finished' if done else 'to be trained'}" for name, done in finished.items()]
    done, every = sum(finished.values()), len(finished)
    if not done:
        return [*lines, f"{every} runs, none finished: how long one takes is known after the first"]
    seconds = sum(state.summaries[name]["wall_time_s"] for name, done in finished.items() if done) / done
    minutes = seconds * (every - done) / min(executor.slots(state.runs[0]), max(1, every - done)) / 60
    return [*lines, f"{done} of {every} runs finished, {seconds:.0f} s each; about {minutes:.1f} minutes are left"]


def _train_runs(state: SweepState, fixed: Mapping[str, Any], executor: AnyExecutor, view: SweepView) -> None:
    """Train the runs that have neither finished nor failed."""
    manifest = {**fixed, "runs": {run.folder: run.settings for run in state.runs}}
    write_atomically(state.folder / SWEEP, json.dumps(manifest, indent=2) + "\n")
    state.write()
    unfinished = [run for run in state.runs if run.folder not in state.summaries]
    view.kept = len(state.runs) - len(unfinished)

    def on_event(run: SweepRun, event: Event) -> None:
        if isinstance(event, RunEnded):
            state.take(run, event)
        view.show(run, event, state.summaries.get(run.folder))

    signal_name = executor.train(unfinished, state.runs_dir, on_event)
    if signal_name is not None:
        raise KeyboardInterrupt(signal_name)


def _fixed_settings(sweep: Sweep, folder: Path, executor: AnyExecutor, console: Console) -> dict[str, Any]:
    """Return the values that are fixed until the sweep is finished, wherever it continues; the manifest holds them."""
    if (folder / SWEEP).exists():
        fixed = read_manifest(folder, "threads")
        console.print(f"going on in {folder}; threads per run: {fixed['threads']}, as when the sweep began")
    elif folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--out: {folder} is not empty and holds no sweep; name another folder")
    else:
        fixed: dict[str, Any] = {"name": sweep.name, "threads": executor.threads(sweep.base.get("threads"))}
    return fixed


def write_tables(
    folder: Path,
    runs: Sequence[SweepRun],
    summaries: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, str],
) -> None:
    """Write both complete tables. The first depends only on the runs' settings and results, not on any clock.

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
        settings = [_show_cell(run.settings.get(key, "")) for key in keys]
        outcome = [_show_cell(result.get(name, "")) for name in results]
        rows.append([run.folder, *settings, status, *outcome, failures.get(run.folder, "")])
    write_csv(folder / TABLE, rows)
    write_csv(folder / TIMES, times)


def score(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metric by which a run is compared, and its value."""
    metric, values = reached(summary)
    return {"metric": metric, "score": values[metric]}


def _show_cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list | tuple) else value
