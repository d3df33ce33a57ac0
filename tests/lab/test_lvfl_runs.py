"""Series of runs: forks give the bits of runs from scratch, nothing is trained twice, interrupts lose nothing."""

import json
import os
import runpy
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from scripts.lab.prunings import make_runs
from scripts.lab.studies import command, runner
from scripts.lab.studies.forks import SaveForks, fork_store
from scripts.lab.studies.lvfl.plan import Plan, longest_fork, make_plan
from scripts.lab.studies.runner import train_missing
from scripts.lab.studies.runs import StudyResult, load_results
from vfl.config import parse_config
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.loop import Callback, TrainingLoop
from vfl.runs.run import run_experiment
from vfl.runs.stored_run import Run
from vfl.sweeps.executor import Event, Executor, QueuedRun, RunEnded

pytestmark = pytest.mark.release

SCRIPT = Path(__file__).parents[2] / "scripts" / "lab" / "paper_lvfl.py"
QUIET = Console(quiet=True)
TINY: dict[str, Any] = {
    "name": "tiny",
    "threads": 1,
    "data": {
        "dataset": {"kind": "digits", "image_size": 16},
        "train_samples": 96,
        "test_samples": 50,
        "partition": {"rows": 1, "columns": 2},
    },
    "models": {"feature": {"kind": "cnn", "width": 0.1, "embedding_size": 8}, "head": {"hidden": [8]}},
    "training": {"rounds": 5, "batch_size": 32, "optimizer": {"learning_rate": {0: 0.05, 3: 0.01}}},
    "lightweighting": {"alpha": {2: 0.3, 3: 0.5}, "beta": {1: 0.4}, "error_feedback": True},
    "checkpoint": {"every": 4},
}


def tiny_plan(*figures: str, seeds: tuple[int, ...] = (0,)) -> Plan:
    return make_plan(parse_config(TINY), figures, seeds)


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class Here(Executor[tuple[str, RunEnded]]):
    """Trains in this process, with callbacks of the test's own, and notes which runs have finished."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = callbacks
        self.finished: list[str] = []

    def threads(self, wanted: int | None) -> int:
        return 1

    def slots(self, run: QueuedRun) -> int:
        return 1

    def check(self, runs_dir: Path) -> None: ...

    def start(self, run: QueuedRun, runs_dir: Path) -> tuple[str, RunEnded]:
        callbacks = [*run.prepare(runs_dir), *self.callbacks]
        outcome = run_experiment(
            run.config, runs_dir / run.folder, resume=True, console=QUIET, extra_callbacks=callbacks
        )
        if outcome.signal_name:
            signal.raise_signal(signal.Signals[outcome.signal_name])
        return run.folder, RunEnded(outcome.finished)

    def wait(self, handles: Sequence[tuple[str, RunEnded]]) -> Sequence[tuple[str, RunEnded]]:
        return handles

    def receive(self, handle: tuple[str, RunEnded], *, interrupted: bool) -> Event:
        self.finished += [handle[0]] if handle[1].finished else []
        return handle[1]

    def interrupt(self, handle: tuple[str, RunEnded]) -> None: ...

    def kill(self, handle: tuple[str, RunEnded]) -> None: ...


def train(plan: Plan, runs: Path) -> list[str]:
    """Train what is missing; return the folders of the runs that this finished."""
    here = Here()
    assert train_missing(plan.runs, runs, here, QUIET, plan.forks).failures == {}
    return here.finished


def timeless(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{tag: value for tag, value in row.items() if "time" not in tag} for row in rows]


def numbers(result: StudyResult) -> dict[str, Any]:
    """Everything of a summary that must repeat: digests, bytes, multiply-accumulates, accuracy."""
    parties = {
        name: {key: value for key, value in party.items() if key != "train_time_s"}
        for name, party in result.summary["parties"].items()
    }
    return {key: value for key, value in result.summary.items() if key != "wall_time_s"} | {"parties": parties}


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of Fig. 2 and 3a of a seed, as the script trains them."""
    runs = tmp_path_factory.mktemp("series")
    assert len(train(tiny_plan("2", "3a"), runs)) == 7
    return runs


