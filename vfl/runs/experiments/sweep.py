"""Trains a sweep in its folder: ``sweep.json``, ``runs/``, ``sweep.csv``, ``times.csv``.

The same call continues a sweep: finished runs are kept, killed ones continue from their checkpoints, failed ones are
tried again.
"""

import csv
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from vfl.config import ConfigError
from vfl.costs import shares_saved
from vfl.runs.atomic import write_atomically
from vfl.runs.experiments.executor import AnyExecutor, Event, RunEnded
from vfl.runs.experiments.search import Search
from vfl.runs.experiments.sweep_plan import Sweep, SweepRun
from vfl.runs.experiments.sweep_table import TABLE, write_tables
from vfl.runs.experiments.sweep_view import SweepView
from vfl.runs.run_folder import MANIFEST, is_finished, only_process_in, private_files, read_manifest, read_summary


@dataclass(frozen=True)
class Shard:
    """A part of a sweep's runs, for one of several hosts that see the same folder."""

    index: int = 1
    count: int = 1

    @property
    def writer(self) -> str:
        """Return what tells this shard's unfinished files from those of others; "" for a whole sweep."""
        return "" if self.count == 1 else f"{self.index}of{self.count}-"

    def of(self, runs: Sequence[SweepRun]) -> Sequence[SweepRun]:
        """Return every ``count``-th run, from the ``index``-th on."""
        return runs[self.index - 1 :: self.count]

    def lock(self, folder: Path) -> AbstractContextManager[None]:
        """Lock the shard, or the sweep if it is one shard; raise ConfigError if another process trains it."""
        if self.count == 1:
            return only_process_in(folder)
        own = folder / "shards" / f"{self.index}of{self.count}"
        own.mkdir(parents=True, exist_ok=True)
        return only_process_in(own)


WHOLE = Shard()


def parse_shard(text: str) -> Shard:
    """Parse ``3/16``. Raises ConfigError."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise ConfigError(f"--shard: {text!r} is no part of a sweep; write I/N with I from 1 to N, as 3/16")
    return Shard(int(match[1]), int(match[2]))


@dataclass
class SweepState:
    """The runs known so far and their results, by folder."""

    folder: Path
    keep_checkpoints: bool
    """Keep the checkpoints of finished runs as well."""
    shard: Shard = WHOLE
    runs: list[SweepRun] = field(default_factory=list[SweepRun])
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    may_pass: bool = False
    """A run failed that may succeed later."""

    @property
    def runs_dir(self) -> Path:
        """Folder of the runs' folders."""
        return self.folder / "runs"

    @property
    def own(self) -> Sequence[SweepRun]:
        """The runs of this shard."""
        return self.shard.of(self.runs)

    def add(self, runs: Sequence[SweepRun]) -> None:
        """Add new runs, and the results that exist: a search may choose a pair twice, even at once.

        Raises ConfigError for a folder with other settings.
        """
        known = {run.folder for run in self.runs}
        for run in runs:
            if run.folder in known:
                continue
            known.add(run.folder)
            self.runs.append(run)
            if is_finished(self.runs_dir / run.folder, run.config):
                self.read(run)

    def read(self, run: SweepRun) -> None:
        """Read a finished run's summary."""
        summary = read_summary(self.runs_dir / run.folder)
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

    def catch_up(self) -> None:
        """Read the results of other shards."""
        # A run that failed leaves no summary: only the table, as its shard wrote it, tells. Its own shard knows better.
        told = {row["run"]: row["error"] for row in _told(self.folder) if row["status"] == "failed"}
        for run in self.runs:
            if run.folder in self.summaries or run.folder in self.failures:
                continue
            if (self.runs_dir / run.folder / "summary.json").exists():
                self.read(run)
            elif run.folder in told and run not in self.own:
                self.failures[run.folder] = told[run.folder]

    def write(self) -> None:
        """Write the tables; the shard that ends last writes those of all shards."""
        if self.shard.count > 1:
            self.catch_up()
        write_tables(self.folder, self.runs, self.summaries, self.failures, self.shard.writer)


