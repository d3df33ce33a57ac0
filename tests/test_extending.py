"""The package of docs/extending.md, installed from the page: what a stranger adds trains, prunes, resumes, exports.

One process of a fresh environment imports PyTorch and forks once per command (``tests/fork_server.py``).
"""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path
from typing import Any

import pytest
from fork_server import ROOT, ForkServer

pytestmark = pytest.mark.release

FILES = dict(
    re.findall(r"^```\w+\n# (\S+\.\w+)\n(.*?)^```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL | re.M)
)
OURS = {name: text for name, text in FILES.items() if not name.startswith("vfl/")}
BROKEN = """
from dataclasses import replace
import torch
from torch import nn
from stranger.residual import Residual
from stranger.waves import Waves
from vfl.data.source import Source

class Silent(nn.Module):
    def __init__(self, spec):
        super().__init__()
    def forward(self, series):
        return series.mean()

class Unsplit(Source):
    parties = ("one", "two")

class OneWay:
    def __init__(self, wire):
        pass
    def compress(self, embedding_BD, ratio):
        return b""

class Counting:
    def __init__(self, wire):
        self.frames = 0
    def compress(self, embedding_BD, ratio):
        self.frames += 1
        return bytes([self.frames]) * embedding_BD.numel()
    def decompress(self, frame, shape):
        return torch.full(shape, float(frame[0]))

class Misplaced(Waves):
    def split(self):
        split = super().split()
        train = split.labels.train.take(torch.arange(len(split.labels.train.ids)).flip(0))
        return replace(split, labels=replace(split.labels, train=train))

class Ashamed(Residual):
    def forward(self, series):
        if len(series) < 3:
            return super().forward(series)
        raise ValueError("no more")

class Overflowing:
    def __init__(self, wire):
        pass
    def compress(self, embedding_BD, ratio):
        return embedding_BD.contiguous().numpy().tobytes()
    def decompress(self, frame, shape):
        values = torch.frombuffer(bytearray(frame), dtype=torch.float32).view(shape)
        return values / 0 if shape[0] > 3 else values

def halves(given):
    return lambda round_index, reports: dict.fromkeys(given.parties, 0.5)

class NoAlgorithm:
    pass
"""
OFFERED = {
    "lvfl.feature_models": "silent = broken:Silent\nashamed = broken:Ashamed",
    "lvfl.sources": "unsplit = broken:Unsplit\nmisplaced = broken:Misplaced",
    "lvfl.compressors": "one_way = broken:OneWay\ncounting = broken:Counting\noverflowing = broken:Overflowing",
    "lvfl.controllers": "idle = broken:NoAlgorithm\nhalves = broken:halves",
    "lvfl.algorithms": "nothing = broken:NoAlgorithm\ngone = broken:Gone",
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """An environment that sees this one's packages and this checkout, and has the stranger's package installed."""
    folder = tmp_path_factory.mktemp("stranger")
    write(folder / "source", OURS | {"stranger/__init__.py": ""})
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder / "venv")}))
    seen = [path for path in sys.path if path.endswith("site-packages")]
    (site / "seen.pth").write_text("\n".join(f"import site; site.addsitedir({path!r})" for path in seen))
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--no-index"]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install, str(folder / "source")], check=True)
    points = "\n".join(f"[{group}]\n{lines}\n" for group, lines in OFFERED.items())
    metadata = "Metadata-Version: 2.1\nName: broken\nVersion: 1\n"
    write(site, {"broken.py": BROKEN, "broken-1.dist-info/METADATA": metadata})
    write(site, {"broken-1.dist-info/entry_points.txt": points})
    return python


@pytest.fixture(scope="module")
def results(python: Path) -> list[dict[str, Any]]:
    """What every command of this file gave: exit code and output."""
    folder = python.parents[2] / "source"
    state = str(python.parents[2] / "state")
    environment = {"PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": "", "XDG_STATE_HOME": state}
    server = ForkServer(python, environment, cwd=folder)
    results = [result(server, folder / f"output{number}", *each) for number, each in enumerate(COMMANDS)]
    server.close()
    return results


def result(server: ForkServer, output: Path, arguments: list[str], kill_at: str | None) -> dict[str, Any]:
    """Run a command, killed as soon as something lies in ``kill_at``."""
    process = server.start([str(ROOT / "vfl" / "__main__.py"), *arguments], output)
    if kill_at is not None:
        while not any((output.parent / kill_at).glob("*")):
            time.sleep(0.005)
        os.kill(process, signal.SIGKILL)
    return {"code": server.wait(process), "output": output.read_text()}