def test_a_fork_gives_the_same_bits_as_the_run_from_scratch(series: Path, tmp_path: Path):
    plan = tiny_plan("2", "3a")
    forked = {result.method: result for result in load_results(plan.runs, series)}
    for run in plan.runs:
        if run.folder not in plan.forks or run.method == "alpha0.4":
            continue
        run_experiment(run.config, tmp_path / run.folder, resume=False, console=QUIET)
        summary = json.loads((tmp_path / run.folder / "summary.json").read_text())
        scratch = StudyResult(tuple(Run(tmp_path / run.folder).metrics), summary, "", run.method, 0)
        assert timeless(list(forked[run.method].rows)) == timeless(list(scratch.rows)), run.method
        assert numbers(forked[run.method]) == numbers(scratch), run.method
    assert len({result.summary["model_digest"] for result in forked.values()}) == len(forked)


def test_forks_skip_the_shared_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    begun: dict[str, tuple[int, int]] = {}

    class Watch(SaveForks):
        def __init__(self, run_dir: Path, rounds: Iterable[int]) -> None:
            super().__init__(run_dir, rounds)
            self.rows = len(Run(run_dir).metrics) if run_dir.exists() else 0

        def on_start(self, loop: TrainingLoop) -> None:
            begun[self.forks.directory.parent.name] = (self.rows, loop.next_round)
            super().on_start(loop)

    monkeypatch.setattr(runner, "SaveForks", Watch)
    train(tiny_plan("2"), tmp_path)
    assert begun == {"NL-seed0": (0, 0), "PL-seed0": (2, 2), "ML-seed0": (1, 1), "L-seed0": (2, 2)}


def test_runs_share_rounds_only_while_all_settings_are_equal():
    runs = make_runs(["refit", "frequency", "fig3b"], [0])
    forks = {run.method: longest_fork(run, [each for each in runs[:place] if each.study == run.study])
             for place, run in enumerate(runs) if run.study == "refit"}  # fmt: skip
    assert {method: fork and (fork.parent.split("-")[1], fork.round_index) for method, fork in forks.items()} == {
        "cut0.6": None, "refit0.6": ("cut0.6", 27), "cut0.4": ("cut0.6", 27), "refit0.4": ("cut0.6", 27),
        "thin0.6": None,
    }  # fmt: skip
    by_name = {(run.study, run.method): run for run in runs}
    assert longest_fork(by_name["fig3b", "none"], [by_name["frequency", "none"]]) is None  # of another precision


def test_a_finished_series_is_not_repeated_and_keeps_no_checkpoints(series: Path):
    plan = tiny_plan("2", "3a")
    before = {path: path.stat().st_mtime_ns for path in series.rglob("*")}
    assert train(plan, series) == []
    assert {path: path.stat().st_mtime_ns for path in series.rglob("*")} == before
    assert not list(series.rglob("round_*"))
    assert {path.name.split(".")[0] for path in (series / "L-seed0").iterdir()} == {
        "config", "metrics", "summary", "events",
    }  # fmt: skip


def test_tensorboard_has_the_shared_rounds_too(series: Path):
    events = EventAccumulator(str(series / "alpha0.6-seed0")).Reload()
    assert [event.step for event in events.Scalars("accuracy/test")] == list(range(5))


def test_a_run_without_its_fork_starts_from_scratch(series: Path, tmp_path: Path):
    plan = tiny_plan("2", "3a")
    shutil.copytree(series, tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "L-seed0")
    assert train(plan, tmp_path / "runs") == ["L-seed0"]
    one, other = (
        {r.method: numbers(r) for r in load_results(plan.runs, runs)}["L"] for runs in (series, tmp_path / "runs")
    )
    assert one == other