@private_files()
def train_sweep(
    sweep: Sweep, folder: Path, executor: AnyExecutor, console: Console, *, keep_checkpoints: bool, shard: Shard = WHOLE
) -> SweepState:
    """Train the runs that are not finished. Checkpoints of finished runs are deleted unless kept.

    The threads of a run and the number of trials in a batch are chosen when the sweep begins and then fixed: a run's
    bits and a search's choices depend on them. Raises ConfigError for a folder that holds other runs or that another
    process works in, KeyboardInterrupt at the end of a sweep that a signal has ended.
    """
    if sweep.search is not None and shard.count > 1:
        raise ConfigError("--shard: a search chooses its runs by those before; use --jobs")
    search = Search(sweep.search) if sweep.search is not None else None
    fixed = _fixed(sweep, folder, executor, console, shard)
    state = SweepState(folder, keep_checkpoints, shard)
    state.add(sweep.runs(fixed["threads"]))
    executor.open_folder(state.runs_dir)
    view = SweepView(console, len(state.own) if search is None else search.most_runs, state.runs_dir)
    with shard.lock(folder), view:
        if search is None:
            _train(state, fixed, executor, view)
            return state
        for points in search.batches(state.summaries, fixed["batch"]):
            state.add([sweep.run(settings, fixed["threads"]) for settings in points])
            _train(state, fixed, executor, view)
    console.print(search.conclusion(state.summaries))
    return state


def foresee(sweep: Sweep, folder: Path, executor: AnyExecutor, shard: Shard = WHOLE) -> list[str]:
    """Return a preview: the shard's runs with their state, and the minutes that are left. Trains nothing.

    Minutes are estimated from the mean of the finished runs. Raises ConfigError as ``train_sweep``.
    """
    state = SweepState(folder, keep_checkpoints=True, shard=shard)
    state.add(sweep.runs(_fixed(sweep, folder, executor, Console(quiet=True), shard)["threads"]))
    finished = {run.folder: run.folder in state.summaries for run in state.own}
    lines = [f"{name}: {'finished' if done else 'to be trained'}" for name, done in finished.items()]
    done, every = sum(finished.values()), len(finished)
    if sweep.search is not None:
        return [f"a search of at most {Search(sweep.search).most_runs} runs; it chooses them as it goes"]
    if not done:
        return [*lines, f"{every} runs, none finished: how long one takes is known after the first"]
    seconds = sum(state.summaries[name]["wall_time_s"] for name, done in finished.items() if done) / done
    minutes = seconds * (every - done) / min(executor.places(state.runs[0]), max(1, every - done)) / 60
    return [*lines, f"{done} of {every} runs finished, {seconds:.0f} s each; about {minutes:.1f} minutes are left"]


def _train(state: SweepState, fixed: Mapping[str, Any], executor: AnyExecutor, view: SweepView) -> None:
    """Train this shard's known runs that have neither finished nor failed."""
    manifest = {**fixed, "runs": {run.folder: run.settings for run in state.runs}}
    write_atomically(state.folder / MANIFEST, json.dumps(manifest, indent=2) + "\n", state.shard.writer)
    state.write()
    # Failures are those of this call alone: a search comes here for every batch, and the next call tries them again.
    left = [run for run in state.own if run.folder not in state.summaries.keys() | state.failures.keys()]
    # Less those that earlier batches of this call have trained.
    view.kept = sum(run.folder in state.summaries for run in state.own) - view.finished

    def on_event(run: SweepRun, event: Event) -> None:
        if isinstance(event, RunEnded):
            state.take(run, event)
        view.show(run, event, state.summaries.get(run.folder))

    signal_name = executor.train(left, state.runs_dir, on_event)
    if signal_name is not None:
        raise KeyboardInterrupt(signal_name)


def _told(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the table that another shard wrote."""
    if not (folder / TABLE).exists():
        return []
    with (folder / TABLE).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _fixed(sweep: Sweep, folder: Path, executor: AnyExecutor, console: Console, shard: Shard) -> dict[str, Any]:
    """Return the values that are fixed until the sweep is finished, wherever it continues; the manifest holds them."""
    if (folder / MANIFEST).exists():
        fixed = read_manifest(folder, "threads")
        console.print(f"going on in {folder}; threads per run: {fixed['threads']}, as when the sweep began")
    elif shard.count == 1 and folder.exists() and any(folder.iterdir()):  # shards may all begin at once
        raise ConfigError(f"--out: {folder} is not empty and holds no sweep; name another folder")
    else:
        fixed: dict[str, Any] = {"name": sweep.name, "threads": executor.threads(sweep.base.get("threads"))}
    if sweep.search is not None and "batch" not in fixed:
        fixed["batch"] = executor.places(sweep.run({}, fixed["threads"]))
    return fixed
