"""Train the remedies for a straggler, a seed at a time.

    python -m scripts.lab.controller.stragglers ROWS [--tune] [key=value ...]

stragglers.yaml beside this file declares the protocol. ROWS, a CSV file, gets a line per round; runs that it has are
not repeated. With --tune the candidates for the thin model's width are trained, with the seeds of tuning.
"""

import csv
import functools
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import vfl
from scripts.lab.frontier.rows import done_runs
from vfl.config.files import parse_overrides, read_yaml
from vfl.data.sources import image_folder

PROTOCOL = Path(__file__).with_name("stragglers.yaml")
SLOW = "party_2"
KEPT = ("accuracy/test", "simulated_time_s/total", f"alpha/{SLOW}", f"macs_per_sample/{SLOW}")


def train(base: str, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Train a method; return round, accuracy, seconds, and the slow party's ratio and size of every round."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        run = vfl.train(base, settings, run_dir=Path(folder) / "run")
        return [{"round": int(row["round"]), **{key: row[key] for key in KEPT}} for row in run.metrics]


def main(path: Path, arguments: Sequence[str]) -> None:
    """Train all methods that the rows lack, all of a seed before the next seed."""
    protocol: Any = read_yaml(PROTOCOL)
    tune = "--tune" in arguments
    further = parse_overrides([each for each in arguments if each != "--tune"])
    image_folder._decode = functools.cache(image_folder._decode)  # pyright: ignore[reportPrivateUsage]
    for seed in protocol["tuning" if tune else "seeds"]:
        for name, method in protocol["candidates" if tune else "methods"].items():
            if (name, seed) in done_runs(path):
                continue
            rows = train(protocol["base"], {**protocol["settings"], **method, **further, "seed": seed})
            write_rows(path, [{"study": "stragglers", "method": name, "seed": seed, **row} for row in rows])


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append the rows of a run; a new file begins with their names."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
