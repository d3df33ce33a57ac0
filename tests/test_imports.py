"""The slow packages that a use imports: whoever starts a training or a party waits for each of them."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

SLOW = {
    *("cryptography", "fastapi", "google", "grpc", "jinja2", "matplotlib", "onnx", "onnxruntime", "pandas", "PIL"),
    *("polars", "prometheus_client", "pyarrow", "pydantic", "ray", "rich", "scipy", "sklearn", "tensorboard", "torch"),
    *("torchvision", "uvicorn"),
}
"""Packages that take a tenth of a second or more, with what they need."""
TRAINING = {"google", "pandas", "PIL", "pyarrow", "pydantic", "rich", "tensorboard", "torch"}
"""What a training of tables cannot do without; TensorBoard and what it needs write the curves, and Arrow
imports the pandas of those who have it."""
TRAINED = """
vfl.train("quickstart_tables", {"training.rounds": 1, "lightweighting.alpha": 0}, run_dir=sys.argv[1])
"""
PARTY = """
import vfl.commands.party
from vfl.parties.network.party.party_process import follow_party, run_party
"""
USES = {
    "a training": [
        ("import vfl", set[str]()),
        ("vfl.train; vfl.report; vfl.Run", TRAINING - {"PIL", "pandas"}),
        (TRAINED, TRAINING),
    ],
    "vfl.VerticalClassifier": [  # scikit-learn, which it is a part of, brings the next two
        (
            "import vfl; vfl.VerticalClassifier; vfl.VerticalRegressor",
            {"pandas", "pyarrow", "pydantic", "rich", "scipy", "sklearn"},
        )
    ],
    "a party": [(PARTY, {"cryptography", "grpc", "pydantic", "rich", "torch"})],
    "a command's help": [("import vfl.commands.train, vfl.commands.serve", {"rich"})],
}
"""Code, and the slow packages that are then allowed to be imported, by use: one after the other, in one process."""


@pytest.mark.parametrize("use", USES)
def test_only_what_a_use_needs_is_imported(use: str, tmp_path: Path) -> None:
    steps, told = USES[use], f"print('imported', *sorted({SLOW!r} & set(sys.modules)))"
    code = "\n".join(["import sys", *(f"{step}\n{told}" for step, _ in steps)])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    imported = [set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("imported")]
    for found, (step, allowed) in zip(imported, steps, strict=True):
        assert found <= allowed, step


REFUSED = [
    *("train quickstart_tables", "server quickstart_tables", "party quickstart_tables --party clinic"),
    *("plan quickstart_tables", "tune quickstart_tables", "align quickstart_tables", "compare quickstart_tables"),
    *("status quickstart_tables --party clinic", "split-data quickstart_tables --out parts", "sweep sweep_quickstart"),
    *("serve run", "update run", "audit run", "predict run", "prune run"),
]
"""Commands that take settings; ``run`` is a folder with a configuration."""
GONE = [
    *("train gone.yaml", "server gone.yaml", "party gone.yaml --party clinic", "plan gone.yaml", "tune gone.yaml"),
    *("align gone.yaml", "compare gone.yaml", "status gone.yaml --party clinic", "split-data gone.yaml --out parts"),
    *(
        "sweep gone.yaml",
        "serve gone",
        "update gone",
        "update run",
        "audit gone",
        "predict gone",
        "prune gone",
        "export gone",
        "report gone",
    ),
    *("status gone", "describe gone.csv", "audit run", "export run", "predict run", "predict run --processes"),
    *("predict run --listen gone.yaml", "compare run --listen gone.yaml", "report run", "serve run"),
]
"""Commands whose file, folder or checkpoint is not there."""


FORKED = """
import contextlib, io, json, os, sys
import rich.console, vfl.config.experiment, vfl.commands.train
from vfl.__main__ import main

for line in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    if os.fork() == 0:
        said, sys.argv = io.StringIO(), ["lvfl", *line]
        with contextlib.redirect_stderr(said):
            try:
                code = main()
            except SystemExit as done:
                code = done.code
        slow = sorted(SLOW & set(sys.modules))
        os.write(writing, json.dumps([code, said.getvalue(), slow]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        print("ended", answer.read())
    os.wait()
"""
"""Each command in a fork of a process that has imported no more than their entry and what all need."""


def refusals(lines: Iterable[str], folder: Path) -> dict[str, tuple[str, set[str]]]:
    """Return what each command says on stderr that is refused, and the slow packages that it has imported."""
    command = [sys.executable, "-c", f"SLOW = {SLOW!r}{FORKED}", json.dumps([line.split() for line in lines])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    ends = [json.loads(line.removeprefix("ended ")) for line in done.stdout.splitlines() if line.startswith("ended ")]
    assert [code for code, _, _ in ends] == [2] * len(ends)
    return {line: (said, {*modules}) for line, (_, said, modules) in zip(lines, ends, strict=True)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("base: quickstart_tables.yaml\n")
    return tmp_path


BAD_OPTIONS = {
    "audit run --rows 0": "--rows",
    "export run --out run": "--out",
    "predict run --reasons -1": "--reasons",
    "predict run --reasons --reasons-steps 0": "--reasons-steps",
    "prune run alpha=0.4 --out run": "--out",
    "sweep sweep_quickstart --jobs 0": "--jobs",
}
"""Commands, and the option that each refuses."""


def check_light(found: dict[str, tuple[str, set[str]]], named: Callable[[str], str]) -> None:
    """Assert that each command says one line with what is wrong, and imported nothing heavy before."""
    for line, (said, modules) in found.items():
        assert named(line) in said, line
        assert len(said.splitlines()) == 1, line
        assert modules <= {"pydantic", "rich"}, line


@pytest.fixture
def begun(folder: Path) -> Path:
    """The folder, with the checkpoint of a run."""
    (folder / "run" / "checkpoints" / "round_000001").mkdir(parents=True)
    (folder / "run" / "run_id").write_text("0123456789abcdef")
    return folder


def test_a_bad_option_is_refused_before_anything_heavy_is_imported(begun: Path) -> None:
    check_light(refusals(BAD_OPTIONS, begun), lambda line: f"{BAD_OPTIONS[line]}:")


def test_a_misspelt_key_is_refused_before_anything_heavy_is_imported(begun: Path) -> None:
    found = refusals([f"{line} training.roundz=3" for line in REFUSED], begun)
    check_light(found, lambda _: "training.roundz")


def test_what_is_not_there_is_told_before_anything_heavy_is_imported(folder: Path) -> None:
    check_light(refusals(GONE, folder), lambda _: "error: ")
