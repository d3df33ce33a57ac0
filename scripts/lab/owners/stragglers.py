"""Train beside one slow party: python -m scripts.lab.owners.stragglers ROWS [key=value ...].

stragglers.yaml beside this file declares the protocol. A row has the accuracy after the last round, and the simulated
seconds until the target and in all; `seconds_to_target` is empty if the target was not reached.
"""

import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vfl
from scripts.lab.frontier.rows import main

TARGET = 0.43


def train(base: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train a method; return what its row keeps."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = vfl.train(base, settings, run_dir=Path(folder) / "run")
        rounds = run.metrics
        reached = [row["simulated_time_s/total"] for row in rounds if row["accuracy/test"] >= TARGET]
        return {
            "test_accuracy": rounds[-1]["accuracy/test"],
            "seconds_to_target": round(reached[0], 3) if reached else "",
            "seconds": round(rounds[-1]["simulated_time_s/total"], 3),
            "bytes": run.summary["uplink_bytes"] + run.summary["downlink_bytes"],
        }


if __name__ == "__main__":
    main(Path(__file__).with_suffix(".yaml"), Path(sys.argv[1]), sys.argv[2:], train)
