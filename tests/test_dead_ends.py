"""Slips on the command line and wrong folders: each is answered by the one line that leads on."""

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from refusals import refused, refuses
from tiny_training import Ended

from vfl import console
from vfl.__main__ import main
from vfl.base.errors import PeerLost
from vfl.config import load_config, parse_config
from vfl.config.check_settings import OTHER_WORDS, setting_named
from vfl.config.experiment import ExperimentConfig
from vfl.console import ShowConsole
from vfl.data.sources import published
from vfl.data.sources.image_folder import load_image_folder
from vfl.reports.runs import load_subject
from vfl.runs.atomic import write_atomically
from vfl.runs.loop import TrainingLoop
from vfl.runs.run_folder import check_run, read_manifest
from vfl.runs.stored_run import Run


@pytest.fixture
def told(call: Callable[..., Ended]) -> Callable[..., str]:
    """The one line with which a command ends."""

    def line(*arguments: object) -> str:
        code, _, error = call("lvfl", *arguments)
        assert code == 2, error
        assert error.count("\n") == 1
        return error

    return line


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("trian", "unknown 'trian'; did you mean 'train'?"),
        ("certs isue", "unknown 'isue'; did you mean 'issue'?"),
        ("train quickstart --rounds 3", "write training.rounds=3;"),
        ("sweep sweep_quickstart --lr 0.1", "write training.optimizer.learning_rate=0.1;"),
        ("train quickstart --run-dirs x", "did you mean '--run-dir'?"),
        ("train quickstart --resume runs/old", "CONFIG: lvfl train --resume runs/old"),
        ("train quickstart.yml", "did you mean 'quickstart'?"),
        ("train quickstart training.optimizer.lr=1", "did you mean 'training.optimizer.learning_rate'?"),
        ("train quickstart early_stopping=3", "did you mean 'training.patience'?"),
        ("train quickstart training.gradient_clip=3", "did you mean 'training.optimizer.clip_gradient'?"),
        ("train quickstart training.loss=mse", "training.loss: must be cross_entropy, "),
        ("train quickstart training.loss.kind=mse", "training.loss: must be cross_entropy, squared, "),
        ("train quickstart lightweighting.alpha=60%", "lightweighting.alpha: '60%' is no number; write 0.6"),
        ('train quickstart lightweighting.alpha={"party_1":"60%"}', "; write 0.6"),
        ("train quickstart training.party_dropout=2.5%", "training.party_dropout: '2.5%' is no number; write 0.025"),
    ],
)
def test_a_slip_is_answered_by_what_was_meant(told, line: str, answer: str):
    assert answer in told(*line.split())


@pytest.mark.parametrize(("given", "answer"), [("nosuch", ""), ("runs/mime", "; did you mean 'runs/mine'?")])
def test_a_run_to_resume_that_is_not_there_is_answered_by_runs_alone(told, monkeypatch, tmp_path, given, answer):
    monkeypatch.chdir(tmp_path)
    if answer:
        Path("runs/mine").mkdir(parents=True)
        Path("runs/mine/config.yaml").write_text("base: quickstart\n")
    line = told("train", "--resume", given)
    assert line == f"error: --resume: {given} is no run and no experiment{answer}; name a run's folder\n"


@pytest.mark.parametrize(
    ("command", "kind", "answer"),
    [
        *((name, "table.csv", "a table, which lvfl describe takes") for name in ("train", "sweep", "plan", "compare")),
        *((name, "swept.yaml", "is a sweep, not one experiment; use lvfl sweep") for name in ("train", "compare")),
        *((name, "one.yaml", "it holds settings, which lvfl train") for name in ("report", "predict", "status")),
        ("describe", "one.yaml", "it holds settings, which lvfl train"),
        ("describe", "quickstart", "it holds settings, which lvfl train"),
        ("describe", ".", ".: is a folder; name one table"),
        ("report", "begun", "begun: is a run that has not finished; go on with lvfl train --resume begun"),
        *((name, "sweep", "it is a sweep's folder, which lvfl report takes") for name in ("train", "predict")),
        ("predict", "table.csv", "a table, which lvfl describe takes"),
    ],
)
def test_a_file_of_another_kind_is_told_its_command(told, monkeypatch, tmp_path: Path, command, kind, answer):
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("id,label\n1,0\n")
    Path("one.yaml").write_text("base: quickstart\n")
    Path("swept.yaml").write_text("name: two\nbase: quickstart\ngrid: {seed: [1, 2]}\n")
    Path("sweep").mkdir()
    Path("sweep/sweep.json").write_text(json.dumps({}))
    Path("begun").mkdir()
    Path("begun/config.yaml").write_text("base: quickstart\n")
    assert answer in told(command, kind)


