"""Train a protocol's methods, a seed at a time: python -m scripts.lab.frontier.rows NAME ROWS [key=value ...].

NAME.yaml beside this file declares the protocol. ROWS, a CSV file, gets a line per run; runs that it has are not
repeated. All runs are in one process, which decodes each image once.
"""

import csv
import functools
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import vfl
from vfl.config.files import parse_overrides, read_yaml
from vfl.data.sources import image_folder

Train = Callable[[str, Mapping[str, Any]], dict[str, Any]]
"""Trains a shipped experiment with other settings, and returns what a row keeps."""
KEPT = ("test_accuracy", "train_macs", "unpruned_train_macs", "uplink_bytes", "downlink_bytes", "wall_time_s")


def train(base: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train a method; return its accuracy, costs, and the training loss of its last round."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        run = vfl.train(base, settings, run_dir=Path(folder) / "run")
        return {**{key: run.summary[key] for key in KEPT}, "last_loss": run.metrics[-1]["loss/train"]}


def done_runs(path: Path) -> set[tuple[str, int]]:
    """Return method and seed of the runs that a file of rows has."""
    if not path.exists():
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        return {(row["method"], int(row["seed"])) for row in csv.DictReader(file)}


def run_protocol(protocol: Any, path: Path, train_one: Callable[[Any, int], Mapping[str, Any]]) -> None:
    """Add a row for each method and seed that a file of rows lacks, all methods of a seed before the next seed."""
    for seed in protocol["seeds"]:
        for name, method in protocol["methods"].items():
            if (name, seed) in done_runs(path):
                continue
            row = {"method": name, "seed": seed, **train_one(method, seed)}
            print(row, flush=True)
            new = not path.exists()
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, [*row], lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerow(row)


def main(declared: Path, path: Path, overrides: Sequence[str], train: Train = train) -> None:
    """Train all methods that a file declares and the rows lack."""
    protocol: Any = read_yaml(declared)
    further = parse_overrides(overrides)
    image_folder._decode = functools.cache(image_folder._decode)  # pyright: ignore[reportPrivateUsage]

    def train_one(method: Mapping[str, Any], seed: int) -> dict[str, Any]:
        return train(protocol["base"], {**protocol["settings"], **method, **further, "seed": seed})

    run_protocol(protocol, path, train_one)


if __name__ == "__main__":
    main(Path(__file__).with_name(f"{sys.argv[1]}.yaml"), Path(sys.argv[2]), sys.argv[3:])