TRAIN = ["train", "waves.yaml"]
ONE_BY_ONE = ["threads=1", "horizontal.engine=sequential"]
COMMANDS: list[tuple[list[str], str | None]] = [
    ([*TRAIN, "--run-dir", "whole"], None),
    ([*TRAIN, "--run-dir", "killed"], "killed/checkpoints"),
    ([*TRAIN, "--run-dir", "killed", "--resume"], None),
    ([*TRAIN, "--run-dir", "apart", "--processes"], None),
    (["predict", "whole"], None),
    (["export", "whole"], None),
    (["report", "whole"], None),
    (["train", "halfway.yaml", *ONE_BY_ONE, "--run-dir", "halfway"], None),
    (["train", "own.yaml", "--run-dir", "own"], None),
    (["train", "own.yaml", "--run-dir", "own_apart", "--processes"], None),
    (["predict", "own"], None),
]
REFUSED = {
    "models.feature={kind: silent, options: {}}": r"Silent: forward gives torch.float32 \[\] instead of float32",
    "models.feature.kind=ashamed": "error: no more$",
    "wire.compressor=overflowing": "not finite: lower ",
    "models.feature.options.width=3": "models.feature.options: residual knows channels, not width",
    "models.feature.kind=stranger.residual:Residual": "Residual': cannot be built .TypeError.*channels",
    "data.dataset.kind=unsplit": "data.dataset.kind: unsplit has owners and does not split over them",
    "data.dataset.kind=misplaced": "the parties are not aligned: .*labels",
    "wire.compressor=counting": "compressor 'counting', tried on 15 values: must keep no state",
    "lightweighting.controller=halves": r"controller 'halves': must return {party: \(alpha, beta\)}, returned {",
    "wire.compressor=one_way": "compressor 'one_way': gives .*OneWay.* it must be a callable that makes",
    "lightweighting.controller=idle": "controller 'idle': cannot be built .TypeError.* it must be a callable",
    "horizontal.algorithm=nothing": "algorithm 'nothing' of package 'broken': .* does not fit; it must be a subclass",
    "horizontal.algorithm=gone": "algorithm 'gone' of package 'broken': cannot import 'broken:Gone' .AttributeError",
}
COMMANDS += [
    (
        ["train", "halfway.yaml" if "horizontal" in override else "waves.yaml", override, f"--run-dir=never{number}"],
        None,
    )
    for number, override in enumerate(REFUSED)
]


def summary(python: Path, run: str) -> dict[str, Any]:
    return json.loads((python.parents[2] / "source" / run / "summary.json").read_text())


def test_all_of_it_trains_alone_in_processes_and_after_a_kill(python: Path, results):
    done = results[: len(COMMANDS) - len(REFUSED)]
    assert [result["code"] for result in done] == [0, -9, *[0] * 9], json.dumps(done, indent=1)
    whole = summary(python, "whole")
    assert summary(python, "killed")["model_digest"] == whole["model_digest"]
    assert summary(python, "apart")["model_digest"] == whole["model_digest"]
    assert set(whole["parties"]) == {"harbour", "hill"}
    assert {party["alpha"] for party in whole["parties"].values()} == {0.5}
    assert whole["train_macs"] < whole["unpruned_train_macs"]
    assert whole["uplink_bytes"] < 0.6 * whole["dense_uplink_bytes"]  # a byte per value instead of four
    assert summary(python, "halfway")["rounds"] == 2


def test_a_model_in_a_file_needs_no_package(python: Path, results):
    whole = summary(python, "own")
    assert summary(python, "own_apart")["model_digest"] == whole["model_digest"]
    assert {party["alpha"] for party in whole["parties"].values()} == {0.5}
    assert len((python.parents[2] / "source" / "own" / "predictions.csv").read_text().splitlines()) == 41


def test_its_algorithm_has_the_same_bits_over_processes(python: Path, results):
    torchrun = [str(python), "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "vfl"]
    command = [*torchrun, "train", "halfway.yaml", *ONE_BY_ONE, "--run-dir", "halved"]
    done = subprocess.run(command, cwd=python.parents[2] / "source", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert summary(python, "halved")["model_digest"] == summary(python, "halfway")["model_digest"]


def test_what_was_trained_is_predicted_with_exported_and_reported(python: Path, results):
    folder = python.parents[2] / "source" / "whole"
    header, *rows = (folder / "predictions.csv").read_text().splitlines()
    assert "p_low,p_middle,p_high" in header
    assert len(rows) == 32
    card = json.loads((folder / "export" / "card.json").read_text())
    assert card["models"]["harbour"]["input"] == [1, 24]
    assert card["models"]["harbour"]["widths"]["stem"] == 4
    assert "harbour" in (folder / "report" / "report.md").read_text()


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=list(REFUSED))
def test_a_broken_component_ends_the_run_in_one_line(number: int, results):
    result = results[len(COMMANDS) - len(REFUSED) + number]
    assert result["code"] == 2, result
    errors = [line for line in result["output"].splitlines() if line.strip()]
    assert re.search(list(REFUSED.values())[number], errors[-1]), errors
    assert "Traceback" not in result["output"]
