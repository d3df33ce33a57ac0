"""Commands: errors of one line in the words of each edge, logs, and one process at a time."""

import argparse
import copy
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from rich.console import Console

from vfl.base.errors import Argument, Choice, ConfigError, ConfigWarning, PeerLost, Words, in_words, use_words
from vfl.console import JSON, LOGS, PLAIN, TEXT, command, exit_code, numbers_table, print_table
from vfl.runs.run_folder import only_process_in

PRINTER = """
import sys, time
from pathlib import Path
from vfl.console import ShowConsole
console = ShowConsole()
console.print("first")
sys.stdin.readline()
for number in range(1000):
    console.print(f"line {number}")
Path(sys.argv[1]).write_text("done")
"""


WAITS = """
import os, sys
from vfl.console import exit_code
def run():
    assert "torch" not in sys.modules  # which reads them
    print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("OMP_WAIT_POLICY"))
    return 0
sys.exit(exit_code(run, print))
"""


@pytest.mark.parametrize(
    ("given", "told"),
    [({}, "2000 None"), ({"GOMP_SPINCOUNT": "7"}, "7 None"), ({"OMP_WAIT_POLICY": "active"}, "None active")],
)
def test_waiting_threads_of_a_command_leave_the_cores_unless_a_user_says_else(given: dict[str, str], told: str):
    others = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", WAITS], env=others | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == told


def test_a_reader_that_goes_away_does_not_end_the_program(tmp_path: Path):
    # As in: train.py ... | head -1
    child = subprocess.Popen(
        [sys.executable, "-c", PRINTER, str(tmp_path / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == b"first\n"
    child.stdout.close()
    child.stdin.write(b"\n")
    child.stdin.close()
    assert child.wait() == 0
    assert (tmp_path / "file").read_text() == "done"


def caused(error: Exception, by: OSError) -> Exception:
    error.__context__ = by  # as by "raise ... from None" while another is handled
    return error


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ValueError("field: wrong\n  and more"), 2, "error: field: wrong and more\n"),
        (FileExistsError(17, "File exists", "keys/ca.pem"), 2, "error: keys/ca.pem: File exists\n"),
        (OSError(28, "No space left on device"), 75, "error: [Errno 28] No space left on device\n"),
        (caused(ValueError("saved: nothing"), OSError(122, "Disk quota exceeded")), 75, "error: saved: nothing\n"),
        (caused(PeerLost("party_1 is lost"), OSError(98, "Address already in use")), 3, "error: party_1 is lost\n"),
        (MemoryError(), 75, "error: not enough memory: lower training.batch_size, or the sizes in data and models\n"),
        (KeyboardInterrupt(), 130, "interrupted; what was saved stays\n"),
    ],
)
def test_expected_errors_are_one_line(capsys: pytest.CaptureFixture[str], error: BaseException, code: int, text: str):
    def fail() -> int:
        raise error

    assert exit_code(fail, warn=print) == code
    assert capsys.readouterr().err == text


