"""Arrays, frames and datasets of any kind are read as their numbers, or refused in one line."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from refusals import refuses

import vfl
from vfl.api.fit import _labels as labels_of_fit
from vfl.api.frames import owner_of, weights_of
from vfl.data.lazy_rows import rows_of

X = np.random.default_rng(0).integers(-9, 9, (12, 3)) / 4
MASK = X > 1
MIXED = pd.DataFrame({"a": X[:, 0], "b": X[:, 1] > 0, "c": X[:, 2]})
READABLE: dict[str, tuple[Callable[[], Any], NDArray[Any]]] = {
    "frame of floats and bools": (lambda: MIXED, MIXED.to_numpy(float)),
    "nullable frame": (lambda: MIXED.convert_dtypes(), MIXED.to_numpy(float)),
    "polars": (lambda: pl.DataFrame({name: MIXED[name].to_numpy() for name in MIXED}), MIXED.to_numpy(float)),
    "big-endian": (lambda: X.astype(">f8"), X),
    "long double": (lambda: X.astype(np.longdouble), X),
    "objects": (lambda: X.astype(object), X),
    "TensorDataset": (lambda: torch.utils.data.TensorDataset(torch.tensor(X)), X),
    "csr": (lambda: sp.csr_matrix(X), X),
    "coo": (lambda: sp.coo_array(X), X),
    "dictionary of keys": (lambda: sp.dok_array(X), X),
    "sparse tensor": (lambda: torch.tensor(X).to_sparse(), X),
    "nothing masked": (lambda: np.ma.masked_array(X, False), X),
}


@pytest.mark.parametrize("kind", READABLE)
def test_rows_of_any_kind_are_read_as_their_numbers(kind: str):
    make, expected = READABLE[kind]
    rows = rows_of("bank", make())
    np.testing.assert_array_equal(rows[torch.tensor([3, 1])].numpy(), expected[[3, 1]].astype(np.float32))
    assert len(rows) == len(X)


@pytest.mark.parametrize(
    "given",
    [
        torch.utils.data.TensorDataset(torch.tensor(X), torch.arange(12)),
        np.ma.masked_array(X, MASK),
        MIXED.assign(b="x"),
        X.astype(str),
    ],
)
def test_what_has_no_numbers_for_all_cells_is_one_line(given: Any):
    refuses("bank", lambda: rows_of("bank", given))


@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_what_is_masked_is_missing_in_an_owners_table(kind: type):
    owner = owner_of("X['bank']", np.ma.masked_array((X * 4).astype(kind), MASK), None)
    found = np.column_stack([owner.table.column(f"x{place}").to_numpy() for place in range(3)])
    np.testing.assert_array_equal(found, np.where(MASK, np.nan, X * 4))


def test_a_column_that_is_masked_is_missing():
    owner = owner_of("X['bank']", {"a": np.ma.masked_array(X[:, 0], MASK[:, 0])}, None)
    assert [cell is None for cell in owner.table.column("a").to_pylist()] == MASK[:, 0].tolist()


def test_a_sparse_table_is_read_as_its_array():
    owner = owner_of("X['bank']", sp.csr_matrix(X), None)
    np.testing.assert_array_equal(owner.table.column("x2").to_numpy(), X[:, 2])


@pytest.mark.parametrize("values", [X[:, 0], np.arange(12) % 2])
def test_masked_labels_and_weights_are_one_line(values: NDArray[Any]):
    masked = np.ma.masked_array(values, np.arange(12) == 5)
    refuses("y", lambda: labels_of_fit(masked))
    refuses("y", lambda: vfl.VerticalClassifier().fit(X, masked), "12")
    refuses("sample_weight", lambda: weights_of(np.ma.masked_array(np.ones(12), np.arange(12) == 5), 12))


def test_an_estimator_reads_a_masked_array_as_one_with_gaps():
    # What it reads, not what it learns: a training takes seconds.
    read = vfl.VerticalClassifier()._owners(np.ma.masked_array(X, MASK), fitted=False)
    gaps = vfl.VerticalClassifier()._owners(np.where(MASK, np.nan, X), fitted=False)
    assert [each.table.to_pydict().keys() for each in read.values()] == [
        each.table.to_pydict().keys() for each in gaps.values()
    ]
    assert [str(each.table.to_pydict()) for each in read.values()] == [
        str(each.table.to_pydict()) for each in gaps.values()
    ]


def test_a_class_of_tested_rows_only_is_told_and_counts_as_wrong():
    draw = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
    labels = np.where(np.arange(60) >= 57, "rare", np.where(draw[:, 0] > 0, "late", "paid"))
    tested = [0, 1, 2, 57, 58, 59]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        party = vfl.Party("a", draw, torch.nn.Linear(3, 4))
        run = vfl.fit([party], labels, test=tested, settings={"training.rounds": 1, "training.batch_size": 16})
    told = [str(each.message) for each in caught if re.search(r"'rare' \(3 rows\)", str(each.message))]
    assert len(told) == 1
    assert run.summary["test_metrics"]["accuracy"] <= 0.5
