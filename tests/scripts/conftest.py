"""The command lvfl train on a tiny experiment, and a finished run of it."""

import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from shorthand import as_before
from tiny_training import SCRIPT, TINY, Ended, Train


@pytest.fixture(scope="session")
def main() -> Callable[[], int]:
    return runpy.run_path(str(SCRIPT))["main"]


@pytest.fixture
def train(main, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Train:
    """Run the command in an empty working folder, which ``tiny.yaml`` lies beside."""
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(TINY))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("COLUMNS", "80")

    def run_main(*arguments: str | Path, config: Path = config) -> Ended:
        monkeypatch.setattr(sys, "argv", ["train.py", str(config), *map(str, arguments)])
        capsys.readouterr()
        code = main()
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return run_main


@pytest.fixture(scope="session")
def finished(main, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody may change."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, as_before():
        patch.setattr(sys, "argv", ["train.py", str(folder / "tiny.yaml"), "--run-dir", str(folder / "run")])
        assert main() == 0
    torch.set_num_threads(threads)
    return folder / "run"


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may damage."""
    return shutil.copytree(finished, tmp_path / "run")
