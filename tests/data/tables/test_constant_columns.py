"""A column that is constant in the training rows decides nothing, whatever it holds later."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from predicted import predict_in_process
from rich.console import Console
from shorthand import at_every_run

import vfl
from vfl.config import parse_config
from vfl.data.samples import Samples
from vfl.data.source import Preparation, prepare_samples
from vfl.data.tables.preparation import TablePreparation
from vfl.runs.run import run_experiment
from vfl.runs.stored_run import Run

ROWS = 120
KINDS = {"a": "number", "same": "number", "level": "number", "place": "category"}


def table(rows: int, *, constant: bool, gaps: bool = False) -> pd.DataFrame:
    """Return a label by one column, beside columns that are constant or not."""
    draw = np.random.default_rng(rows)
    a, noise = draw.normal(size=rows).round(3), draw.normal(size=rows)
    frame = pd.DataFrame({"k": [f"k{row:03}" for row in range(rows)], "a": a, "same": 3.0, "level": 0.1, "place": "x"})
    if gaps:
        frame.loc[::3, "same"] = np.nan
    if not constant:
        varied = {"same": draw.normal(3, 50, rows), "level": draw.normal(size=rows)}
        frame = frame.assign(**varied, place=draw.choice(["x", "y", ""], rows))
    return frame.assign(late=(a + noise / 2 > 0).astype(int))


def train(folder: Path, file: Path, **data: object) -> Run:
    """Train on the table, with its columns named."""
    tables = {"bank": {"file": str(file), "key": "k", "label": "late", "features": KINDS}}
    values = {
        "name": "constant",
        "data": {"dataset": {"kind": "tables"}, "tables": tables, **data},
        "models": {"feature": {"kind": "mlp", "width": 0.2, "embedding_size": 4}},
        "training": {"rounds": 2, "batch_size": 16, "labels": "server"},
    }
    if data.get("numbers") == "both":
        values["models"] |= {"members": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_experiment(parse_config(values), folder, resume=False, console=Console(quiet=True))
    return Run(folder)


@pytest.mark.parametrize("numbers", ["standardised", "quantiles", "both"])
@pytest.mark.parametrize("gaps", [False, True])
def test_new_values_of_a_constant_column_change_no_score_and_are_told(tmp_path: Path, numbers: str, gaps: bool):
    table(ROWS, constant=True, gaps=gaps).to_csv(tmp_path / "bank.csv", index=False)
    run = train(tmp_path / "run", tmp_path / "bank.csv", numbers=numbers)
    scores: list[Any] = []
    for constant in (True, False):
        path = tmp_path / f"{constant}.csv"
        table(60, constant=constant).drop(columns="late").to_csv(path, index=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scores.append(predict_in_process(run, None, (), "refuse", {"bank": path}).probabilities_NC)
        told = " ".join(str(each.message) for each in caught)
        assert [f"{name!r}" in told for name in ("same", "level", "place")] == [not constant] * 3
        assert len(caught) == (not constant)
    assert torch.equal(*scores)


def test_a_split_by_time_leaves_the_tested_score_alone(tmp_path: Path):
    """Training rows hold one value, test rows others: the score is that of a test without the change."""
    scores: list[float] = []
    for constant in (True, False):
        frame = table(ROWS, constant=True)
        later = table(ROWS, constant=constant)
        frame.loc[80:, ["same", "level", "place"]] = later.loc[80:, ["same", "level", "place"]]
        frame.to_csv(tmp_path / "bank.csv", index=False)
        frame.loc[80:, ["k"]].to_csv(tmp_path / "tested.csv", index=False)
        run = train(tmp_path / str(constant), tmp_path / "bank.csv", test_file=str(tmp_path / "tested.csv"))
        scores.append(run.summary["test_metrics"]["log_loss"])
        assert len(predict_in_process(run, None, (), "refuse").ids_N) == 40  # the run's own rows are known again
    assert scores[0] == scores[1]


@pytest.mark.parametrize("array", at_every_run([True, False], False))
@pytest.mark.filterwarnings("ignore")
def test_an_estimator_takes_a_constant_column_for_constant(array: bool):
    names = ["a", "same", "level"]
    trained, new = table(ROWS, constant=True), table(60, constant=False)
    same = new.assign(same=3.0, level=0.1)
    given = (each[names] for each in (trained, new, same))
    X, other, expected = (each.to_numpy() if array else {"bank": each} for each in given)
    found = vfl.VerticalClassifier(rounds=2, random_state=0).fit(X, trained["late"])
    np.testing.assert_array_equal(found.predict_proba(other), found.predict_proba(expected))


@given(
    value=st.floats(-1e6, 1e6),
    other=st.floats(-1e6, 1e6),
    numbers=st.sampled_from(["standardised", "quantiles", "both"]),
    place=st.sampled_from([-1, 5, 6]),
)
def test_what_is_prepared_of_a_constant_column_is_always_the_same(value: float, other: float, numbers: Any, place: int):
    def rows(cell: float, category: int, count: int) -> Samples:
        cells = torch.full((count, 1), cell, dtype=torch.float64)
        return Samples(torch.arange(count), cells, more=(torch.full((count, 1), category),))

    fitted = TablePreparation(rows(value, 7, 9), numbers)
    restored = TablePreparation(rows(1.0, 1, 9), numbers)
    restored.load_state_dict(fitted.state_dict())
    expected = prepare_samples(fitted, rows(value, 7, 1)).features
    each: Preparation
    for each in (fitted, restored):
        assert torch.equal(prepare_samples(each, rows(other, place, 1)).features, expected)
    assert fitted.changed(rows(value, 7, 2)) == [0, 0]
    assert fitted.changed(rows(value + 1 + abs(value), place, 2)) == [2, 2]
