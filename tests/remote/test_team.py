"""A party of two processes under torchrun computes what one does, to rounding, and nobody else notices."""

import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vfl.runs.checkpoint import CheckpointStore

TEAM = "party_2"
FURTHER = f"{TEAM}.1"
# Batches of 15 make unequal parts. Few layers: deeper ones let rounding errors grow tenfold an exchange
# (tests/vertical/test_team.py computes with them in float64).
SECTIONS: dict[str, Any] = {
    "training": {"batch_size": 15, "labels": "server", "staleness": 1, "optimizer": {"learning_rate": 0.01}},
    "models": {"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8, "batch_norm": True}},
    "lightweighting": {"alpha": {1: 0.2, 2: 0.5}, "beta": 0.0},
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def start_team(federation: Any, *strikes: Any) -> None:
    """Start both processes of a party as torchrun does."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    argv = [str(Path(__file__).parents[2] / "scripts/party.py"), str(federation.folder / f"{TEAM}.yaml")]
    argv += ["--party", TEAM, "--run-dir", str(federation.folder / TEAM)]
    federation.codes.setdefault(FURTHER, [])
    for rank, name in enumerate((TEAM, FURTHER)):
        federation.environment = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        federation.launch(name, argv, *(strikes if name == TEAM else ()))
    federation.environment = {}


def tensors(state: Any, path: str = "") -> dict[str, Tensor]:
    """Return all floating point tensors of a state by their places."""
    if isinstance(state, Tensor):
        return {path: state} if state.is_floating_point() else {}
    entries = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    return {place: found for key, value in entries for place, found in tensors(value, f"{path}/{key}").items()}


def weights(federation: Any, name: str) -> dict[str, Tensor]:
    state = CheckpointStore(federation.folder / name / "checkpoints").load(3)["party"]
    return {**tensors(state["model"], "model"), **tensors(state["momentum"], "momentum")}


@pytest.mark.release
def test_two_processes_of_a_party_equal_one_also_after_a_kill(federate):
    alone, team = federate(**SECTIONS), federate(**SECTIONS)
    alone.run()
    for name in team.names:
        if name != TEAM:
            team.start(name)
    start_team(team, ("gets its update", 6, "SIGKILL"))
    assert team.wait(TEAM) == -signal.SIGKILL
    assert team.wait(FURTHER) == 3, team.logs()
    assert "another worker is gone" in team.log(FURTHER)
    start_team(team)
    assert team.wait(FURTHER) == 0, team.logs()
    team.finish()
    assert team.codes == {**{name: [0] for name in team.names}, TEAM: [-9, 0], FURTHER: [3, 0]}, team.logs()

    ours, theirs = team.outcome(), alone.outcome()
    counted = ("alpha", "beta", "macs_per_sample", "parameters", "downlink_bytes")
    for mine, reference in zip(ours["rows"], theirs["rows"], strict=True):
        for tag in counted:
            assert mine[f"{tag}/{TEAM}"] == reference[f"{tag}/{TEAM}"]
        # A report writes psi in more or fewer digits.
        assert mine[f"uplink_bytes/{TEAM}"] == pytest.approx(reference[f"uplink_bytes/{TEAM}"], abs=8)
        assert mine[f"psi/{TEAM}"] == pytest.approx(reference[f"psi/{TEAM}"], rel=1e-3)
        assert mine["loss/train"] == pytest.approx(reference["loss/train"], rel=1e-4)
    assert ours["summary"]["train_macs"] == theirs["summary"]["train_macs"]
    for name in team.names[1:]:
        mine, reference = weights(team, name), weights(alone, name)
        assert mine.keys() == reference.keys()
        for place, tensor in mine.items():
            torch.testing.assert_close(tensor, reference[place], rtol=1e-3, atol=1e-4, msg=f"{name}, {place}")
    assert (team.folder / TEAM / "metrics.jsonl").exists()
