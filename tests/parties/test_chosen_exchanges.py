"""How long a classifier of few rows trains is chosen on samples that are held back, and on no others."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from shorthand import release

import vfl
from vfl.api.frames import draw_tested
from vfl.api.train_tables import Trial, best_exchanges
from vfl.config.tables import STEPS_PER_ROUND, exchanges_to_try, table_settings

N = 140
ROUNDS = 1
SHORT, LONG = exchanges_to_try(N, 2, {})


def tables(seed: int = 0) -> tuple[dict[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Return two owners' numbers, whose product's sign is the class."""
    draw = np.random.default_rng(seed)
    numbers = draw.normal(size=(N, 4))
    return {"left": numbers[:, :2], "right": numbers[:, 2:]}, (numbers[:, 0] * numbers[:, 2] > 0).astype(int)


def fit(given: dict[str, Any], labels: np.ndarray[Any, Any], **arguments: Any) -> vfl.VerticalClassifier:
    settings = {"threads": 1} | arguments.pop("settings", {})
    return vfl.VerticalClassifier(rounds=ROUNDS, random_state=0, settings=settings, **arguments).fit(given, labels)


pytestmark = pytest.mark.filterwarnings("ignore:no better than a constant", "ignore:.*no test sample")


@pytest.fixture(scope="module")
def fitted() -> vfl.VerticalClassifier:
    return fit(*tables())


def test_the_run_trains_as_long_as_its_best_trial(fitted: vfl.VerticalClassifier):
    assert [trial.steps_per_round for trial in fitted.trials_] == [SHORT, LONG]
    training = fitted.run_.vertical.training
    assert {STEPS_PER_ROUND: training.steps_per_round} == best_exchanges(fitted.trials_)
    assert all(trial.bytes > 0 for trial in fitted.trials_)


@pytest.mark.release
def test_trials_repeat_to_the_bit(fitted: vfl.VerticalClassifier):
    again = fit(*tables())
    assert again.trials_ == fitted.trials_
    assert again.run_.summary["model_digest"] == fitted.run_.summary["model_digest"]


def test_the_chosen_training_is_the_one_with_that_setting(fitted: vfl.VerticalClassifier):
    given, labels = tables()
    steps = fitted.run_.vertical.training.steps_per_round
    set_by_hand = fit(given, labels, settings={STEPS_PER_ROUND: steps})
    assert set_by_hand.trials_ == []
    assert set_by_hand.run_.summary["model_digest"] == fitted.run_.summary["model_digest"]


@pytest.mark.parametrize("key", [release(None), "id"])
def test_no_trial_sees_what_the_run_is_tested_on(key: str | None):
    given, labels = tables()
    tested = draw_tested(labels, 0.25, True, np.random.RandomState(0))
    changed = {owner: numbers.copy() for owner, numbers in given.items()}
    changed["left"][tested] *= 1000
    losses: list[list[float]] = []
    for numbers in (given, changed):
        frames = {owner: pd.DataFrame(each, columns=list("ab")) for owner, each in numbers.items()}
        if key is not None:
            frames = {owner: frame.assign(id=np.arange(N)) for owner, frame in frames.items()}
        fitted = fit(frames, labels, validation_fraction=0.25, key=key)
        losses.append([trial.test_loss for trial in fitted.trials_])
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2


@pytest.mark.parametrize(
    "settings",
    [
        {STEPS_PER_ROUND: 3},
        {"models.members": 2, "models.feature.embedding_size": 4},
        {"training.start_from": "runs/earlier"},
        {"privacy.embeddings": "gaussian"},
    ],
)
def test_settings_that_decide_or_promise_leave_nothing_to_try(settings: dict[str, Any]):
    assert exchanges_to_try(N, 2, {"threads": 1})
    assert exchanges_to_try(N, 2, settings) == ()


@pytest.mark.parametrize(("rows", "classes"), [(99, 2), (5001, 2), (N, 0), (N, 9)])
def test_too_few_or_many_rows_amounts_and_many_classes_try_nothing(rows: int, classes: int):
    assert exchanges_to_try(rows, classes, {}) == ()


def test_the_shorter_trial_is_as_long_as_the_defaults():
    assert table_settings(N, 2)["training"]["steps_per_round"] == SHORT


def test_the_longer_trial_is_chosen_up_to_its_lead():
    def chosen(short: float, long: float) -> int:
        return best_exchanges([Trial(SHORT, short, 1), Trial(LONG, long, 1)])[STEPS_PER_ROUND]

    assert [chosen(1.0, loss) for loss in (0.5, 1.0, 1.01, 1.03, float("nan"))] == [LONG, LONG, LONG, SHORT, SHORT]
    assert best_exchanges([Trial(SHORT, float("nan"), 1)]) == best_exchanges([]) == {}
