"""How a sweep's runs are trained: which is next, what is shown, signals, privacy, and that none holds on to another."""

import argparse
import gc
import io
import os
import signal
import stat
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from scripts.predict import save
from vfl.config import ExperimentConfig, load_config, parse_config
from vfl.console import ShowConsole
from vfl.parties.launch.local_launch import with_shared_threads
from vfl.predict.mode import VERTICAL
from vfl.runs import run, runtime
from vfl.runs.loop import Callback, Metrics, TrainingLoop
from vfl.runs.mode import Built, Stage
from vfl.sweeps import sweep, training
from vfl.sweeps.executor import Event, Executor, Lost, Progress, QueuedRun, RunEnded
from vfl.sweeps.pool import LocalProcesses, LocalRun
from vfl.sweeps.sweep_view import SweepView

ROUNDS = 3


class Steps(Executor[str]):
    """Trains three runs at once, each for three rounds, a round of each at a time."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        self.began: dict[str, dict[str, int]] = {}
        """By run: the rounds that all had done when it began."""

    def threads(self, wanted: int | None) -> int:
        return 1

    def slots(self, run: QueuedRun) -> int:
        return 3

    def check(self, runs_dir: Path) -> None: ...

    def start(self, run: QueuedRun, runs_dir: Path) -> str:
        self.began[run.folder] = dict(self.done)
        self.done[run.folder] = 0
        return run.folder

    def wait(self, handles: Sequence[str]) -> Sequence[str]:
        return handles

    def receive(self, handle: str, *, interrupted: bool) -> Event:
        if self.done[handle] == ROUNDS:
            return RunEnded(finished=True)
        self.done[handle] += 1
        return Progress(self.done[handle])

    def interrupt(self, handle: str) -> None: ...

    def kill(self, handle: str) -> None: ...


def test_a_run_waits_for_the_rounds_it_needs_of_another_or_for_its_end(configure: Callable[..., ExperimentConfig]):
    config, steps = configure(), Steps()
    waits = {"first": None, "fork": ("first", 2), "later fork": ("fork", 99), "of a finished run": ("old", 1)}
    runs = [QueuedRun(name, config, after=after) for name, after in waits.items()]
    assert steps.train(runs, Path(), lambda run, event: None) is None
    assert steps.began == {
        "first": {},
        "of a finished run": {"first": 0},
        "fork": {"first": 2, "of a finished run": 2},
        "later fork": {"first": 3, "of a finished run": 3, "fork": 3},
    }


@pytest.mark.release
def test_a_signal_while_a_run_starts_ends_that_run_as_well(tmp_path: Path, configure: Callable[..., ExperimentConfig]):
    class Interrupted(LocalProcesses):
        def start(self, run: QueuedRun, runs_dir: Path) -> LocalRun:
            started = super().start(run, runs_dir)
            os.kill(os.getpid(), signal.SIGTERM)
            return started

    config = configure(training={"rounds": 300})
    ends: list[Event] = []

    def on_event(run: QueuedRun, event: Event) -> None:
        ends.extend([event] if isinstance(event, RunEnded) else [])

    signal_name = Interrupted(2).train([QueuedRun(name, config) for name in ("first", "second")], tmp_path, on_event)
    assert signal_name == "SIGTERM"
    assert ends == [RunEnded(finished=False)], "the first was interrupted, the second never began"


def modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")}


def test_a_table_of_predictions_is_private(tmp_path: Path):
    prediction: Any = SimpleNamespace(rows=lambda: [("id", "p")], scores={}, lacking={}, ids_N=[1])
    arguments = argparse.Namespace(out=None, run=tmp_path, database=None)
    save(prediction, arguments, ShowConsole(quiet=True))
    assert modes(tmp_path) == {"predictions.csv": "0o600"}


def write(folder: Path) -> None:
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "table").touch()
    raise RuntimeError


@pytest.mark.parametrize("what", ["the sweep's process", "a run's process"])
def test_a_sweep_is_private_in_all_its_processes(what: str, tmp_path: Path, monkeypatch):
    run: Any = SimpleNamespace(folder="a", search=None)
    if what == "a run's process":
        monkeypatch.setattr(training, "hold_log", lambda _log: write(tmp_path / "runs" / "a"))
        with pytest.raises(RuntimeError):
            training.train(run, tmp_path / "runs", lambda _event: None)
    else:
        monkeypatch.setattr(sweep, "_fixed_settings", lambda _sweep, folder, *_others: write(folder))
        with pytest.raises(RuntimeError):
            sweep.train_sweep(run, tmp_path / "out", run, ShowConsole(quiet=True), keep_checkpoints=False)
    assert {mode for name, mode in modes(tmp_path).items() if name in ("run", "a", "runs", "out")} == {"0o700"}
    assert {mode for name, mode in modes(tmp_path).items() if name in ("table", "train.log")} == {"0o600"}


SUMMARY = {"test_accuracy": 0.9123, "savings_compute": 0.5, "savings_communication": 0.25, "wall_time_s": 61.0}
CONFIG = parse_config({"name": "made", "training": {"rounds": 10}})
NAME = "lightweighting.alpha0.4-lightweighting.beta0.6-seed1"


def a_view(console: Console) -> SweepView:
    """A sweep of eight runs, two of them kept: two have ended, two run, two are left."""
    view = SweepView(console, total=8, kept=2)
    light, broken, named, slow = (QueuedRun(name, CONFIG) for name in ("light", "broken", NAME, "slow"))
    view.show(light, Progress(0))
    view.show(light, Progress(10, "accuracy 91.23%"))
    view.show(broken, Progress(1))
    view.show(named, Progress(0, node="near"))
    view.show(slow, Progress(2, node="far"))
    view.show(slow, Progress(3, "accuracy 50.00%", "far"))
    view.show(slow, Progress(4, node="far"))
    view.show(light, RunEnded(finished=True), SUMMARY)
    view.show(broken, RunEnded(finished=False, error="the training loss is not finite"))
    return view


def shown(width: int, *, terminal: bool) -> tuple[SweepView, Console, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None, legacy_windows=False)
    return a_view(console), console, out


@pytest.mark.parametrize("width", [30, 60, 100])
def test_the_lines_name_what_runs_has_ended_and_is_left_at_any_width(width: int):
    view, console, out = shown(width, terminal=True)
    out.truncate(0)
    out.seek(0)
    console.print(view.lines())
    lines = out.getvalue().splitlines()
    assert out.getvalue().isascii()
    assert max(map(len, lines)) <= width
    assert "".join(lines).startswith("3 finished, 1 failed, 2 running, 2 left; about 1 min"[:width])
    if width == 100:
        rows = [line.split() for line in lines[-3:]]
        now = time.strftime("%H:%M")
        assert rows[0] == ["running", "node", "rounds", "test", "ends"]
        assert rows[1][:5] == ["slow", "far", "4/10", "accuracy", "50.00%"]
        assert rows[1][5] >= now or rows[1][5] == "00:00"
        assert rows[2] == [NAME, "near", "0/10"]
        assert "; 2 nodes" in " ".join(lines)


def test_a_run_whose_node_has_died_is_no_longer_there_and_its_work_is_not_counted_twice():
    out = io.StringIO()
    view = SweepView(Console(file=out, width=100), total=1)
    run = QueuedRun("light", CONFIG)
    view.show(run, Progress(0, node="near"))
    view.show(run, Progress(4, node="near"))
    view.show(run, Lost())
    assert "its node died" in out.getvalue()
    view.show(run, Progress(4, node="far"))
    assert view.running["light"].node == "far"
    view.show(run, RunEnded(finished=True), SUMMARY)
    assert view.worked == pytest.approx(1.0)


def test_the_lines_of_what_has_ended_stay_and_those_of_what_runs_do_not():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None, legacy_windows=False)
    with SweepView(console, total=1) as view:
        view.show(QueuedRun("light", CONFIG), Progress(1))
        view.show(QueuedRun("light", CONFIG), RunEnded(finished=True), SUMMARY)
    assert "1/1 light: test accuracy 91.23%, compute saved 50.0%, communication saved 25.0%, 61 s\n" in out.getvalue()
    erased = out.getvalue().rpartition("\n")[2]
    assert "\x1b[2K" in erased  # the cursor is back where they began, and its lines are gone


def test_without_a_terminal_there_is_a_line_per_run_and_nothing_else():
    _, _, out = shown(40, terminal=False)
    assert out.getvalue().splitlines() == [
        "3/8 light: test accuracy 91.23%, compute saved 50.0%, communication saved 25.0%, 61 s",
        "4/8 broken: FAILED: the training loss is not finite",
    ]


@pytest.mark.release
def test_a_run_has_let_go_of_the_one_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configure: Callable[..., ExperimentConfig]
):
    models: list[weakref.ref[object]] = []
    alive_at_start: list[int] = []
    mode = VERTICAL

    def build_and_watch(config: ExperimentConfig, stage: Stage) -> Built:
        alive_at_start.append(sum(model() is not None for model in models))
        built = mode.build(config, stage)
        models.append(weakref.ref(built.algorithm.roster.parties[0].link.party.model))  # pyright: ignore[reportAttributeAccessIssue]  # a HeadServer with local links
        return built

    monkeypatch.setattr(run, "mode_of", lambda config: replace(mode, build=build_and_watch))
    config = configure(training={"rounds": 1})
    gc.disable()  # as good as between runs of few objects
    try:
        for name in "abc":
            run.run_experiment(config, tmp_path / name, resume=False, console=Console(quiet=True))
    finally:
        gc.enable()
    assert alive_at_start == [0, 0, 0]


@pytest.mark.release
def test_threads_follow_the_work_of_a_step_and_stay_with_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configure: Callable[..., ExperimentConfig]
):
    """A light step takes one, as its processes would; a resumed run takes the number of its beginning."""
    torch.set_num_threads(2)
    shown = io.StringIO()
    config = configure(threads=None, training={"rounds": 1})
    assert with_shared_threads(config, tmp_path / "run").threads == 1
    torch.set_num_threads(2)
    run.run_experiment(config, tmp_path / "run", resume=False, console=Console(file=shown, width=500))
    assert (
        f"run folder {tmp_path / 'run'}; threads=1, by the work of a step; watch it" in shown.getvalue().splitlines()[0]
    )
    assert torch.get_num_threads() == 2, "the next run chooses anew"
    monkeypatch.setattr(runtime, "LIGHT_STEP_MACS", 1)
    longer = configure(threads=None, training={"rounds": 2})
    used: list[int] = []

    class Watch(Callback):
        def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
            used.append(torch.get_num_threads())

    for name, resume in (("run", True), ("heavy", False)):
        quiet = Console(quiet=True)
        run.run_experiment(longer, tmp_path / name, resume=resume, console=quiet, extra_callbacks=[Watch()])
        torch.set_num_threads(2)
    assert used == [1, 2, 2]
    assert [load_config(tmp_path / name / "config.yaml").threads for name in ("run", "heavy")] == [1, 2]
