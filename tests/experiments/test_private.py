"""What commands write in folders of runs and sweeps is readable by their user alone."""

import argparse
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.predict import save
from vfl.console import ShowConsole
from vfl.sweeps import sweep, training


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
