"""A sweep in processes of its own: kept, killed, failed and interrupted runs, and the table that shows none of it."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from shorthand import wait_until
from tiny_training import Ended

from vfl.runs.checkpoint import CheckpointStore

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "sweep.py"
BASE = {
    "name": "tiny",
    "seed": 3,
    "threads": 2,
    "data": {"train_samples": 48, "test_samples": 40, "partition": {"rows": 1, "columns": 2}},
    "models": {"feature": {"kind": "mlp", "width": 0.1, "embedding_size": 8}, "head": {"hidden": []}},
    "training": {"rounds": 40, "steps_per_round": 2, "batch_size": 16, "optimizer": {"learning_rate": 0.05}},
    "checkpoint": {"every": 4},
}
FAILING = "learning_rate1e+30"
SWEEP = {
    "name": "tiny_sweep",
    "base": "base.yaml",
    "list": [
        {"lightweighting.alpha": 0.0},
        {"lightweighting.alpha": 0.5, "lightweighting.beta": 0.5},
        {"training.optimizer.learning_rate": 1e30},
        {"training.optimizer.learning_rate": 0.01},
    ],
}
PATIENCE_S = 800

pytestmark = pytest.mark.timeout(3000)  # processes that import PyTorch, on machines that do much else


def start(folder: Path, *arguments: str, sweep: dict[str, Any] = SWEEP) -> "subprocess.Popen[str]":
    """Start the command on a sweep of its own folder."""
    folder.mkdir(exist_ok=True)
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    command = [sys.executable, str(SCRIPT), str(folder / "sweep.yaml"), "--out", str(folder / "out"), "--jobs", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, *arguments], env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(process: "subprocess.Popen[str]", code: int = 2) -> tuple[str, str]:
    """Wait for the end of a sweep, by default of one in which a run fails; return what it said."""
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == code, err
    return out, err


def rows_of(out: Path) -> list[dict[str, Any]]:
    with (out / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def processes_in(folder: Path) -> list[int]:
    """Processes that have a file below the folder open."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [str(each.readlink()) for each in (process / "fd").iterdir()]
        except OSError:
            continue
        if any(name.startswith(str(folder)) for name in opened):
            found.append(int(process.name))
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A sweep that nobody touched: its folder, what it said, and its error."""
    folder = tmp_path_factory.mktemp("undisturbed")
    out, err = finish(start(folder))
    return folder / "out", out, err


@pytest.mark.release
def test_a_failed_run_is_recorded_and_the_others_go_on(undisturbed: tuple[Path, str, str]):
    folder, out, err = undisturbed
    status = {row["run"]: (row["status"], row["error"]) for row in rows_of(folder)}
    assert list(status.values()).count(("finished", "")) == 3
    failed = [run for run, (state, _) in status.items() if state == "failed"]
    assert failed == [FAILING]
    assert "not finite" in status[FAILING][1]
    assert f"{FAILING}: FAILED" in out
    assert err.startswith(f"error: failed: {FAILING};")
    assert len(err.splitlines()) == 1


@pytest.mark.release
def test_the_threads_are_divided_and_every_run_has_its_page(undisturbed: tuple[Path, str, str]):
    folder, _, _ = undisturbed
    configs = [yaml.safe_load(path.read_text()) for path in folder.glob("runs/*/config.yaml")]
    assert [config["threads"] for config in configs] == [1, 1, 1, 1]
    finished = [row["run"] for row in rows_of(folder) if row["status"] == "finished"]
    for run in finished:
        assert list((folder / "runs" / run).glob("events.*"))
        assert not (folder / "runs" / run / "checkpoints").exists()


@pytest.mark.release
def test_killed_and_interrupted_it_gives_the_table_of_one_that_was_left_alone(
    undisturbed: tuple[Path, str, str], tmp_path: Path
):
    out = tmp_path / "out"

    def a_run_is_under_way() -> bool:
        stores = [CheckpointStore(path) for path in out.glob("runs/*/checkpoints")]
        return any(4 <= max(store.rounds(), default=0) < BASE["training"]["rounds"] - 6 for store in stores)

    killed = start(tmp_path)
    wait_until(a_run_is_under_way, PATIENCE_S)
    killed.kill()
    killed.communicate()
    wait_until(lambda: not processes_in(out), PATIENCE_S)  # its runs die with it
    assert any(row["status"] == "open" for row in rows_of(out))
    interrupted = start(tmp_path)
    wait_until(lambda: len(processes_in(out)) >= 2 and a_run_is_under_way(), PATIENCE_S)
    interrupted.send_signal(signal.SIGINT)
    _, err = interrupted.communicate(timeout=PATIENCE_S)
    assert interrupted.returncode == 130, err
    assert not processes_in(out)
    finish(start(tmp_path))
    assert (out / "sweep.csv").read_bytes() == (undisturbed[0] / "sweep.csv").read_bytes()


@pytest.fixture
def say(call: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Call the command with what ends before any run; return its code and its one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))

    def train(sweep: dict[str, Any], *arguments: str) -> tuple[int, str]:
        (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"name": "s", "base": "base.yaml"} | sweep))
        code, _, err = call("sweep", "sweep.yaml", *arguments)
        return code, err

    return train


@pytest.mark.parametrize(
    ("sweep", "arguments", "expected"),
    [
        ({}, (), "the sweep is empty"),
        ({"grid": {"training.epochs": [1]}}, (), "training.epochs: unknown key"),
        ({"grid": {"seed": [0]}}, ("--jobs", "0"), "--jobs:"),
        ({"grid": {"seed": [0]}}, ("--shard", "1/2"), "--shard: removed in 0.2.0; --on ray"),
        ({"grid": {"seed": [0]}}, ("--out", "full"), "--out: full is not empty and holds no sweep"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(say, tmp_path: Path, sweep, arguments, expected: str):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    code, err = say(sweep, *arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert expected in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.yaml", "full", "sweep.yaml"]


@pytest.mark.release
def test_a_folder_with_runs_of_other_settings_is_refused(say, undisturbed: tuple[Path, str, str]):
    changed = {key: value for key, value in SWEEP.items() if key not in ("name", "base")}
    code, err = say(changed | {"settings": {"training.rounds": 3}}, "--out", str(undisturbed[0]))
    assert code == 2
    assert "training.rounds (40 -> 3)" in err


@pytest.mark.release
def test_the_manifest_names_every_run_with_its_settings(undisturbed: tuple[Path, str, str]):
    manifest = json.loads((undisturbed[0] / "sweep.json").read_text())
    assert list(manifest["runs"].values()) == SWEEP["list"]
    assert manifest["threads"] == 1
