"""Folders of runs as a training leaves them, without a training: numbers whose report can be worked out by hand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vfl.config import dump_config, parse_experiment

ROUNDS = 4
PARTIES = ("party_1", "party_2", "party_3", "party_4")


def vertical_rows(alpha: float, beta: float, final: float) -> list[dict[str, float]]:
    """Rounds of a run whose accuracy rises in equal steps to ``final``."""
    rows: list[dict[str, float]] = []
    for index in range(ROUNDS):
        row: dict[str, float] = {"round": index, "loss/train": 1.0, "accuracy/test": final * (index + 1) / ROUNDS}
        row |= {"savings/compute": alpha, "savings/communication": beta / 2}
        row |= {f"corollary1/sum_{name}": 4 * ratio * (index + 1) for name, ratio in (("alpha", alpha), ("beta", beta))}
        for party in PARTIES:
            row |= {f"alpha/{party}": alpha, f"beta/{party}": beta, f"train_time_s/{party}": 0.5}
            row |= {f"uplink_bytes/{party}": 100 * (1 - beta), f"downlink_bytes/{party}": 100.0}
            row |= {f"omega/{party}": beta**2, f"psi/{party}": alpha if index == 0 else 0.0}
        rows.append(row)
    return rows


def vertical_summary(alpha: float, beta: float, final: float) -> dict[str, Any]:
    up, down = 1600 * (1 - beta), 1600
    party = {"alpha": alpha, "beta": beta, "parameters": 1000, "macs_per_sample": 5000, "uplink_bytes": up / 4}
    party |= {"downlink_bytes": down / 4, "train_time_s": 2.0}
    return {
        "rounds": ROUNDS,
        "test_accuracy": final,
        "test_loss": 1.0,
        "wall_time_s": 3.0,
        "uplink_bytes": up,
        "downlink_bytes": down,
        "dense_uplink_bytes": 1600,
        "dense_downlink_bytes": 1600,
        "train_macs": 8000 * (1 - alpha),
        "unpruned_train_macs": 8000,
        "model_digest": "0",
        "parties": dict.fromkeys(PARTIES, party),
    }


def write_run(folder: Path, settings: Mapping[str, Any], rows: list[dict[str, float]], summary: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    config = parse_experiment({"name": "made", "training": {"rounds": ROUNDS}} | dict(settings))
    (folder / "config.yaml").write_text(dump_config(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def final_accuracy(alpha: float, beta: float, seed: int) -> float:
    return 0.9 - 0.1 * alpha - 0.02 * beta + 0.01 * seed
