"""Every block of commands of docs/tutorial.md, in its order and in one folder, at a size of seconds."""

import csv
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
JOURNEYS = {
    part.partition("\n")[0]: re.findall(r"^ *lvfl (.*)$", part, re.MULTILINE)
    for part in (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").split("\n## ")[1:]
}
COMMANDS = import_module("vfl.__main__")
SMALL = [
    *(
        "threads=1",
        "data.dataset.kind=digits",
        "data.dataset.root=null",
        "data.train_samples=32",
        "data.test_samples=20",
    ),
    *("training.batch_size=16", "training.rounds=2", "models.feature={kind: cnn, width: 0.1, embedding_size: 8}"),
    *("precision=float32", "channels_last=false"),
]
"""Settings in the place of CIFAR-10 and VGG16."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An empty present folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["lvfl", *words])
    assert COMMANDS.main() == 0, words


def test_the_journey_with_images(folder: Path, monkeypatch: pytest.MonkeyPatch):
    for line in JOURNEYS["CIFAR-10 quadrants"]:
        words = shlex.split(line.replace("training.rounds=22", "training.rounds=3"))
        if words[0] == "sweep":
            grid = "{lightweighting.alpha: [0.0, 0.5], lightweighting.beta: [0.0], seed: [0, 1]}"
            (folder / "small.yaml").write_text(f"name: sweep_cifar10_small\nbase: cifar10_small\ngrid: {grid}\n")
            words = ["sweep", "small.yaml", *words[2:], *SMALL]
        elif words[0] in ("train", "plan") and "--resume" not in words:
            words += SMALL
        run(monkeypatch, words)
    assert sorted(path.name for path in (folder / "runs").glob("*/summary.json")) == ["summary.json"] * 4
    assert (folder / "runs/four/report.html").stat().st_size > 10_000
    assert (folder / "runs/sweep_cifar10_small/report/report.html").exists()


def test_the_journey_with_two_files(folder: Path, monkeypatch: pytest.MonkeyPatch):
    for prefix, rows in {"": range(240), "new_": range(300, 340)}.items():
        write_owners(folder, prefix, rows)
    for line in JOURNEYS["Two files"]:
        words = shlex.split(line)
        small = ["threads=1", "training.rounds=2"] if words[0] in ("compare", "train") else []
        run(monkeypatch, words + small)
    assert len((folder / "scores.csv").read_text().splitlines()) == 1 + 40
    assert (folder / "runs/late/export/card.md").exists()


def write_owners(folder: Path, prefix: str, rows: range) -> None:
    """Write the tables of the bank, with the label unless they are new, and of the insurer."""
    for owner, names in {"bank": ("income", "debt"), "insurer": ("claims", "age")}.items():
        labelled = owner == "bank" and not prefix
        with (folder / f"{prefix}{owner}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["customer", *names, *(["late"] if labelled else [])])
            for row in rows:
                first, second = row * 7919 % 101, row * 104729 % 89
                writer.writerow(
                    [f"c{row}", first, second, *(["yes" if first + row % 7 * 20 > 110 else "no"] if labelled else [])]
                )
