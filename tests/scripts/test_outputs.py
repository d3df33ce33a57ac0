"""``--out`` writes to what it names: links stay links, pipes and devices stay what they are."""

import os
import runpy
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from refusals import refuses
from shorthand import at_every_run, release
from tiny_training import TINY

from vfl.console import STDOUT
from vfl.parties.network.tls.lists import deny
from vfl.runs.atomic import stream_of, write_atomically, write_output, write_together

SCRIPTS = Path(__file__).parents[2] / "scripts"
WRITERS = {"predict": b"id,label,", "describe": b"file:", "report": b"<!doctype html>"}
"""Commands whose ``--out`` is one file, each with what occurs in it."""


@pytest.fixture
def say(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], finished: Path, tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Call a command of one file with this ``--out``; return its code, output and errors."""
    table = tmp_path / "table.csv"
    table.write_text("id,size\n1,2.5\n2,3.5\n3,1.5\n")

    def call(command: str, out: Path, read: Path | None = None, *settings: str) -> tuple[int, str, str]:
        read = read or (table if command == "describe" else finished)
        monkeypatch.setattr(sys, "argv", [command, str(read), *settings, "--out", str(out)])
        code = runpy.run_path(str(SCRIPTS / f"{command}.py"))["main"]()
        sys.stdout.flush()
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A device that is always full. Root must not lose the machine's own if a test fails."""
    if os.geteuid() != 0:
        return Path("/dev/full")
    device = tmp_path / "full.html"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        device.open("wb").close()
    except OSError as error:
        pytest.skip(f"no devices can be made here: {error}")
    return device


@pytest.fixture
def pipe(tmp_path: Path) -> tuple[Path, Callable[[], bytes]]:
    """A named pipe, and what a reader gets from it."""
    path, got = tmp_path / "pipe", list[bytes]()
    os.mkfifo(path)
    # Non-blocking to open, so that a command that never opens the pipe does not leave the reader behind.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    done = threading.Event()

    def read() -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            while True:
                ended = done.is_set()
                got.append(file.read() or b"")
                if ended:
                    return
                done.wait(0.01)

    reader = threading.Thread(target=read)
    reader.start()

    def content() -> bytes:
        done.set()
        reader.join()
        return b"".join(got)

    return path, content


@pytest.mark.parametrize("command", at_every_run(WRITERS, "predict", "describe"))
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_followed_and_stays(command, exists, say, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "out.html", tmp_path / "out.html"
    if exists and command != "describe":  # which writes over nothing
        target.write_text("old")
    link.symlink_to("elsewhere/out.html")
    assert say(command, link)[0] == 0
    assert link.readlink() == Path("elsewhere/out.html")
    assert WRITERS[command] in target.read_bytes()
    assert sorted(path.name for path in target.parent.iterdir()) == ["out.html"]


FOLDERS = {
    "report": ("report.md",),
    "export": ("card.md",),
    "prune": ("summary.json", "alpha=0.7"),
    "split_data": ("labels.safetensors",),
    "sweep": ("sweep.csv",),
}
"""Commands whose ``--out`` is a folder: a file in it, and settings."""


@pytest.mark.parametrize("command", [release("export"), "prune", "report", "split_data", release("sweep")])
def test_a_link_to_a_folder_that_is_not_there_yet_is_followed(command, say, finished: Path, tmp_path: Path):
    if command == "export":
        pytest.importorskip("onnxscript")
    link, (name, *settings) = tmp_path / "link", FOLDERS[command]
    link.symlink_to("elsewhere")
    read = finished
    if command in ("split_data", "sweep"):
        read = tmp_path / "one.yaml"
        swept = {"name": "one", "base": "tiny.yaml", "grid": {"seed": [1]}}
        read.write_text(yaml.safe_dump(TINY if command == "split_data" else swept))
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    assert say(command, link, read, *settings)[0] == 0
    assert link.readlink() == Path("elsewhere")
    assert (tmp_path / "elsewhere" / name).is_file()


@pytest.mark.parametrize("command", WRITERS)
def test_a_pipe_gets_the_content_and_stays_a_pipe(command, say, pipe):
    path, content = pipe
    try:
        code = say(command, path)[0]
    finally:
        got = content()
    assert code == 0
    assert WRITERS[command] in got
    assert path.is_fifo()


@pytest.mark.parametrize("command", WRITERS)
def test_a_full_device_is_told_and_stays_a_device(command, say, full: Path):
    code, _, err = say(command, full)
    assert code != 0
    assert err.splitlines()[-1].startswith("error: ")
    assert str(full) in err
    assert full.is_char_device()


# Root could lose the machine's /dev/stdout, a link, where this fails; no name in /proc can be lost.
@pytest.mark.parametrize("name", ["/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("command", WRITERS)
def test_standard_output_gets_the_content_only(command, name, say):
    code, out, err = say(command, Path(name))
    assert code == 0
    assert WRITERS[command].decode() in out
    assert name in err
    assert name not in out


def test_the_names_of_standard_output_are_known():
    assert [stream_of(Path(name)) for name in (*STDOUT, "/dev/stderr", "/dev/null")] == [1, 1, 1, 2, None]


def test_standard_output_that_is_a_file_is_written_on_from_where_it_is(tmp_path: Path):
    """`lvfl predict ... --out /dev/stdout >> all.csv`: neither replaced nor cut."""
    path = tmp_path / "all.csv"
    path.write_text("before\n")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        write_output(Path(f"/dev/fd/{descriptor}"), "after\n")
        os.write(descriptor, b"last\n")
    finally:
        os.close(descriptor)
    assert path.read_text() == "before\nafter\nlast\n"


def test_a_revocation_reaches_the_list_behind_a_link(tmp_path: Path):
    shared = tmp_path / "shared.txt"
    shared.write_text("")
    (tmp_path / "deny.txt").symlink_to(shared)
    deny(tmp_path / "deny.txt", {"abc1": "party_1"})
    assert (tmp_path / "deny.txt").is_symlink()
    assert "abc1" in shared.read_text()


def test_no_file_takes_the_place_of_a_pipe_or_a_device(full: Path, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", full):
        with pytest.raises(OSError, match="no regular file"):
            write_atomically(path, "content")
    with pytest.raises(OSError, match="no regular file"):
        write_together(tmp_path, {"pipe": lambda partial: partial.write_text("content")}, overwrite=True)
    refuses("--deny", lambda: deny(tmp_path / "pipe", {"abc1": "party_1"}))
    assert (tmp_path / "pipe").is_fifo()
    assert full.is_char_device()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".partial")]
