"""Python's entries have the same bits whatever state the calling program is in, and leave that state as it was."""

import copy
import functools
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

import vfl

N = 48
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 3] > 0).astype(np.int64)
TABLES = {"left": X[:, :3], "right": X[:, 3:]}
BRIEF: dict[str, object] = {"training.rounds": 1, "lightweighting.alpha": 0.2, "lightweighting.beta": 0.2}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.embedding = nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.embedding(self.drop(torch.relu(self.norm(self.hidden(rows)))))


FEW = {"training.steps_per_round": 2}
NETS = {"left": Net(), "right": Net()}
OBJECTS: dict[str, object] = {"training.batch_size": 16, "training.rounds": 2, "lightweighting.alpha": 0.3}


def fit(**given: Any) -> vfl.Run:
    settings = OBJECTS | given.pop("settings", {})
    return vfl.fit([vfl.Party(name, TABLES[name], NETS[name]) for name in NETS], Y, settings=settings, **given)


def classifier(**given: Any) -> vfl.VerticalClassifier:
    return vfl.VerticalClassifier(random_state=0, rounds=2, alpha=0.3, settings=FEW, **given)


def digests(run: vfl.Run) -> list[str]:
    return [run.summary["model_digest"], run.summary["finished_model_digest"]]


def fitted_objects(folder: Path, trained: Any) -> object:
    run = fit()
    return digests(run), run.predict(TABLES).tolist()


def predicted_objects(folder: Path, trained: Any) -> object:
    return trained["objects"].predict(TABLES).tolist()


def fitted_classifier(folder: Path, trained: Any) -> object:
    unfitted: Any = clone(trained["classifier"])
    model = unfitted.fit(TABLES, Y)
    return digests(model.run_), model.predict_proba(TABLES).tolist(), model.score(TABLES, Y)


def fitted_regressor(folder: Path, trained: Any) -> object:
    model = vfl.VerticalRegressor(random_state=0, rounds=2, settings=FEW).fit(TABLES, X[:, 0] + X[:, 3])
    return digests(model.run_), model.predict(TABLES).tolist(), model.score(TABLES, X[:, 0] + X[:, 3])


def deep_copied(folder: Path, trained: Any) -> object:
    model = copy.deepcopy(trained["classifier"])  # as pickle does it
    return [model.predict_proba(TABLES).tolist() for _ in range(2)], model.predict(TABLES).tolist()


def trained_by_name(folder: Path, trained: Any) -> object:
    run = vfl.train("quickstart_tables", BRIEF | {"threads": 2}, run_dir=folder / "run")
    return digests(run), run.predict().tolist()


def predicted_run(folder: Path, trained: Any) -> object:
    return trained["run"].predict().tolist()


def pruned(folder: Path, trained: Any) -> object:
    run = vfl.prune(trained["run"], {"alpha": 0.5}, run_dir=folder / "pruned")
    return run.summary["test_accuracy"], run.predict().tolist()


ENTRIES: dict[str, Callable[[Path, Any], object]] = {
    "fit": fitted_objects,
    "predict of fit": predicted_objects,
    "classifier": fitted_classifier,
    "regressor": fitted_regressor,
    "deep copy": deep_copied,
    "train": trained_by_name,
    "predict of a run": predicted_run,
    "prune": pruned,
}


@contextmanager
def put(setter: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(before)


@contextmanager
def errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


STATES: dict[str, Callable[[], Any]] = {
    "float64": lambda: put(torch.set_default_dtype, torch.float64, torch.float32),
    "bfloat16": lambda: put(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "no gradients": lambda: torch.set_grad_enabled(False),
    "inference": torch.inference_mode,
    "threads": lambda: put(torch.set_num_threads, 3, 1),
    "NumPy raises": lambda: np.errstate(all="raise"),
    "warnings are errors": errors,
    "default device": lambda: put(torch.set_default_device, "meta", None),
    "device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "precision": lambda: put(torch.set_float32_matmul_precision, "medium", "highest"),
    "deterministic": lambda: put(torch.use_deterministic_algorithms, True, False),
    "seed": lambda: nullcontext(torch.manual_seed(7)),
}


AT_EVERY_RUN = {("fit", name) for name in STATES} | {(entry, "all") for entry in ENTRIES}
"""One entry in every state, and every entry in all states at once; the other pairs are for a release."""
CASES = [
    pytest.param(*case, marks=() if case in AT_EVERY_RUN else pytest.mark.release)
    for case in product(ENTRIES, [*STATES, "all"])
]


@contextmanager
def in_all() -> Iterator[None]:
    with ExitStack() as stack:
        for name, state in STATES.items():
            if name != "deterministic":
                stack.enter_context(state())
        yield


def state() -> list[object]:
    """What an entry must leave as it is."""
    flags = [getattr(torch.backends.cudnn, name) for name in ("benchmark", "deterministic", "allow_tf32")]
    legacy: Any = np.random.get_state()
    drawn = torch.get_rng_state().tolist(), legacy[1].tolist(), random.getstate()
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    forms = torch.get_default_dtype(), torch.get_default_device(), torch.get_float32_matmul_precision()
    counts = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    return [flags, drawn, modes, forms, counts, np.geterr(), list(warnings.filters)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    model = classifier().fit(TABLES, Y)
    run = vfl.train("quickstart_tables", BRIEF, run_dir=tmp_path_factory.mktemp("trained") / "run")
    return {"classifier": model, "objects": fit(), "run": run}


@pytest.fixture(scope="module")
def standard(trained: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], object]:
    """What an entry gives in a program that has set nothing."""
    return functools.cache(lambda name: ENTRIES[name](tmp_path_factory.mktemp("standard"), trained))


@pytest.mark.parametrize(("entry", "name"), CASES)
def test_no_state_of_the_caller_changes_a_bit_or_is_changed(
    entry: str, name: str, trained: dict[str, Any], standard: Callable[[str], object], tmp_path: Path
):
    with {**STATES, "all": in_all}[name]():
        before = state()
        found = ENTRIES[entry](tmp_path, trained)
        assert state() == before
    assert found == standard(entry)


class Failing(vfl.Callback):
    def on_round(self, loop: Any, round_index: int, metrics: Any) -> None:
        raise ZeroDivisionError


def test_the_callers_state_is_back_after_an_error():
    with in_all():
        before = state()
        with pytest.raises(ZeroDivisionError):
            fit(callbacks=[Failing()])
        assert state() == before
