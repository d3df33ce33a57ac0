"""Numbers and columns as models read them: positions among quantiles, and columns that are constant in training."""

import itertools
import json
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
from refusals import refuses
from shorthand import at_every_run
from tiny_training import train_run
from two_tables import bank_config

import vfl
from vfl.config.data import DataConfig
from vfl.core.feature_models import check_feature_model
from vfl.data.samples import Samples
from vfl.data.source import Preparation, prepare_samples
from vfl.data.tables.preparation import TablePreparation
from vfl.data.tables.source import Tables
from vfl.models.features import ModelSpec, TableFeatures
from vfl.models.table import TableMLP
from vfl.runs.stored_run import Run


@given(
    train=st.lists(st.none() | st.floats(-1e6, 1e6).map(lambda value: round(value, 3)), min_size=2, max_size=80),
    new=st.lists(st.floats(-2e6, 2e6), min_size=1, max_size=5),
)
def test_positions_among_quantiles_become_the_piecewise_linear_encoding_of_the_paper(train, new):
    """Gorishniy et al. 2022, equation 1, clamped at both ends; a missing number is all zeros."""
    present = [value for value in train if value is not None]
    if not present:
        return
    column = torch.tensor([np.nan if value is None else value for value in train], dtype=torch.float64)[:, None]
    preparation = TablePreparation(_numbers(column), "quantiles")
    features = preparation.features
    found = preparation.apply(_numbers(torch.tensor([*new, np.nan], dtype=torch.float64)[:, None])).features
    encoded = TableMLP(ModelSpec(features, embedding_size=2)).encode(found)
    edges = np.unique(np.quantile(present, np.linspace(0, 1, 17)))
    edges = edges if len(edges) > 1 else np.array([edges[0], edges[0] + 1])
    expected = [[np.clip((x - a) / (b - a), 0, 1) for a, b in itertools.pairwise(edges)] for x in new]
    width = len(edges) - 1
    np.testing.assert_allclose(encoded[:-1, :width], expected, atol=1e-4)
    assert encoded[-1, :width].eq(0).all()
    assert encoded.shape[1] == sum(features.number_bins) == width + (None in train)
    restored = TablePreparation(_numbers(torch.zeros(1, 1).double()), "quantiles")
    restored.load_state_dict(preparation.state_dict())
    assert restored.features == features
    told = json.loads(preparation.fitted_text(["x"]))["numbers"][0]
    assert told["edges"] == edges.tolist()


@pytest.mark.parametrize(
    ("task", "rows", "said", "ranked"),
    [
        ("regression", 1000, None, True),
        ("regression", 999, None, False),
        ("classification", 1000, None, False),
        ("regression", 1000, "standardised", False),
        ("classification", 999, "quantiles", True),
    ],
)
def test_a_regression_of_many_rows_reads_numbers_by_quantiles_unless_told(task, rows, said, ranked):
    entry = {"file": "a.csv", "key": "k", "label": "y"}
    source = Tables(
        DataConfig.model_validate({"tables": {"a": entry, "b": entry | {"label": None}}, "numbers": said}), 0
    )
    source.task = task
    preparation = source.prepare(_numbers(torch.randn(rows, 1).double()))
    assert bool(preparation.edges) == ranked
    # A stand-in of few rows restores what was fitted, whatever it would have fitted itself.
    restored = source.prepare(_numbers(torch.zeros(2, 1).double()))
    restored.load_state_dict(preparation.state_dict())
    assert restored.features == preparation.features
    assert restored.edges == preparation.edges if not ranked else torch.equal(restored.edges[0], preparation.edges[0])


def _numbers(column: torch.Tensor) -> Samples:
    return Samples(torch.arange(len(column)), column, more=(torch.empty(len(column), 0, dtype=torch.int64),))


@pytest.mark.release
def test_a_model_of_encoded_numbers_keeps_the_contract_and_is_pruned():
    torch.manual_seed(0)
    spec = ModelSpec(TableFeatures("table", (4,), (5,), (16, 3, 1)), 4, width=0.2, dropout=0.2)
    check_feature_model(
        TableMLP(spec), torch.tensor([[3.5, 1.0, 0.0, 2.0], [15.0, 0.2, 1.0, 0.0], [0.1, 3.0, 1.0, 4.0]])
    )


def test_bins_for_other_numbers_than_there_are_refused():
    refuses("number_bins", lambda: TableMLP(ModelSpec(TableFeatures("table", (3,), (), (2, 2)), 4)), "bins")


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
    members = {"members": 2} if data.get("numbers") == "both" else {}
    with warnings.catch_warnings(action="ignore"):
        train_run(bank_config(file, data=data, models=members, features=KINDS), folder)
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
        with warnings.catch_warnings(record=True, action="always") as caught:
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
