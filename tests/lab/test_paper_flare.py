"""scripts/lab/paper_flare.py: trains, reports, goes on, and refuses bad input in one line."""

import runpy
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "lab" / "paper_flare.py"
SMALL = [
    "data.dataset={kind: digits, image_size: 8}",
    "data.train_samples=400",
    "data.test_samples=60",
    "training.batch_size=5",
    "threads=1",
]


def paper_flare(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.lab.paper_flare", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, cwd=ROOT)


def test_figure_3_is_trained_once_and_reported(tmp_path: Path):
    # 800 samples for 60 clients of two shards each.
    arguments = [*SMALL, "--figures", "3", "--rounds", "2", "--out", str(tmp_path)]
    done = paper_flare(*arguments)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "README.md").read_text()
    assert "FLARE better than flexible" in page
    assert "\npython -m scripts.lab.paper_flare 'data.dataset=" in page
    again = paper_flare(*arguments)
    assert again.returncode == 0
    assert "test accuracy" not in again.stdout  # nothing was trained again


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "a"], "--seeds: 'a' is not a list"),
        (["--figures", "7"], "--figures: 7 is not one that is trained for"),
        (["--rounds", "0"], "--rounds: must be at least 1"),
        (["--seconds", "0"], "--seconds: must be above 0"),
        (["horizontal.wireless.bandwidth_hz=0"], "horizontal.wireless.bandwidth_hz: "),
        (["--plots-only", "--figures", "3"], "holds no finished run"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    main = runpy.run_path(str(SCRIPT))["main"]
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back what the script sets
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments, "--out", str(tmp_path / "out")])
    assert main() == 2
    signal.signal(signal.SIGTERM, handler)
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "out").exists()
