"""A fit on frames writes no table and reads none: its bits are those of the tables' files, wherever the run is used."""

import gc
import pickle  # noqa: TID251 - an estimator's own, as scikit-learn's users do
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import vfl
from vfl.api.frames import write_held
from vfl.data.tables.opened import held_tables, hold_table, release_tables
from vfl.runs.run import run_experiment

ROWS = 60
KINDS = {"data.tables.bank.features": {"debt": "number", "day": "category"}}


def frames() -> tuple[dict[str, pd.DataFrame], "np.ndarray[Any, Any]"]:
    """Return two owners' frames with text, times, gaps and numbers, and two classes."""
    draw = np.random.default_rng(0)
    shop = {"age": draw.normal(40, 9, ROWS), "colour": draw.choice(np.array(["red", "blue", None], dtype=object), ROWS)}
    bank = {
        "debt": draw.normal(0, 1, ROWS),
        "day": pd.to_datetime("2020-01-01") + pd.to_timedelta(draw.integers(0, 3, ROWS), "D"),
    }
    labels = (shop["age"] + 9 * bank["debt"] > 40).astype(int)
    return {"shop": pd.DataFrame(shop), "bank": pd.DataFrame(bank)}, labels


@pytest.fixture(scope="module")
def fitted() -> vfl.VerticalClassifier:
    tables, labels = frames()
    settings = {"training.steps_per_round": 3, "training.party_dropout": 0.2} | KINDS
    return vfl.VerticalClassifier(rounds=2, random_state=3, settings=settings).fit(tables, labels)


def test_the_bits_are_those_of_the_files(fitted: vfl.VerticalClassifier, tmp_path: Path):
    folder = fitted.run_.folder.parent
    assert [each.name for each in folder.iterdir()] == ["run"]
    held = held_tables(folder)
    assert [path.stem for path in held] == ["shop", "bank", "tested"]
    write_held(folder)
    release_tables(folder)
    try:
        outcome = run_experiment(fitted.run_.config, tmp_path, resume=False, console=Console(quiet=True))
    finally:
        for path, table in held.items():
            path.unlink()
            hold_table(path, table)
    for name in ("model_digest", "test_metrics", "uplink_bytes"):
        assert outcome.summary[name] == fitted.run_.summary[name]


def test_the_run_is_used_by_its_folder_in_this_process(fitted: vfl.VerticalClassifier):
    found = vfl.Run(fitted.run_.folder).predict()
    assert found.shape == (ROWS, 2)
    assert np.array_equal(found, fitted.run_.predict())


def test_a_pickled_estimator_takes_its_tables_along(fitted: vfl.VerticalClassifier):
    new = {"shop": frames()[0]["shop"]}
    expected = fitted.predict_proba(new, missing_parties="mean")
    other = pickle.loads(pickle.dumps(fitted))  # noqa: S301
    folder = other.run_.folder.parent
    assert np.array_equal(other.predict_proba(new, missing_parties="mean"), expected)  # of the training rows
    assert np.array_equal(other.run_.predict(), fitted.run_.predict())
    assert len(held_tables(folder)) == 3
    del other
    gc.collect()
    assert not held_tables(folder)
    assert not folder.exists()


def test_the_run_of_a_named_folder_is_used_by_other_processes(tmp_path: Path):
    tables, labels = frames()
    settings = {"training.steps_per_round": 1} | KINDS
    model = vfl.VerticalClassifier(rounds=1, random_state=3, settings=settings, run_dir=tmp_path / "run")
    found = model.fit(tables, labels).run_.predict()
    release_tables(Path(model.run_.vertical.data.tables["shop"].file or "").parent)  # those processes do not hold them
    assert np.array_equal(vfl.Run(tmp_path / "run").predict(), found)
