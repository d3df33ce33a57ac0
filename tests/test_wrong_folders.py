"""What a user names by mistake, or what something else has written into: a line that says what is wrong."""

import io
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import refused

from vfl.config import parse_config
from vfl.console import ShowConsole
from vfl.data.sources import published
from vfl.data.sources.image_folder import load_image_folder
from vfl.reports.runs import load_subject
from vfl.runs.atomic import write_atomically
from vfl.runs.run_folder import check_run, read_manifest
from vfl.runs.stored_run import Run


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
