"""Split training of tables equals joint training of the same model, whatever is predicted and by which optimizer."""

import copy

import pytest
from shorthand import assert_models, build_here, check_resumed, parties_of, train_rounds
from two_tables import ROWS, lay_tables

from scripts.lab.plain_training import JointTrainer
from vfl.config import parse_config
from vfl.core.presence import batch_rows


def experiment(folder, task, optimizer, class_weights=None, labels="server"):
    training = {"rounds": 5, "batch_size": 32, "labels": labels, "class_weights": class_weights, "optimizer": optimizer}
    own = {"task": task, "models": {"head": {"hidden": [8]}}, "training": training}
    return parse_config(lay_tables(folder, range(ROWS), own))


SGD = {"learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.01}
ADAM = {"kind": "adam", "learning_rate": 0.002, "weight_decay": 0.01}
ADAMW = {"kind": "adamw", "learning_rate": 0.002, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("task", "optimizer", "class_weights", "labels"),
    [
        ("classification", SGD, None, "server"),
        ("classification", ADAM, "balanced", "server"),
        ("classification", ADAMW, {"1": 3.0}, "shared"),
        ("regression", ADAMW, None, "server"),
        ("regression", SGD, None, "shared"),
    ],
)
def test_split_training_equals_joint_training(tmp_path, task, optimizer, class_weights, labels):
    config = experiment(tmp_path, task, optimizer, class_weights, labels)
    server = build_here(config).server
    parties = parties_of(server)
    for party in parties:
        party.model.train()
    models = [copy.deepcopy(party.model) for party in parties]
    head, task_of_server = copy.deepcopy(server.trainer.head), server.trainer.task
    joint = JointTrainer(models, head, task_of_server, config.training.optimizer, server.trainer.runtime)
    features = [party.train.features for party in parties]
    for round_index in range(5):
        server.train_round(round_index)
        for rows_B in batch_rows(config.seed, round_index, 2, 64, 32):
            joint.step(features, server.exchanges.labels_N, rows_B)
    assert_models(server, models, head, atol=1e-5, rtol=1e-4)
    assert parties[0].model.get_parameter("categories.weight").grad is not None


def test_amounts_far_from_zero_keep_their_digits(tmp_path):
    """At 1e9 float32 steps by 64: amounts that differ by less would be one, in training and in the errors."""
    config = experiment(tmp_path, "regression", ADAM)
    table = (tmp_path / "bank.csv").read_text().splitlines()
    rows = [line.rsplit(",", 1) for line in table[1:]]
    shifted = [f"{rest},{1e9 + float(amount) / 10:.3f}" for rest, amount in rows]
    found = {}
    for name, lines in (("near", [f"{rest},{float(amount) / 10:.3f}" for rest, amount in rows]), ("far", shifted)):
        (tmp_path / "bank.csv").write_text("\n".join([table[0], *lines]))
        server = build_here(config).server
        train_rounds(server, 2)
        found[name] = server.evaluate()
    assert len({*found["near"]} & {"rmse/test", "mae/test", "r2/test"}) == 3
    for tag in ("rmse/test", "mae/test", "r2/test", "loss/test"):
        assert found["far"][tag] == pytest.approx(found["near"][tag], rel=1e-3), tag


def test_pruned_and_resumed_with_adam_gives_the_same_bits(tmp_path):
    ratios = {"alpha": {1: 0.3, 3: 0.5}, "beta": 0.4}
    sections = lay_tables(tmp_path, range(ROWS), {"training": {"optimizer": ADAM}, "lightweighting": ratios})
    whole = check_resumed(lambda: build_here(sections).server, 2, 4)
    assert {tag for tag in whole.evaluate() if tag.endswith("/test")} >= {"auc/test", "ks/test", "accuracy/test"}