class Stop(Callback):
    """Interrupts a run as a user does, after some round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_round(self, loop: TrainingLoop, round_index: int, metrics: dict[str, float]) -> None:
        if loop.next_round == self.after:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("after", [2, 5])
def test_an_interrupted_series_goes_on_with_the_same_bits(series: Path, tmp_path: Path, after: int):
    plan = tiny_plan("2")
    assert train_missing(plan.runs, tmp_path, Here(Stop(after)), QUIET, plan.forks).signal_name == "SIGTERM"
    assert (tmp_path / "NL-seed0" / "summary.json").exists() == (after == 5)
    assert not (tmp_path / "PL-seed0").exists()
    assert len(train(plan, tmp_path)) == (3 if after == 5 else 4)
    ours, theirs = ([numbers(r) for r in load_results(plan.runs, runs)] for runs in (tmp_path, series))
    assert ours == theirs


def test_a_kill_between_checkpoint_and_fork_loses_no_fork(tmp_path: Path):
    nl = tiny_plan("2").runs[0]
    run_experiment(nl.config, tmp_path, resume=True, console=QUIET, extra_callbacks=[Stop(2)])
    assert CheckpointStore(tmp_path / "checkpoints").rounds() == [2]
    run_experiment(nl.config, tmp_path, resume=True, console=QUIET, extra_callbacks=[SaveForks(tmp_path, [2, 3])])
    assert fork_store(tmp_path).rounds() == [2, 3]


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """Run the script in this process; return its exit code, standard output and standard error."""
    main = runpy.run_path(str(SCRIPT), run_name="paper_script")["main"]
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back what the script sets
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
        try:
            code = main()
        except SystemExit as end:  # argparse's way out
            code = int(str(end.code))
        printed, errors = capsys.readouterr()
        return code, printed, errors

    yield call
    signal.signal(signal.SIGTERM, handler)


def test_the_script_trains_goes_on_draws_and_says_so(script: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tiny.yaml").write_text(json.dumps(TINY))  # JSON is YAML
    out = tmp_path / "out"
    arguments = [str(tmp_path / "tiny.yaml"), "lightweighting.error_feedback=false", "--out", str(out)]
    arguments += ["--figures", "3b", "--jobs", "2", "--rounds", "10", "--data-note", "small digits"]
    with monkeypatch.context() as patch:
        patch.setattr(command, "open_executor", lambda *_: nullcontext(Here(Stop(7))))
        code, printed, _ = script(*arguments)
    assert (code, printed.splitlines()[-1].split(":")[0]) == (130, "SIGTERM")
    assert CheckpointStore(out / "runs" / "NL-seed0" / "checkpoints").rounds() == [4, 7]
    code, printed, errors = script(*arguments)  # in processes of their own
    assert (code, errors) == (0, "")
    runs = [f"{method}-seed0" for method in ("NL", "beta0.2", "beta0.4", "beta0.6")]
    said = [line.split(":")[0] for line in printed.splitlines()]
    assert (said[0], said[-1]) == ("4 runs", "4 finished runs")
    assert {line.split()[-1] for line in said[1:-1]} == set(runs)
    written = {path.name for path in out.iterdir()}
    assert written == {"README.md", "command.txt", "fig3b.png", "results.csv", "runs"}
    text = (out / "README.md").read_text()
    assert "small digits" in text
    assert "α {4: 0.3, 6: 0.5}; β {2: 0.4}; learning rate {0: 0.05, 6: 0.01};" in text
    assert script(*arguments, "--plots-only")[0] == 0
    assert (out / "README.md").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--out", "x", "training.round=3"], "training.round: unknown key"),
        (["--out", "x", "--seeds", "a"], "--seeds: "),
        (["--out", "x", "--rounds", "1"], "--rounds: 1 are too few"),
        (["--out", "x", "--rounds", "many"], "--rounds"),
        (["--out", "x", "--ends", "3a=40"], "--ends: 3a=40 does not work; give 41 to 100 rounds"),
        (["a.yaml", "b.yaml", "--out", "x"], "one configuration"),
        ([], "--out"),
        (["--plots-only", "--out", "nothing-here"], "holds no finished run yet"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    script: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], field: str
):
    monkeypatch.chdir(tmp_path)
    code, printed, errors = script(*arguments)
    assert (code, printed) == (2, "")
    assert errors.startswith("error: ")
    assert field in errors
    assert len(errors.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
