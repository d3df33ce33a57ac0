"""The embedded table of two owners against scikit-learn's own reader."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from vfl.config.data import DataConfig
from vfl.data.tables.breast_cancer import KEY, LABEL, BreastCancer
from vfl.data.tables.columns import Categories, Numbers


@pytest.mark.parametrize(("owner", "columns"), [("clinic", slice(0, 10)), ("laboratory", slice(10, 30))])
def test_the_embedded_table_is_that_of_scikit_learn(owner, columns):
    bunch: Any = load_breast_cancer()
    source = BreastCancer(DataConfig(), 0)
    assert list(source.columns(owner).numbers) == bunch.feature_names[columns].tolist()
    table = source.read(owner, ["clinic", "laboratory"])
    for name, values in zip(bunch.feature_names[columns], bunch.data[:, columns].T, strict=True):
        column = table.columns[name]
        assert isinstance(column, Numbers)
        assert np.array_equal(column.values, values)
    if owner == "clinic":
        label = table.columns[LABEL]
        assert isinstance(label, Categories)
        assert [label.names[code] for code in label.codes] == bunch.target_names[bunch.target].tolist()
    assert len(table.keys[KEY]) == len(table.row_numbers) == len(bunch.target)
