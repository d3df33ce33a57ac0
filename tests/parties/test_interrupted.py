"""Training from Python that is interrupted, or is not in the main thread: vfl.train, vfl.fit, the estimators."""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shorthand import at_every_run, release
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import nn

import vfl
from vfl.runs.loop import TrainingLoop

ROUNDS = 4
N = 120
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 4))
Y = (X[:, 0] + X[:, 2] > 0).astype(np.int64)
TABLES = {"bank": X[:, :2], "insurer": X[:, 2:]}
TINY = """name: tiny
threads: 1
data: {train_samples: 64, test_samples: 40}
models: {feature: {kind: mlp, width: 0.05, embedding_size: 4}, head: {hidden: [4]}}
training: {rounds: 4, steps_per_round: 2, batch_size: 32, optimizer: {learning_rate: 0.02}}
"""


def estimator(kind: type[Any] = vfl.VerticalClassifier) -> Any:
    return kind(
        rounds=ROUNDS, random_state=0, settings={"training.batch_size": 32, "training.steps_per_round": 2, "threads": 1}
    )


def fitted(folder: Path) -> vfl.Run:
    return estimator().fit(TABLES, Y).run_


def objects(folder: Path) -> vfl.Run:
    torch.manual_seed(0)
    parties = [vfl.Party(name, rows, nn.Linear(2, 4)) for name, rows in TABLES.items()]
    settings = {"training.batch_size": 32, "training.rounds": ROUNDS, "threads": 1}
    return vfl.fit(parties, Y, settings=settings, run_dir=folder / "run")


def trained(folder: Path) -> vfl.Run:
    (folder / "tiny.yaml").write_text(TINY)
    return vfl.train(folder / "tiny.yaml", run_dir=folder / "run")


@pytest.fixture
def strike(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what has the process get a signal in the second round of every training."""
    whole, handler = TrainingLoop.run_round, signal.getsignal(signal.SIGTERM)

    def strike(number: signal.Signals) -> None:
        def run_round(self: TrainingLoop, round_index: int) -> None:
            if round_index == 1:
                signal.raise_signal(number)
            whole(self, round_index)

        monkeypatch.setattr(TrainingLoop, "run_round", run_round)

    yield strike
    signal.signal(signal.SIGTERM, handler)


SIGNALS = pytest.mark.parametrize("number", at_every_run([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
Strike = Callable[[signal.Signals], None]


@SIGNALS
@pytest.mark.parametrize("kind", [vfl.VerticalClassifier, vfl.VerticalRegressor])
def test_an_interrupted_estimator_is_not_fitted(kind: type[Any], strike: Strike, number: signal.Signals):
    model = estimator(kind)
    strike(number)
    with pytest.raises(KeyboardInterrupt, match=f"interrupted after 2 of {ROUNDS} rounds"):
        model.fit(TABLES, Y)
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    with pytest.raises(NotFittedError):
        model.predict(TABLES)


@pytest.mark.release
def test_nothing_of_an_earlier_fit_is_left(strike: Strike):
    model = estimator().fit(TABLES, Y)
    strike(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        model.fit(TABLES, np.where(Y, "yes", "no"))
    with pytest.raises(NotFittedError):
        model.predict(TABLES)


@SIGNALS
@pytest.mark.parametrize("train", [objects, trained])
def test_an_interrupted_training_says_where_it_goes_on(
    train: Callable[[Path], vfl.Run], strike: Strike, number: signal.Signals, tmp_path: Path
):
    strike(number)
    with pytest.raises(KeyboardInterrupt, match=f"after 2 rounds; go on with run_dir='{tmp_path}/run', resume=True"):
        train(tmp_path)


@pytest.mark.parametrize("train", [fitted, release(objects), release(trained)])
def test_a_thread_trains_the_same_bits(train: Callable[[Path], vfl.Run], tmp_path: Path):
    for name in ("main", "other"):
        (tmp_path / name).mkdir()
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(train, tmp_path / "other").result()
    assert other.summary["model_digest"] == train(tmp_path / "main").summary["model_digest"]
