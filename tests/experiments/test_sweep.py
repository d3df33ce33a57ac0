"""A search over runs that are made up: what has failed is not tried again, and the view knows how many can come."""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vfl.config import ConfigError
from vfl.runs.experiments import sweep as sweeps
from vfl.runs.experiments.executor import Event, RunEnded
from vfl.runs.experiments.pool import LocalProcesses
from vfl.runs.experiments.sweep_plan import SearchConfig, Sweep, SweepRun

BYTES = {"uplink_bytes": 1, "downlink_bytes": 1, "dense_uplink_bytes": 2, "dense_downlink_bytes": 2}
SUMMARY = {"rounds": 1, "test_accuracy": 0.9, "train_macs": 1, "unpruned_train_macs": 2, "wall_time_s": 1.0} | BYTES


class Pretends(LocalProcesses):
    """Leaves a summary for every run instead of training it, but for those that fail."""

    def __init__(self, fails: Callable[[SweepRun], bool]) -> None:
        super().__init__(2)
        self.fails = fails
        self.trained: list[str] = []

    def train(self, runs: Iterable[Any], runs_dir: Path, on_event: Callable[[Any, Event], None]) -> None:
        for run in runs:
            self.trained.append(run.folder)
            if self.fails(run):
                on_event(run, RunEnded(finished=False, error="made to fail"))
                continue
            (runs_dir / run.folder).mkdir()
            (runs_dir / run.folder / "summary.json").write_text(json.dumps(SUMMARY))
            on_event(run, RunEnded(finished=True))


def searched(folder: Path, fails: Callable[[SweepRun], bool]) -> tuple[list[str], str]:
    """Search with eight trials of one alpha or none; return the folders trained, in order, and what was said."""
    search = SearchConfig.model_validate(
        {"trials": 8, "seeds": [0, 1], "alpha": {"high": 0.5, "step": 0.5}, "beta": {"high": 0.1, "step": 0.1}}
    )
    out, executor = io.StringIO(), Pretends(fails)
    sweep = Sweep("made", {"name": "made", "threads": 1}, (), search)
    sweeps.train_sweep(sweep, folder, executor, Console(file=out, width=200), keep_checkpoints=False)
    return executor.trained, out.getvalue()


def test_every_run_of_a_search_is_trained_once_also_those_that_fail(tmp_path: Path):
    trained, said = searched(tmp_path / "out", lambda run: "alpha0.5" in run.folder)
    assert max(Counter(trained).values()) == 1
    assert {"alpha0-beta0-seed0", "alpha0.5-beta0-seed1"} <= set(trained)
    assert "1/18 alpha0-beta0-seed0: test accuracy 90.00%" in said  # 18: eight trials and the reference, two seeds
    assert "FAILED: made to fail" in said
    assert "cheapest with at most 1 points lost: alpha 0, beta " in said


def test_a_search_whose_reference_fails_ends(tmp_path: Path):
    trained, said = searched(tmp_path / "out", lambda run: "seed1" in run.folder)
    assert trained == ["alpha0-beta0-seed0", "alpha0-beta0-seed1"]
    assert "nothing was tried" in said


def test_shards_that_write_at_the_same_moment_do_not_take_each_others_unfinished_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The second one's tables are written whole between the first one's write and its rename."""
    points = ({"seed": 0}, {"seed": 1})
    sweep = Sweep("made", {"name": "made", "threads": 1}, points, None)
    first, second = (sweeps.SweepState(tmp_path, keep_checkpoints=False, shard=sweeps.Shard(n, 2)) for n in (1, 2))
    for state in (first, second):
        state.add(sweep.runs(1))
    renames: list[Path] = []
    rename = Path.replace

    def meet(self: Path, target: Path) -> Path:
        renames.append(self)
        if len(renames) == 1:
            second.write()
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", meet)
    first.write()
    assert len(renames) == 4
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["sweep.csv", "times.csv"]


def test_a_shard_may_begin_while_another_has_made_the_folder_and_not_yet_its_manifest(tmp_path: Path):
    (tmp_path / "shards" / "1of2").mkdir(parents=True)
    points = ({"seed": 0}, {"seed": 1})
    sweep, executor = Sweep("made", {"name": "made", "threads": 1}, points, None), Pretends(lambda run: False)
    with pytest.raises(ConfigError, match="is not empty and holds no sweep"):
        sweeps.train_sweep(sweep, tmp_path, executor, Console(quiet=True), keep_checkpoints=False)
    second = sweeps.parse_shard("2/2")
    state = sweeps.train_sweep(sweep, tmp_path, executor, Console(quiet=True), keep_checkpoints=False, shard=second)
    assert (executor.trained, len(state.runs)) == (["seed1"], 2)
