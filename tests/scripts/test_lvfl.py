"""The command ``lvfl``: what it finds, and what it says where it finds nothing."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from vfl.config import ConfigError, load_config
from vfl.config.shipped import find_config, shipped_folder
from vfl.sweeps.sweep_plan import load_sweep

ROOT = Path(__file__).parents[2]
command = import_module("vfl.__main__")
NAMES = [str(path.relative_to(ROOT / "configs").with_suffix("")) for path in (ROOT / "configs").rglob("*.yaml")]
NO_COMMANDS = {"__init__", "__main__", "same_bits"}
"""same_bits compares two checkouts."""


def test_every_script_is_a_command():
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")} - NO_COMMANDS
    assert {name.replace("-", "_") for name in command.COMMANDS} == scripts


def test_an_unknown_command_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["lvfl", "trian"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: argument COMMAND: unknown 'trian'; did you mean 'train'?")
    assert said.endswith("; see lvfl --help\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_configuration_is_found_by_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert find_config(Path(name)).samefile(ROOT / "configs" / f"{name}.yaml")
    if Path(name).name.startswith(("sweep_", "search_")):
        assert load_sweep(Path(name)).name == name
    else:
        assert load_config(Path(name)).name


def test_a_file_comes_before_a_shipped_one_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("quickstart").write_text("name: own\n")
    assert load_config(Path("quickstart")).name == "own"


def test_a_base_is_beside_its_file_or_shipped(tmp_path: Path):
    (tmp_path / "own.yaml").write_text("base: quickstart\nname: own\n")
    assert load_config(tmp_path / "own.yaml").training == load_config(Path("quickstart")).training
    (tmp_path / "quickstart").write_text("name: beside\nseed: 7\n")
    assert load_config(tmp_path / "own.yaml").seed == 7


def test_a_name_that_is_neither_is_one_line_with_the_nearest():
    with pytest.raises(ConfigError, match=r"quickstrat: no file, no run and no shipped .*; did you mean 'quick"):
        find_config(Path("quickstrat"))


def test_a_run_that_is_not_there_is_one_line_with_those_that_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/mine-2").mkdir(parents=True)
    Path("runs/mine-2/config.yaml").touch()
    with pytest.raises(ConfigError, match=r"^zzz: no file, no run and .*; known: .*, runs/mine-2$"):
        find_config(Path("zzz"))
    with pytest.raises(ConfigError, match=r"; did you mean 'runs/mine-2'\?$"):
        find_config(Path("runs/mine-3"))


def test_shipped_configurations_are_those_of_the_checkout():
    assert shipped_folder().samefile(ROOT / "configs")
