"""Folders of runs as a training leaves them, without a training: numbers whose report can be worked out by hand."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from vfl.config import dump_config, parse_config

ROUNDS = 4
PARTIES = ("party_1", "party_2", "party_3", "party_4")
MakeRun = Callable[..., Path]


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
    config = parse_config({"name": "made", "training": {"rounds": ROUNDS}} | dict(settings))
    (folder / "config.yaml").write_text(dump_config(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def final_accuracy(alpha: float, beta: float, seed: int) -> float:
    return 0.9 - 0.1 * alpha - 0.02 * beta + 0.01 * seed


@pytest.fixture
def one_run(tmp_path: Path) -> Path:
    """A single vertical run."""
    return write_run(tmp_path / "one", {}, vertical_rows(0.2, 0.4, 0.8), vertical_summary(0.2, 0.4, 0.8))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of three by three ratios and two seeds, one run of which is not finished."""
    folder, runs = tmp_path / "sweep", {}
    for alpha in (0.0, 0.2, 0.6):
        for beta in (0.0, 0.4, 0.8):
            for seed in (0, 1):
                name = f"alpha{alpha:g}-beta{beta:g}-seed{seed}"
                runs[name] = {"lightweighting.alpha": alpha, "lightweighting.beta": beta, "seed": seed}
                final = final_accuracy(alpha, beta, seed)
                settings = {"seed": seed, "lightweighting": {"alpha": alpha, "beta": beta}}
                rows, summary = vertical_rows(alpha, beta, final), vertical_summary(alpha, beta, final)
                write_run(folder / "runs" / name, settings, rows, summary)
    runs["alpha0.9-seed0"] = {"lightweighting.alpha": 0.9, "seed": 0}
    (folder / "sweep.json").write_text(json.dumps({"name": "made_sweep", "threads": 1, "runs": runs}))
    return folder


@pytest.fixture
def horizontal_run(tmp_path: Path) -> Path:
    """A horizontal run of 20 clients, evaluated every second round."""
    rows: list[dict[str, float]] = []
    for index in range(ROUNDS):
        row: dict[str, float] = {"round": index, "loss/train": 1.0, "simulated_time_s/total": 2.0 * (index + 1)}
        row |= {"uplink_bytes/clients": 50.0, "downlink_bytes/clients": 60.0, "train_macs/clients": 1000.0}
        rows.append(row | ({"accuracy/test": 0.2 * (index + 1)} if index % 2 else {}))
    client = {"uplink_bytes": 10, "downlink_bytes": 12, "train_macs": 200, "train_time_s": 1.0}
    clients = {f"client_{number}": client | {"samples": number} for number in range(1, 21)}
    summary = vertical_summary(0.0, 0.0, 0.8) | {"simulated_time_s": 8.0, "parties": clients}
    return write_run(tmp_path / "horizontal", {"mode": "horizontal"}, rows, summary)
