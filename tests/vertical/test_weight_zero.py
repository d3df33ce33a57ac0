"""Weight 0 leaves a row out, in whatever way the weights come: the same bits as without the row."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from shorthand import at_every_run
from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier
from tiny_training import timeless
from torch import nn
from two_tables import ROWS, weighted_tables

import vfl
from vfl.config import parse_config
from vfl.data.tables.matching_input import of_rows, own_keys
from vfl.runs.run import run_experiment
from vfl.runs.stored_run import Run

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(ROWS, 4)).astype(np.float32)
LABELS = (X[:, 0] + X[:, 2] > 0).astype(int)
LEFT_OUT = np.arange(ROWS) % 5 == 2
WEIGHTS = np.where(LEFT_OUT, 0, 1 + np.arange(ROWS) % 3)
PARTS = {"bank": slice(0, 2), "shop": slice(2, 4)}


def of_tables(folder: Path, gone: Any) -> dict[str, Any]:
    sections = weighted_tables(folder, WEIGHTS)
    heading, *lines = (folder / "bank.csv").read_text().splitlines()
    kept = [line for line, out in zip(lines, gone, strict=True) if not out]
    (folder / "bank.csv").write_text("\n".join([heading, *kept]))
    run_experiment(parse_config(sections), folder / "run", resume=False, console=Console(quiet=True))
    return Run(folder / "run").summary


def of_objects(folder: Path, gone: Any, test: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    parties = [vfl.Party(name, X[~gone][:, part], nn.Linear(2, 4)) for name, part in PARTS.items()]
    if not isinstance(test, float):
        test = np.flatnonzero(np.isin(np.flatnonzero(~gone), test))
    settings = {"threads": 1, "training.rounds": 2, "training.batch_size": 16}
    return vfl.fit(parties, LABELS[~gone], sample_weight=WEIGHTS[~gone], test=test, settings=settings).summary


def of_estimator(folder: Path, gone: Any, kind: Any, joined: bool) -> dict[str, Any]:
    keys = [f"k{row:03}" for row in range(ROWS)]
    frames: dict[str, Any] = {
        name: pd.DataFrame(X[:, part], columns=["a", "b"]).assign(key=keys) for name, part in PARTS.items()
    }
    if not joined:
        frames = {name: frame[~gone].drop(columns="key") for name, frame in frames.items()}
    else:
        frames["bank"] = frames["bank"][~gone]
    y = LABELS if kind is vfl.VerticalClassifier else X[:, 0] + X[:, 3]
    quick = {"rounds": 2, "random_state": 0, "validation_fraction": 0.25, "settings": {"threads": 1}}
    model = kind(key="key" if joined else None, **quick)
    return model.fit(frames, y[~gone], sample_weight=WEIGHTS[~gone]).run_.summary


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
    config = parse_config(weighted_tables(tmp_path, WEIGHTS))
    (keys,) = own_keys(config.data, "bank").lists
    assert {int(key) for key in keys.to_pylist()} == {row for row in range(ROWS) if row % 5 != 2}
    rows = own_keys(of_rows(config.data, "bank", config.data.tables["bank"].file), "bank")
    assert len(rows.rows) == ROWS  # new rows have no weights


@pytest.mark.filterwarnings("ignore:no better than a constant")
@pytest.mark.parametrize("ensemble", at_every_run([BaggingClassifier, AdaBoostClassifier], BaggingClassifier))
def test_ensembles_that_draw_rows_by_weights_train(ensemble: Any):
    quick = {"rounds": 3, "random_state": 0, "settings": {"threads": 1, "training.steps_per_round": 20}}
    fitted = ensemble(vfl.VerticalClassifier(**quick), n_estimators=2, random_state=0).fit(X, LABELS)
    assert fitted.score(X, LABELS) > 0.6
