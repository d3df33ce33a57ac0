"""Split training of tables equals joint training of the same model, whatever is predicted and by which optimizer."""

import copy

import pytest
import torch
from shorthand import assert_models, check_resumed, parties_of, train_rounds

from scripts.lab.plain_training import JointTrainer
from vfl.config import parse_config
from vfl.core.local import build_in_process
from vfl.core.presence import batch_rows
from vfl.runs.runtime import start_runtime

ROWS = 80


def write_tables(folder):
    draw = torch.Generator().manual_seed(1)
    values = torch.randn(ROWS, 3, generator=draw)
    kinds = torch.randint(0, 4, (ROWS, 2), generator=draw)
    amount = values.sum(dim=1) * 100 + 20 * kinds[:, 0] + 1000
    lines = {"bank": ["k,a,colour,label,amount"], "shop": ["k,b,c,shape"]}
    for row in range(ROWS):
        a, b, c = values[row].tolist()
        lines["bank"].append(f"{row:02},{a},c{kinds[row, 0]},{int(amount[row] > 1000)},{amount[row]:.3f}")
        lines["shop"].append(f"{row:02},{b},{'' if row % 9 == 0 else c},s{kinds[row, 1]}")
    for owner, rows in lines.items():
        (folder / f"{owner}.csv").write_text("\n".join(rows))


def experiment(folder, task, optimizer, class_weights=None, labels="server"):
    label = "label" if task == "classification" else "amount"
    bank = {"label": label, "features": {"a": "number", "colour": "category"}}
    shop = {"features": {"b": "number", "c": "number", "shape": "category"}}
    tables = {
        owner: {"file": str(folder / f"{owner}.csv"), "key": "k", **settings}
        for owner, settings in {"bank": bank, "shop": shop}.items()
    }
    return parse_config(
        {
            "name": "tables",
            "threads": 1,
            "task": task,
            "data": {"dataset": {"kind": "tables"}, "tables": tables},
            "models": {"feature": {"embedding_size": 8, "width": 0.1}, "head": {"hidden": [8]}},
            "training": {
                "rounds": 5,
                "batch_size": 32,
                "labels": labels,
                "class_weights": class_weights,
                "optimizer": optimizer,
            },
        }
    )


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
    write_tables(tmp_path)
    config = experiment(tmp_path, task, optimizer, class_weights, labels)
    server = build_in_process(config, start_runtime(config)).server
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
    write_tables(tmp_path)
    table = (tmp_path / "bank.csv").read_text().splitlines()
    rows = [line.rsplit(",", 1) for line in table[1:]]
    shifted = [f"{rest},{1e9 + float(amount) / 10:.3f}" for rest, amount in rows]
    found = {}
    for name, lines in (("near", [f"{rest},{float(amount) / 10:.3f}" for rest, amount in rows]), ("far", shifted)):
        (tmp_path / "bank.csv").write_text("\n".join([table[0], *lines]))
        config = experiment(tmp_path, "regression", ADAM)
        server = build_in_process(config, start_runtime(config)).server
        train_rounds(server, 2)
        found[name] = server.evaluate()
    assert len({*found["near"]} & {"rmse/test", "mae/test", "r2/test"}) == 3
    for tag in ("rmse/test", "mae/test", "r2/test", "loss/test"):
        assert found["far"][tag] == pytest.approx(found["near"][tag], rel=1e-3), tag


def test_pruned_and_resumed_with_adam_gives_the_same_bits(tmp_path):
    write_tables(tmp_path)
    config = experiment(tmp_path, "classification", ADAM)
    config = config.model_copy(
        update={"lightweighting": config.lightweighting.model_copy(update={"alpha": {1: 0.3, 3: 0.5}, "beta": 0.4})}
    )
    whole = check_resumed(lambda: build_in_process(config, start_runtime(config)).server, 2, 4)
    assert {tag for tag in whole.evaluate() if tag.endswith("/test")} >= {"auc/test", "ks/test", "accuracy/test"}
