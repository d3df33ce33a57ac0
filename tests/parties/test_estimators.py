"""What a Python program hands to the estimators: words, interrupts, threads and frames of every kind."""

from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest

import vfl
from parties.predict import WhenAbsent, predict_in_process
from vfl.config import ConfigError, parse_config

N = 60
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 4))
Y = (X[:, 0] + X[:, 2] > 0).astype(np.int64)
QUICK: dict[str, Any] = {"rounds": 2, "random_state": 0, "settings": {"threads": 1}}


def frames() -> dict[str, pd.DataFrame]:
    left, right = (pd.DataFrame(part, columns=list(names)) for part, names in ((X[:, :2], "ab"), (X[:, 2:], "cd")))
    return {"left": left, "right": right}


@pytest.fixture(scope="module")
def fitted() -> vfl.VerticalClassifier:
    return vfl.VerticalClassifier(**QUICK).fit(frames(), Y)


@pytest.mark.parametrize("word", ["avg", "Mean", "", 0, True])
def test_a_word_that_replaces_no_party_is_refused_wherever_it_is_given(fitted: vfl.VerticalClassifier, word: Any):
    for given in (frames(), {"left": frames()["left"]}):
        for ask in (fitted.predict, fitted.predict_proba):
            with pytest.raises(ConfigError, match=r"^missing_parties: .*refuse"):
                ask(given, missing_parties=word)
    with pytest.raises(ConfigError, match=r"^--when-absent: .*refuse"):
        predict_in_process(fitted.run_.folder, None, [], word)
    with pytest.raises(ValueError, match=r"serving\.when_absent"):
        parse_config({"name": "run", "serving": {"when_absent": word}})


@pytest.mark.filterwarnings("ignore:--when-absent")
def test_all_words_are_known_everywhere(fitted: vfl.VerticalClassifier):
    for word in get_args(WhenAbsent):
        assert parse_config({"name": "run", "serving": {"when_absent": word}}).serving.when_absent == word
        assert len(fitted.predict(frames(), missing_parties=word)) == N
    for word in ("refuse", None):
        with pytest.raises(ConfigError, match="right absent"):
            fitted.predict({"left": frames()["left"]}, missing_parties=word)
