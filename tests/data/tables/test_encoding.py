"""Numbers as models read them: positions among quantiles, and the encoding that a model makes of them."""

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from vfl.config.data import DataConfig
from vfl.core.feature_models import check_feature_model
from vfl.data.samples import Samples
from vfl.data.tables.preparation import TablePreparation
from vfl.data.tables.source import Tables
from vfl.models.features import ModelSpec, TableFeatures
from vfl.models.table import TableMLP


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