def test_a_log_has_time_and_level_in_every_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Also of what several lines show, and of warnings; the error at the end, on stderr, is bare but in JSON."""

    def run(_arguments: argparse.Namespace, console: Console) -> int:
        table = numbers_table("title", ["party", "MACs"])
        table.add_row("bank", "12")
        print_table(console, table)
        console.print("a [bold] name: \u00e4\nnext")
        with warnings.catch_warnings(action="always"):
            warnings.warn("odd", stacklevel=1)
        raise ConfigError("field: wrong")

    shown = {}
    for form in (PLAIN, TEXT, JSON):
        monkeypatch.setattr("sys.argv", ["lvfl", *(["--log", form] if form in LOGS else [])])
        assert command(None, lambda parser: parser.add_log(TEXT))(run)() == 2
        out, err = capsys.readouterr()
        shown[form] = [*out.splitlines(), *err.splitlines()]
    levels = ["info"] * (len(shown[JSON]) - 2) + ["warning", "error"]
    messages = [line.rstrip() for line in shown[PLAIN] if line.strip()]
    expected = [line.removeprefix(f"{level}: ") for line, level in zip(messages, levels, strict=True)]
    assert "a [bold] name: \u00e4" in expected
    assert shown[TEXT].pop() == shown[PLAIN][-1] == "error: field: wrong"
    parts = [re.fullmatch(r"\S+\+00:00 (\w+): (.*)", line) for line in shown[TEXT]]
    assert [part and part.groups() for part in parts] == [*zip(levels[:-1], expected[:-1], strict=True)]
    records = [json.loads(line) for line in shown[JSON]]
    assert [(record["level"], record["message"]) for record in records] == [*zip(levels, expected, strict=True)]


@pytest.mark.parametrize(
    ("error", "shown"),
    [(KeyError("bug"), KeyError), (RuntimeError("shapes do not fit"), RuntimeError), (SystemExit(0), RuntimeError)],
)
def test_a_fault_keeps_its_traceback_and_is_no_success(error: BaseException, shown: type[Exception]):
    def fail() -> int:
        raise error

    with pytest.raises(shown):
        exit_code(fail, warn=print)


@pytest.mark.parametrize(("entries", "code"), [(2**50, 75), (2**62, 2)])
def test_memory_that_pytorch_does_not_find_is_one_line(capsys: pytest.CaptureFixture[str], entries: int, code: int):
    def fail() -> int:
        return len(torch.empty(entries, dtype=torch.float64))

    assert exit_code(fail, warn=print) == code
    assert capsys.readouterr().err.startswith("error: not enough memory: lower training.batch_size")


def test_one_process_at_a_time_trains_in_a_folder(tmp_path: Path):
    with (
        only_process_in(tmp_path),
        pytest.raises(ConfigError, match="another process trains or serves"),
        only_process_in(tmp_path),
    ):
        pass
    with only_process_in(tmp_path):
        assert tmp_path.is_dir()


WITHOUT = Choice(Argument.WHEN_ABSENT, ("zeros", "mean"), "would predict without", "give its table")
PYTHON: Words = {Argument.TABLE: "samples", Argument.WHEN_ABSENT: "when_absent"}


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("data.file, row 3: is empty; fill it", ("data.file", "row 3", "is empty", "fill it")),
        ("seed: must be a number (got: x)", ("seed", "", "must be a number (got: x)", "")),
        ("seed: is\nmissing", ("seed", "", "is missing", "")),
        ("no place for runs; name one; or two", ("", "", "no place for runs", "name one; or two")),
    ],
)
def test_a_line_is_split_into_its_parts_and_stays_itself(line: str, parts: tuple[str, ...]):
    error = copy.copy(ConfigError(line))  # as pickle between the processes of a sweep
    assert (error.setting, error.place, error.reason, error.remedy) == parts
    assert str(error) == line.replace("\n", " ")


def test_each_edge_has_its_own_words_for_an_argument():
    lost = copy.copy(PeerLost("bank is absent", WITHOUT))
    assert str(lost) == "bank is absent; --when-absent zeros or mean would predict without"
    assert in_words(lost, PYTHON) == "bank is absent; when_absent='zeros' or 'mean' would predict without"
    assert in_words(lost, {}) == "bank is absent; give its table"
    assert in_words(ConfigError("--table: a: --table is a name"), PYTHON) == "samples: a: --table is a name"
    assert in_words(OSError("disk is full"), PYTHON) == "disk is full"


def test_python_gets_errors_and_warnings_in_its_words():
    with pytest.raises(ConfigError) as error, use_words(PYTHON):
        raise PeerLost("--table: is lost")
    assert error.value.setting == "samples"
    with pytest.warns(ConfigWarning) as caught, use_words(PYTHON):
        warnings.warn(ConfigWarning("--when-absent: zeros replace bank"), stacklevel=1)
    assert str(caught[0].message) == "when_absent: zeros replace bank"
    assert str(ConfigError("--table: is missing")) == "--table: is missing"
