"""Two ways to the same bits: resumed and uninterrupted, replayed heads and those that are sent."""

from typing import Any

import pytest
from shorthand import TWO, check_resumed, digest, release, train_rounds

FALLING = {"alpha": {1: 0.2, 3: 0.5}, "beta": 0.5, "error_feedback": True}
PRUNED = {"alpha": {1: 0.3}, "beta": {0: 0.4, 2: 0.7}, "error_feedback": True}
QUANTISED = {"bits": 4, "gradients": {"beta": 0.5, "bits": 8, "error_feedback": True}}
MEET_LATER = {"local_rounds": 2, "auxiliary": 0.5, "local_iterations": 2, "party_dropout": 0.2}
HALF_FIRST = {"resolution": {0: 0.5, 2: 1.0}, "alpha": {1: 0.3, 3: 0.5}, "beta": 0.3}
FAST = {"macs_per_s": 4e9, "uplink_bytes_per_s": 1e6, "downlink_bytes_per_s": 2e6, "latency_s": 0.01}
MACHINES = {"parties": {"all": FAST}}

RESUMED: dict[str, tuple[int, dict[str, Any]]] = {
    f"{labels} labels after {split}": (
        split,
        {
            "training": {"labels": labels, "local_iterations": 2},
            "lightweighting": FALLING,
            "channels_last": split == 2,
            "wire": QUANTISED if split == 2 else {},
        },
    )
    for labels in ("shared", "server")
    for split in (1, 2, 3)
}
RESUMED |= {
    f"local rounds, {sync}, after {split}": (
        split,
        {"training": MEET_LATER | {"head_sync": sync}, "lightweighting": {"alpha": {1: 0.3, 3: 0.5}, "beta": 0.4}},
    )
    for sync in ("replay", "broadcast")
    for split in (1, 2, 3)
}
RESUMED |= {
    f"own classifiers, {labels}": (
        1,
        {
            "training": {"labels": labels, "auxiliary": 1.0, "staleness": 1, "local_iterations": 2},
            "lightweighting": PRUNED,
            "wire": {"bits": 8},
        },
    )
    for labels in ("shared", "server")
}
RESUMED |= {
    f"smaller images that move, after {split}": (
        split,
        {
            "data": TWO | {"augmentation": {"shift": 1}},
            "training": {"staleness": staleness, "local_iterations": 2, "steps_per_round": 4},
            "lightweighting": HALF_FIRST,
        },
    )
    for split, staleness in ((1, 1), (2, 0), (3, 1))
}
REFIT = {"alpha": {1: 0.3, 3: 0.6}, "beta": 0.3, "pruning": {"refit": True}}
RESUMED |= {
    f"refitted, after {split}": (split, {"training": {"staleness": 1, "local_iterations": 2}, "lightweighting": REFIT})
    for split in (1, 2)
}
NOISE = {side: {"kind": "gaussian", "strength": each} for side, each in {"gradients": 0.5, "embeddings": 0.2}.items()}
ALONE = {"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8, "batch_norm": False}, "head": {"hidden": [16]}}
RESUMED |= {
    "defended by noise": (2, {"training": {"labels": "server"}, "privacy": NOISE, "models": ALONE}),
    "defended by max norm": (2, {"training": {"labels": "server"}, "privacy": {"gradients": "max_norm"}}),
    "defended by distance correlation": (2, {"privacy": {"embeddings": "distance_correlation"}}),
}
RESUMED["virtual clock"] = (1, {"simulation": MACHINES})
OF_RELEASE = {
    *(f"{labels} labels after {split}" for labels in ("shared", "server") for split in (1, 3)),
    *(f"local rounds, {sync}, after {split}" for sync in ("replay", "broadcast") for split in (1, 3)),
    *(f"smaller images that move, after {split}" for split in (2, 3)),
    *(f"defended by {by}" for by in ("noise", "max norm", "distance correlation")),
}


@pytest.mark.parametrize("case", [release(case) if case in OF_RELEASE else case for case in RESUMED])
def test_resumed_equals_uninterrupted(build, case: str):
    split, sections = RESUMED[case]
    check_resumed(build, split, 4, **{"data": TWO} | sections)


REPLAYED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one iteration": ({"local_iterations": 1}, {"lightweighting": PRUNED | {"error_feedback": False}}),
    "three iterations": ({"local_iterations": 3}, {"lightweighting": PRUNED}),
    "bfloat16": ({"local_iterations": 3}, {"lightweighting": PRUNED, "wire": {"values": "bfloat16"}}),
    "absent rows": ({"local_iterations": 2, "party_dropout": 0.3}, {"lightweighting": PRUNED}),
    "own classifiers": (
        {"auxiliary": 0.5, "local_iterations": 3, "party_dropout": 0.3},
        {"lightweighting": {"beta": 0.4}},
    ),
}


@pytest.mark.parametrize(
    "case", [release(case) if case in ("one iteration", "bfloat16") else case for case in REPLAYED]
)
def test_replay_and_broadcast_give_equal_bits(build, case: str):
    training, sections = REPLAYED[case]
    digests = set()
    for head_sync in ("replay", "broadcast"):
        server = build(data=TWO, training=training | {"head_sync": head_sync}, **sections)
        drifts = [metrics.get("head_drift/party_1", 0.0) for metrics in train_rounds(server, 3)]
        assert drifts == [0.0] * 3
        digests.add(digest(server))
    assert len(digests) == 1
