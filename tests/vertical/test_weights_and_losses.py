"""What the label owner decides alone: weights of samples, its own loss, clipping; weight 0 leaves a row out."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from predicted import predict_in_process
from refusals import refused
from shorthand import at_every_run, build_here
from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier
from tiny_training import timeless, train_run
from torch import nn
from two_tables import ROWS, weighted_tables

import vfl
from vfl.base.metrics import format_metric
from vfl.config import ConfigError, parse_config
from vfl.data.files import load_label_data, write_label_data
from vfl.data.split import conceal_ids, split_data
from vfl.data.tables.matching_input import of_rows, own_keys
from vfl.runs.stored_run import Run

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(40, 4)).astype(np.float32)
Y = (X[:, 0] + X[:, 2] > 0).astype(int)
WEIGHTS = [1 + row % 3 for row in range(ROWS)]
QUICK: dict[str, Any] = {"threads": 1, "training.rounds": 2, "training.batch_size": 32}


def parties() -> list[vfl.Party]:
    torch.manual_seed(0)
    return [vfl.Party(name, part, nn.Linear(2, 3)) for name, part in (("a", X[:, :2]), ("b", X[:, 2:]))]


def digest(y: Any = Y, settings: dict[str, Any] | None = None, **given: Any) -> str:
    run = vfl.fit(parties(), y, test=range(32, 40), settings=QUICK | (settings or {}), **given)
    return run.summary["model_digest"]


def test_the_weights_of_a_table_reach_loss_and_metrics_and_files_alike(tmp_path: Any):
    sections = weighted_tables(tmp_path, WEIGHTS)
    split = split_data(parse_config(sections))
    weights = split.labels.train.weights
    assert weights is not None
    keys = [int(key) for (key,) in split.labels.test.keys[1:]]
    assert split.labels.test.weights is not None
    assert split.labels.test.weights.tolist() == [1 + key % 3 for key in keys]
    write_label_data(tmp_path / "labels.safetensors", conceal_ids(split, b"s" * 32).labels)
    back = load_label_data(tmp_path / "labels.safetensors").train.weights
    assert back is not None
    assert sorted(back.tolist()) == sorted(weights.tolist())
    server = build_here(sections).server
    server.train_round(0)
    plain = copy.deepcopy(sections)
    plain["data"]["tables"]["bank"].pop("weight")
    plain["data"]["tables"]["bank"]["features"]["w"] = "ignore"
    without = build_here(plain).server
    without.train_round(0)
    assert server.summary()["model_digest"] != without.summary()["model_digest"]
    assert server.evaluate().keys() == without.evaluate().keys()


def test_predictions_are_scored_with_the_weights_of_the_evaluation(tmp_path: Any):
    config = parse_config(weighted_tables(tmp_path, [1 + row % 9 for row in range(ROWS)]))
    train_run(config, tmp_path / "run")
    told = predict_in_process(Run(tmp_path / "run"), None, (), "refuse").scores
    summary = Run(tmp_path / "run").summary
    assert told == {"AUC": format_metric("auc", summary["test_metrics"]["auc"])}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"weights": [-1] + [1] * (ROWS - 1)}, ("bank.csv", "'w'", "row 2", "above")),
        ({"weights": [0] * ROWS}, ("bank.csv", "'w'", "rows")),
        ({"weights": [""] + [1] * (ROWS - 1)}, ("bank.csv", "'w'", "row 2")),
        ({"owner": "shop"}, ("data.tables.shop.weight", "label")),
        ({"feature": "w"}, ("bank.csv", "'w'")),
        ({"labels": "shared"}, ("training.labels", "their")),
    ],
)
def test_weights_that_do_not_fit_are_one_line(tmp_path: Any, change: dict[str, Any], line: tuple[str, ...]):
    sections = weighted_tables(tmp_path, change.get("weights", WEIGHTS))
    tables = sections["data"]["tables"]
    if "owner" in change:
        tables["shop"]["weight"] = tables["bank"].pop("weight")
    if "feature" in change:
        tables["bank"]["features"]["w"] = "number"
    sections["training"]["labels"] = change.get("labels", "server")

    def build() -> None:
        build_here(sections)

    with refused(*line):
        build()


def test_weights_of_one_and_an_own_loss_equal_the_built_in_one_to_the_bit():
    assert digest(loss=F.cross_entropy) == digest()
    amounts = X[:, 0].astype(float)

    def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(outputs[:, 0], targets)

    assert digest(amounts, loss=squared) == digest(amounts)
    assert digest(loss=lambda outputs, targets: 2 * F.cross_entropy(outputs, targets)) != digest()


def test_a_long_limit_of_the_gradient_keeps_the_bits_and_a_short_one_the_length():
    assert digest(settings={"training.optimizer.clip_gradient": 1e9}) == digest()
    assert digest(settings={"training.optimizer.clip_gradient": 1e-3}) != digest()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no scalar": ({"loss": lambda outputs, targets: outputs}, "loss: must return a scalar"),
    "both": ({"loss": F.cross_entropy, "sample_weight": np.ones(40)}, "sample_weight: goes with the built-in loss"),
    "few": ({"sample_weight": [1.0]}, "sample_weight: expected 40 weights, one a row"),
    "zero": ({"sample_weight": np.zeros(40)}, "sample_weight: is zero in all rows"),
    "NaN": ({"sample_weight": [1.0] * 39 + [np.nan]}, "sample_weight: row 39 has nan"),
    "infinite": ({"sample_weight": [1.0, np.inf, *[1.0] * 38]}, "sample_weight: row 1 has inf"),
    "negative": ({"sample_weight": [1.0, -2.0, *[1.0] * 38]}, "sample_weight: row 1 has -2"),
    "text": ({"sample_weight": ["x"] * 40}, "sample_weight: expected numbers"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_losses_and_weights_that_do_not_fit_are_one_line(kind: str):
    given, line = WRONG[kind]
    with pytest.raises(ConfigError, match=line):
        digest(**given)


def test_estimators_take_weights_and_a_loss():
    quick: dict[str, Any] = {"rounds": 1, "random_state": 0, "settings": {"threads": 1, "models.members": 1}}
    weighed = vfl.VerticalClassifier(**quick).fit({"a": X}, Y, sample_weight=1.0 + Y)
    assert weighed.run_.vertical.data.tables["a"].weight == "lvfl_weight"
    plain = vfl.VerticalClassifier(**quick).fit({"a": X}, Y)
    same = vfl.VerticalClassifier(loss=F.cross_entropy, **quick).fit({"a": X}, Y)
    assert (same.predict_proba({"a": X}) == plain.predict_proba({"a": X})).all()
    assert (weighed.predict_proba({"a": X}) != plain.predict_proba({"a": X})).any()


FEATURES = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
LABELS = (FEATURES[:, 0] + FEATURES[:, 2] > 0).astype(int)
LEFT_OUT = np.arange(ROWS) % 5 == 2
SOME_ZERO = np.where(LEFT_OUT, 0, 1 + np.arange(ROWS) % 3)
PARTS = {"bank": slice(0, 2), "shop": slice(2, 4)}


def of_tables(folder: Path, gone: Any) -> dict[str, Any]:
    sections = weighted_tables(folder, SOME_ZERO)
    heading, *lines = (folder / "bank.csv").read_text().splitlines()
    kept = [line for line, out in zip(lines, gone, strict=True) if not out]
    (folder / "bank.csv").write_text("\n".join([heading, *kept]))
    train_run(sections, folder / "run")
    return Run(folder / "run").summary


def of_objects(folder: Path, gone: Any, test: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    parties = [vfl.Party(name, FEATURES[~gone][:, part], nn.Linear(2, 4)) for name, part in PARTS.items()]
    if not isinstance(test, float):
        test = np.flatnonzero(np.isin(np.flatnonzero(~gone), test))
    settings = {"threads": 1, "training.rounds": 2, "training.batch_size": 16}
    return vfl.fit(parties, LABELS[~gone], sample_weight=SOME_ZERO[~gone], test=test, settings=settings).summary


def of_estimator(folder: Path, gone: Any, kind: Any, joined: bool) -> dict[str, Any]:
    keys = [f"k{row:03}" for row in range(ROWS)]
    frames: dict[str, Any] = {
        name: pd.DataFrame(FEATURES[:, part], columns=["a", "b"]).assign(key=keys) for name, part in PARTS.items()
    }
    if not joined:
        frames = {name: frame[~gone].drop(columns="key") for name, frame in frames.items()}
    else:
        frames["bank"] = frames["bank"][~gone]
    y = LABELS if kind is vfl.VerticalClassifier else FEATURES[:, 0] + FEATURES[:, 3]
    quick = {"rounds": 2, "random_state": 0, "validation_fraction": 0.25, "settings": {"threads": 1}}
    model = kind(key="key" if joined else None, **quick)
    return model.fit(frames, y[~gone], sample_weight=SOME_ZERO[~gone]).run_.summary


ROUTES: dict[str, Any] = {
    "tables": of_tables,
    "a share of objects": partial(of_objects, test=0.25),
    "rows of objects": partial(of_objects, test=[0, 1, 2, 3, 7, 8, 12, 13, 14, 30]),
    "classifier": partial(of_estimator, kind=vfl.VerticalClassifier, joined=False),
    "classifier by key": partial(of_estimator, kind=vfl.VerticalClassifier, joined=True),
    "regressor": partial(of_estimator, kind=vfl.VerticalRegressor, joined=False),
}


@pytest.mark.filterwarnings("ignore")  # of rows that only one owner has
@pytest.mark.parametrize("route", at_every_run(ROUTES, "tables", "rows of objects", "classifier by key"))
def test_a_row_of_weight_zero_is_a_row_left_out(tmp_path: Path, route: str):
    """Of batches, statistics, counts and test metrics: the same bits as without the row."""
    (tmp_path / "all").mkdir()
    (tmp_path / "fewer").mkdir()
    zero = timeless(ROUTES[route](tmp_path / "all", np.zeros(ROWS, bool)))
    gone = timeless(ROUTES[route](tmp_path / "fewer", LEFT_OUT))
    assert zero == gone


def test_a_match_leaves_out_rows_of_weight_zero(tmp_path: Path):
    config = parse_config(weighted_tables(tmp_path, SOME_ZERO))
    (keys,) = own_keys(config.data, "bank").lists
    assert {int(key) for key in keys.to_pylist()} == {row for row in range(ROWS) if row % 5 != 2}
    rows = own_keys(of_rows(config.data, "bank", config.data.tables["bank"].file), "bank")
    assert len(rows.rows) == ROWS  # new rows have no weights


@pytest.mark.filterwarnings("ignore:no better than a constant")
@pytest.mark.parametrize("ensemble", at_every_run([BaggingClassifier, AdaBoostClassifier], BaggingClassifier))
def test_ensembles_that_draw_rows_by_weights_train(ensemble: Any):
    quick = {"rounds": 3, "random_state": 0, "settings": {"threads": 1, "training.steps_per_round": 20}}
    fitted = ensemble(vfl.VerticalClassifier(**quick), n_estimators=2, random_state=0).fit(FEATURES, LABELS)
    assert fitted.score(FEATURES, LABELS) > 0.6
