"""Reasons from an estimator: in the caller's order and words, of the scores that it predicts."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from refusals import refused, refuses

import vfl

pytestmark = pytest.mark.filterwarnings("ignore:.*no placeholder was learned", "ignore:.*no better than")
QUICK: dict[str, Any] = {"rounds": 3, "random_state": 0, "settings": {"threads": 1, "training.steps_per_round": 10}}
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(120, 4))
SCORE = X[:, 0] + 2 * X[:, 2]
WORDS = np.array(["low", "middle", "high"])[np.digitize(SCORE, [-1, 1])]


def keyed(rows: slice, order: int = 1) -> dict[str, pd.DataFrame]:
    names = np.arange(len(X))[rows].astype(str)
    left = pd.DataFrame({"k": names, "a": X[rows, 0], "b": X[rows, 1]}).iloc[::order]
    return {"left": left, "right": pd.DataFrame({"k": names, "c": X[rows, 2], "d": X[rows, 3]})}


@pytest.fixture(scope="module")
def many() -> vfl.VerticalClassifier:
    return vfl.VerticalClassifier(key="k", **QUICK).fit(keyed(slice(None)), WORDS)


def log_odds(probabilities: Any) -> Any:
    return np.log(probabilities) - np.log1p(-probabilities)


def test_reasons_are_those_of_the_predicted_class_in_the_callers_order(many: vfl.VerticalClassifier):
    given = keyed(slice(0, 30), order=-1)
    found = many.explain(given)
    rows = np.arange(30)
    predicted, odds = many.predict(given), log_odds(many.predict_proba(given))
    assert [found.classes[int(of)] for of in found.of_N] == predicted.tolist()
    codes = [many.classes_.tolist().index(each) for each in predicted]
    np.testing.assert_allclose(found.score_N.numpy(), odds[rows, codes], atol=1e-4)
    np.testing.assert_allclose(found.moved_NK.sum(dim=1), found.score_N - found.without_N, atol=1e-6)
    assert found.owners == ("left", "right")
    assert {owner: own.names for owner, own in found.columns.items()} == {"left": ("a", "b"), "right": ("c", "d")}
    named = many.explain(given, of="high", steps=4)
    high = many.classes_.tolist().index("high")
    np.testing.assert_allclose(named.score_N.numpy(), odds[:, high], atol=1e-4)


def test_an_absent_party_moves_nothing(many: vfl.VerticalClassifier):
    left = {"left": keyed(slice(0, 9))["left"]}
    found = many.explain(left, missing_parties="mean")
    assert found.moved_NK[:, 1].abs().max() < 1e-9
    refuses("X", lambda: many.explain(left), "right")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"of": "higher"}, ("of", "'higher'")),
        ({"of": 2}, ("of",)),
        ({"steps": 0}, ("steps",)),
        ({"steps": 999}, ("steps", "steps")),
    ],
)
def test_what_cannot_be_explained_is_one_line(
    many: vfl.VerticalClassifier, asked: dict[str, Any], said: tuple[str, ...]
):
    with refused(*said) as caught:
        many.explain(keyed(slice(0, 3)), **asked)
    assert "--" not in str(caught.value)


def test_of_numbers_named_as_classes_and_of_values():
    two = vfl.VerticalClassifier(positive_class=0, **QUICK).fit(X, (SCORE > 0).astype(int))
    probabilities = two.predict_proba(X[:9])
    for of, column in ((0, 0), (1, 1), (None, 0)):  # None: the positive one
        found = two.explain(X[:9], of)
        np.testing.assert_allclose(found.score_N.numpy(), log_odds(probabilities[:, column]), atol=1e-4)
    values = vfl.VerticalRegressor(**QUICK).fit({"left": X[:, :2], "right": X[:, 2:]}, 100 + SCORE)
    given = {"left": X[:9, :2], "right": X[:9, 2:]}
    found = values.explain(given)
    np.testing.assert_allclose(found.score_N.numpy(), values.predict(given), rtol=1e-6)
    refuses("of", lambda: values.explain(given, 1))