def test_a_file_to_write_in_no_folder_is_told_before_predicting(told, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    Path("begun").mkdir()
    Path("begun/config.yaml").write_text("base: quickstart\n")
    line = told("predict", "begun", "--out", "nowhere/scores.csv")
    assert line == "error: --out: there is no folder nowhere; make it, or name another file\n"


def test_a_file_whose_name_ends_otherwise_is_the_one_beside(tmp_path: Path):
    (tmp_path / "own.yaml").write_text("base: quickstart\n")
    refuses("own.yml", lambda: load_config(tmp_path / "own.yml"), "own.yaml")


@pytest.mark.parametrize("address", ["[::1]:8080", "[2001:db8::7]:443", "127.0.0.1:80", "host.example:50051"])
def test_an_address_of_either_kind_is_a_value(address: str):
    assert load_config(Path("quickstart"), [f"network.server={address}"]).network.server == address


def test_other_words_lead_to_settings():
    assert [setting_named(word) for word in OTHER_WORDS.values()] == [*OTHER_WORDS.values()]
    assert not {*OTHER_WORDS} & {*ExperimentConfig.model_fields}


@pytest.mark.release
def test_a_double_interrupt_before_the_first_checkpoint_says_that_nothing_is_saved(monkeypatch, capsys, tmp_path):
    """A run begun so is resumed from its first round, and says so."""

    def interrupted(loop: TrainingLoop) -> None:
        raise KeyboardInterrupt

    folder = str(tmp_path / "run")

    def train(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", ["lvfl", "train", "quickstart_tables", "--run-dir", folder, *more])
        return main()

    with monkeypatch.context() as patched:
        patched.setattr(TrainingLoop, "run", interrupted)
        assert train() == 130
        assert capsys.readouterr().err == "interrupted before the first checkpoint: nothing was saved\n"
        assert train("--resume") == 130
    assert "no checkpoint is saved; begins with round 1" in capsys.readouterr().out


@pytest.mark.parametrize(("word", "command"), [("validate", "status"), ("check", "status"), ("evaluate", "predict")])
def test_a_command_of_other_programs_is_answered_by_what_does_it(told, word: str, command: str):
    assert f"did you mean '{command}'?" in told(word, "server.yaml")


def test_the_last_line_of_a_log_has_time_and_level(told, monkeypatch, capsys, tmp_path: Path):
    """An error that ends a running process; bad input, which ends it at the start, has them in JSON only."""
    own = tmp_path / "own.yaml"
    own.write_text("base: quickstart\n")
    assert told("server", own).startswith("error: ")
    entry = json.loads(told("server", own, "--log", "json"))
    assert (entry["level"], bool(entry["time"])) == ("error", True)

    def lose(_arguments: argparse.Namespace, _console: object) -> int:
        raise PeerLost("bank is lost")

    monkeypatch.setattr("sys.argv", ["lvfl"])
    assert console.command(None, lambda parser: parser.add_log(console.TEXT))(lose)() == 3
    time, level, message = capsys.readouterr().err.split(" ", 2)
    assert datetime.fromisoformat(time).tzinfo is not None
    assert (level, message) == ("error:", "bank is lost\n")


def folders(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).mkdir(parents=True)
    return path


def written(path: Path, name: str, text: str) -> Path:
    (path / name).write_text(text)
    return path


def of_summary(path: Path) -> object:
    return Run(written(path, "config.yaml", "name: any")).summary


def check_for_run(path: Path) -> None:
    check_run(path, parse_config({"name": "any"}), resume=True)


@pytest.mark.parametrize(
    ("make", "read", "said"),
    [
        (lambda tmp: written(tmp, "summary.json", "{}"), of_summary, ("summary.json", "writes")),
        (lambda tmp: written(tmp, "summary.json", "[1]"), of_summary, ("summary.json", "writes")),
        (lambda tmp: written(tmp, "summary.json", "{"), of_summary, ("summary.json", "read")),
        (lambda tmp: written(tmp, "sweep.json", "5"), load_subject, ("sweep.json", "'name'")),
        (lambda tmp: written(tmp, "sweep.json", "["), read_manifest, ("sweep.json", "read")),
        (lambda tmp: folders(tmp, "empty") / "empty", load_subject, ("empty", "finished")),
        (lambda tmp: folders(tmp, "a/train", "a/test") / "a/train", load_image_folder, ("data.dataset.root", "that")),
        (lambda tmp: folders(tmp, "a/train", "a/test"), load_image_folder, ("data.dataset.root", "that")),
        (lambda tmp: folders(tmp, "b") / "b", load_image_folder, ("data.dataset.root", "b/train")),
        (lambda tmp: written(tmp, "run", "") / "run", check_for_run, ("--run-dir", "folder")),
    ],
)  # fmt: skip
def test_a_wrong_folder_is_named_with_the_fix(
    tmp_path: Path, make: Callable[[Path], Path], read: Callable[..., object], said: tuple[str, ...]
):
    arguments = (None,) if read is load_image_folder else ()
    with refused(*said):
        read(make(tmp_path), *arguments)


def test_what_cannot_be_written_is_named_by_its_own_name(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=re.escape(f"'{tmp_path / 'nowhere' / 'a.csv'}'")):
        write_atomically(tmp_path / "nowhere" / "a.csv", "content")


def test_a_failed_download_leaves_no_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(kind: str, root: Path, *, training: bool) -> None:
        (root / "MNIST" / "raw").mkdir(parents=True)
        raise OSError("no network")

    monkeypatch.setattr(published, "_open", fail)
    (tmp_path / "kept").mkdir()
    for root in (tmp_path / "new" / "data", tmp_path / "kept"):
        with pytest.warns(UserWarning, match="downloading"), pytest.raises(ValueError, match="no intact MNIST"):
            published.load_published("mnist", root, None)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [Path("kept")]


def test_a_full_standard_output_is_said_once_and_the_work_goes_on(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    before = os.dup(1)
    try:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True))
        console = ShowConsole()
        for _ in range(3):
            console.print("a line")
    finally:
        os.dup2(before, 1)
        os.close(before)
    error = capfd.readouterr().err
    assert error.startswith("warning: standard output cannot be written (No space left on device)")
    assert error.count("\n") == 1
