"""The command ``lvfl``: what it finds, and what it says where it finds nothing."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from refusals import refuses
from tiny_training import Ended

from vfl.config import load_config, load_experiment
from vfl.config.shipped import find_config, shipped_folder
from vfl.sweeps.sweep_plan import load_sweep

ROOT = Path(__file__).parents[2]
command = import_module("vfl.__main__")
NAMES = [str(path.relative_to(ROOT / "configs").with_suffix("")) for path in (ROOT / "configs").rglob("*.yaml")]
NO_COMMANDS = {"__init__", "__main__", "benchmark", "same_bits"}
"""Both need a checkout: same_bits compares two, benchmark finds the laboratory there."""


def test_every_script_is_a_command():
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")} - NO_COMMANDS
    assert {name.replace("-", "_") for name in command.COMMANDS} == scripts


def test_an_unknown_command_is_one_line(call: Callable[..., Ended]):
    code, _, said = call("lvfl", "trian")
    assert code == 2
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
        assert load_experiment(Path(name), {}).name


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
    refuses("quickstrat", lambda: find_config(Path("quickstrat")), "'quick")


def test_a_run_that_is_not_there_is_one_line_with_those_that_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/mine-2").mkdir(parents=True)
    Path("runs/mine-2/config.yaml").touch()
    refuses("zzz", lambda: find_config(Path("zzz")), "runs/mine-2")
    refuses("runs/mine-3", lambda: find_config(Path("runs/mine-3")), "'runs/mine-2'")


def test_shipped_configurations_are_those_of_the_checkout():
    assert shipped_folder().samefile(ROOT / "configs")


def test_help_shows_every_command_in_its_group(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["lvfl", "--help"])
    with pytest.raises(SystemExit):
        command.main()
    shown = capsys.readouterr().out
    for group, commands in command.GROUPS.items():
        part = shown.partition(f"\n{group}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in part.splitlines()] == [*commands]


def test_every_shipped_file_is_listed_with_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["lvfl", "list"])
    assert command.main() == 0
    files, _, kinds = capsys.readouterr().out.partition("feature models (models.feature.kind):\n")
    shown = [line.split(maxsplit=1) for line in files.splitlines() if line.startswith(" ")]
    assert kinds.strip()
    assert sorted(name for name, _ in shown) == sorted(NAMES)
    assert all(20 < len(summary) <= 100 and summary.endswith(".") for _, summary in shown), shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["predict", "run", "--serve", "server.yaml"],
            "--serve: was removed in 0.2.0; --listen CONFIG takes",
        ),
        (["compare", "run", "--serve=server.yaml"], "--serve: was removed in 0.2.0; --listen CONFIG takes"),
        (["server", "quickstart", "--log", "text"], "--log: unknown 'text'; known: plain, json"),
        (["train", "quickstart", "--resumee"], "did you mean '--resume'?"),
        (["certs", "isue", "keys", "bank"], "did you mean 'issue'?"),
        (["certs", "issue", "keys", "bank", "--ovrwrite"], "did you mean '--overwrite'?"),
        (["status", "run", "threads=2"], "--party: is missing"),
        (["status", "run", "--party", "bank", "--json"], "--json: goes with RUN"),
        (["--verison"], "did you mean '--version'?"),
    ],
)
def test_a_wrong_word_is_one_line_that_names_the_right_one(arguments: list[str], told: str, call: Callable[..., Ended]):
    code, _, said = call("lvfl", *arguments)
    assert code == 2
    assert told in said
    assert said.count("\n") == 1
