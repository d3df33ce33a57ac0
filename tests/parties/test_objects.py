"""Tensors, datasets, models, heads and optimizers of a Python program, and scikit-learn's estimators."""

import copy
import gc
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from refusals import refused, refuses
from shorthand import at_every_run, release
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.utils import estimator_checks
from torch import nn

import vfl
from vfl.base.errors import Diverged
from vfl.config import dump_config
from vfl.core.privacy.epsilon import epsilon_of

N = 240
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 3] > 0).astype(np.int64)
QUICK: dict[str, object] = {"training.batch_size": 32, "training.rounds": 3, "threads": 1}


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.hidden, self.embedding = nn.Linear(3, 16), nn.Linear(16, width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.embedding(torch.relu(self.hidden(rows)))


class OneByOne:
    """A map-style dataset that counts its reads."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read += 1
        return torch.from_numpy(X[index, 3:])


def parties(left: Any = None, right: Any = None) -> list[vfl.Party]:
    torch.manual_seed(0)
    return [
        vfl.Party("left", X[:, :3] if left is None else left, Net()),
        vfl.Party("right", X[:, 3:] if right is None else right, Net()),
    ]


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 0.01)


def test_arrays_mapped_files_tensors_and_datasets_train_the_same_bits(tmp_path: Path):
    np.save(tmp_path / "left.npy", X[:, :3])
    mapped = np.load(tmp_path / "left.npy", mmap_mode="r")
    given = [(X[:, :3], X[:, 3:]), (mapped, torch.from_numpy(X[:, 3:])), (X[:, :3].astype(np.float64), OneByOne())]
    runs = [vfl.fit(parties(*each), Y, settings=QUICK) for each in given]
    assert len({run.summary["model_digest"] for run in runs}) == 1


def test_what_is_trained_comes_back_pruned_and_predicts_as_it_was_tested():
    head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    given = parties()
    net = given[0].model
    assert isinstance(net, Net)
    before = net.hidden.weight.clone()
    test = np.arange(180, N)
    run = vfl.fit(given, Y, head=head, optimizer=adam, test=test, settings=QUICK | {"lightweighting.alpha": 0.4})
    assert torch.equal(net.hidden.weight, before)
    pruned = run.feature_model("left")
    assert isinstance(pruned, Net)
    assert pruned.hidden.out_features < 16
    predicted = run.predict({"left": X[test, :3], "right": X[test, 3:]}).argmax(axis=1)
    assert np.mean(predicted == Y[test]) == pytest.approx(run.summary["test_accuracy"])
    assert isinstance(run.head, nn.Sequential)
    assert list(run.metrics_frame()["loss/train"]) == [row["loss/train"] for row in run.metrics]


def test_a_resumed_run_of_objects_has_the_bits_of_an_uninterrupted_one(tmp_path: Path):
    whole = vfl.fit(parties(), Y, optimizer=adam, settings=QUICK)
    vfl.fit(parties(), Y, optimizer=adam, settings=QUICK | {"training.rounds": 2}, run_dir=tmp_path / "run")
    resumed = vfl.fit(parties(), Y, optimizer=adam, settings=QUICK, run_dir=tmp_path / "run", resume=True)
    assert resumed.summary["model_digest"] == whole.summary["model_digest"]
    refuses("data.dataset.kind", lambda: vfl.Run(tmp_path / "run").predict(), "vfl.fit")


def noting(made: list[torch.optim.Optimizer], kind: Any) -> Any:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        made.append(kind(parameters, lr=0.01))
        return made[-1]

    return make


class Remembering(torch.optim.SGD):
    """Keeps the shapes that it has seen, so that a pruned parameter does not fit."""

    def step(self, closure: Any = None) -> None:
        shapes = [p.shape for group in self.param_groups for p in group["params"]]
        self.seen = getattr(self, "seen", shapes)
        assert self.seen == shapes, "shapes changed"
        super().step(closure)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (torch.optim.Adafactor, ("lightweighting.alpha", "'row_var'", "'hidden.weight'")),
        (Remembering, ("lightweighting.alpha", "shapes")),
    ],
)
@pytest.mark.parametrize("controlled", [False, True])
def test_an_optimizer_that_cannot_be_pruned_is_refused_at_once_or_never_asked_to(
    kind: Any, line: tuple[str, ...], controlled: bool
):
    made: list[torch.optim.Optimizer] = []
    alpha = {"lightweighting.alpha": {1: 0.4}}
    if controlled:  # alpha is then 0 at least, and stays so
        alpha = {"lightweighting.controller": "deadline", "lightweighting.seconds_per_exchange": 1000.0}
    else:
        with refused(*line):
            vfl.fit(parties(), Y, optimizer=noting(made, kind), settings=QUICK | alpha)
        assert not any(optimizer.state for optimizer in made[:1])
        alpha = {}
    assert vfl.fit(parties(), Y, optimizer=noting(made, kind), settings=QUICK | alpha).summary["rounds"] == 3


@pytest.mark.parametrize(
    "kind", ["SGD", "Adam", *map(release, ("AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta"))]
)
def test_optimizers_whose_state_has_the_parameters_shape_are_pruned_with_it(kind: str):
    made: list[torch.optim.Optimizer] = []
    run = vfl.fit(
        parties(), Y, optimizer=noting(made, getattr(torch.optim, kind)), settings=QUICK | {"lightweighting.alpha": 0.4}
    )
    assert run.summary["parties"]["left"]["alpha"] == 0.4


def frames(rows: slice | np.ndarray) -> dict[str, pd.DataFrame]:
    left = pd.DataFrame(X[rows, :3], columns=["a", "b", "c"])
    colours = np.where(X[rows, 4] > 0, "red", "blue")
    return {"left": left, "right": pd.DataFrame({"d": X[rows, 3].astype(np.float64), "colour": colours})}


@pytest.fixture(scope="module")
def fitted() -> vfl.VerticalClassifier:
    model = vfl.VerticalClassifier(
        alpha=0.4, beta=0.5, rounds=3, random_state=1, settings={"threads": 1, "training.steps_per_round": 30}
    )
    return model.fit(frames(slice(0, 180)), np.array(["no", "yes"])[Y[:180]])


def test_a_classifier_of_frames_learns_and_tells_what_it_cost(fitted: vfl.VerticalClassifier):
    new = frames(slice(180, N))
    assert roc_auc_score(Y[180:], fitted.predict_proba(new)[:, 1]) > 0.9
    assert set(fitted.predict(new)) == {"no", "yes"}
    assert list(fitted.costs_.index) == ["left", "right"]
    assert fitted.costs_["macs"].sum() == fitted.run_.summary["train_macs"]
    assert fitted.contributions_.keys() == {"left", "right"}
    order = DRAW.permutation(N - 180)
    shuffled = {name: table.iloc[order] for name, table in new.items()}
    np.testing.assert_allclose(fitted.predict_proba(shuffled), fitted.predict_proba(new)[order], atol=1e-6)
    alone = fitted.predict_proba({"left": new["left"]}, missing_parties="mean")
    assert roc_auc_score(Y[180:], alone[:, 1]) > 0.6


def test_a_pickled_classifier_predicts_the_same_and_a_clone_is_not_fitted(fitted: vfl.VerticalClassifier):
    new = frames(slice(180, N))
    moved = copy.deepcopy(fitted)  # by its pickled state
    assert np.array_equal(moved.predict_proba(new), fitted.predict_proba(new))
    assert not hasattr(clone(fitted), "run_")


@pytest.mark.release
def test_the_same_experiment_by_yaml_has_the_same_digest(fitted: vfl.VerticalClassifier, tmp_path: Path):
    (tmp_path / "same.yaml").write_text(dump_config(fitted.run_.config))
    assert (
        vfl.train(tmp_path / "same.yaml", run_dir=tmp_path / "run").summary["model_digest"]
        == (fitted.run_.summary["model_digest"])
    )


@pytest.mark.release
def test_rows_may_belong_together_by_a_key():
    keys = [f"c{number}" for number in range(N)]
    tables = {name: table.assign(customer=keys) for name, table in frames(slice(0, N)).items()}
    tables["right"] = tables["right"].iloc[::-1]
    model = vfl.VerticalRegressor(key="customer", rounds=4, random_state=0, settings={"threads": 1})
    model.fit(tables, X[:, 0] + X[:, 3])
    assert model.score(tables, X[:, 0] + X[:, 3]) > 0.3


def test_a_warning_counts_the_callers_rows_and_a_run_outlives_its_estimator():
    keys = np.array([f"{number:04}" for number in range(N)])
    tables = {name: table.assign(customer=keys) for name, table in frames(slice(0, N)).items()}
    tables["right"] = tables["right"].iloc[:150]
    settings = {"threads": 1, "training.steps_per_round": 1}
    quick: dict[str, Any] = {"key": "customer", "rounds": 1, "random_state": 0, "settings": settings}
    with pytest.warns(UserWarning, match="X: ") as told:
        run = vfl.VerticalClassifier(**quick).fit(tables, Y[:N]).run_
    gc.collect()
    assert run.summary["metric"] == "auc"
    lines = [str(each.message) for each in told]
    assert [line for line in lines if "rows of" in line] == [
        f"X: 150 of {N} rows of left have a row of right, which has 150; training takes rows that all owners have"
    ]
    assert not any("lvfl" in line for line in lines)
    folder = run.folder.parent
    del run
    gc.collect()
    assert not folder.exists()


F = frames(slice(0, 60))
WRONG_FITS: dict[str, tuple[dict[str, Any], object, object, tuple[str, ...]]] = {
    "no tables": ({}, {}, Y[:60], ("X", "expected")),
    "a number": ({}, {"left": 3}, Y[:60], ("X['left']", "left")),
    "owner's name": ({}, {1: F["left"]}, Y[:60], ("X", "text")),
    "no name for a party": ({}, {"a b": F["left"]}, Y[:60], ("X",)),
    "other rows": ({}, {**F, "right": F["right"][:3]}, Y[:60], ("X", "60")),
    "other labels": ({}, F, Y[:59], ("y", "59")),
    "no labels": ({}, F, None, ("y", "missing")),
    "labels without a value": ({}, F, np.where(np.arange(60) < 3, np.nan, Y[:60]), ("y", "60", "rows")),
    "labels of pandas without a value": (
        {},
        F,
        pd.array([True, None, *(Y[2:60] > 0).tolist()], "boolean"),
        ("y", "60", "rows"),
    ),
    "text without a value": ({}, F, pd.array(["a", None, *"ab" * 29], "string"), ("y", "60", "rows")),
    "times without a value": ({}, F, np.array(["NaT", *["2020"] * 59], "M8[ns]"), ("y", "60")),
    "labels that are bytes": ({}, F, np.array([b"a", b"b"] * 30), ("y", "bytes")),
    "labels of several types": ({}, F, np.array(["a", 1] * 30, object), ("y", "supported")),
    "one class": ({}, F, np.zeros(60, int), ("y", "class")),
    "amounts": ({}, F, np.linspace(0, 1, 60), ("Unknown label type", "continuous")),
    "no such key": ({"key": "customer"}, F, Y[:60], ("X['left']", "customer")),
    "key of an array": ({"key": "customer"}, {"left": X[:60, :3]}, Y[:60], ("X['left']", "customer")),
    "key without values": ({"key": "k"}, {"l": {"k": [None, "b"], "x": [1.0, 2.0]}}, [0, 1], ("X['l']", "value")),
    "doubled key": ({"key": "k"}, {"l": {"k": ["a"] * 60, "x": X[:60, 0]}}, Y[:60], ("X['l']", "'a'")),
    "three dimensions": ({}, {"left": np.zeros((60, 2, 2))}, Y[:60], ("X['left']", "expected")),
    "text in an array": ({}, {"left": np.array([["a"]] * 60)}, Y[:60], ("X['left']", "numbers")),
    "infinite": ({}, {"left": np.full((60, 2), np.inf)}, Y[:60], ("X", "infinite")),
    "no value": ({}, {"left": np.full((60, 2), np.nan)}, Y[:60], ("X", "value")),
    "alpha": ({"alpha": 1.5}, F, Y[:60], ("lightweighting.alpha",)),
    "beta": ({"beta": "much"}, F, Y[:60], ("lightweighting.beta",)),
    "alpha of nobody": ({"alpha": {"lft": 0.4}}, F, Y[:60], ("lightweighting.alpha",)),
    "fraction": ({"validation_fraction": 1.0}, F, Y[:60], ("validation_fraction", "validation")),
    "too large a fraction": ({"validation_fraction": 0.99}, F, Y[:60], ("validation_fraction", "validation")),
    "setting": ({"settings": {"training.round": 3}}, F, Y[:60], ("training.round",)),
    "another task": ({"settings": {"task": "regression"}}, F, Y[:60], ("settings", "classification")),
    "another source": ({"settings": {"data.dataset.kind": "digits"}}, F, Y[:60], ("settings", "data.dataset.kind")),
    "two dimensions of labels": ({}, F, np.zeros((60, 2), int), ("", "1d")),
}


@pytest.mark.parametrize("wrong", [pytest.param(each, id=name) for name, each in WRONG_FITS.items()])
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_fit_is_one_line_without_yaml(wrong: tuple[dict[str, Any], Any, Any, tuple[str, ...]]):
    parameters, tables, labels, told = wrong
    with refused(*told) as raised:
        vfl.VerticalClassifier(random_state=0, **parameters).fit(tables, labels)
    assert "yaml" not in str(raised.value).lower()


WRONG_OBJECTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no party": ({"parties": []}, ("parties", "more")),
    "a name twice": ({"parties": [parties()[0]] * 2}, ("parties", "name")),
    "no module": ({"parties": [vfl.Party("left", X, "net")]}, ("parties", "torch.nn.Module")),  # pyright: ignore[reportArgumentType]
    "no data": ({"parties": [vfl.Party("left", 3, Net())]}, ("parties", "tensor")),
    "no sample": ({"parties": [vfl.Party("left", X[:0, :3], Net())]}, ("parties", "sample")),
    "no feature": ({"parties": [vfl.Party("left", X[:, 0], Net())]}, ("parties", "expected")),
    "text": ({"parties": [vfl.Party("left", np.array([["a"]]), Net())]}, ("parties", "numbers")),
    "other rows": ({"parties": parties(X[:9, :3])}, ("parties", "differ")),
    "other columns": ({"parties": parties(X[:, :2])}, ("Net", "forward")),
    "labels of two dimensions": ({"y": X}, ("y", "expected")),
    "one class": ({"y": np.zeros(N, int)}, ("y", "class")),
    "amounts that are none": ({"y": np.full(N, np.nan)}, ("y",)),
    "text without a value": ({"y": ["a", None, *"b" * (N - 2)]}, ("y", "value")),
    "labels of pandas without a value": ({"y": pd.array([True, None, *[False] * (N - 2)], "boolean")}, ("y", "value")),
    "labels of several types": ({"y": np.array(["a", 1] * (N // 2), object)}, ("y", "types")),
    "head": ({"head": nn.Linear(5, 2)}, ("head", "head")),
    "head of other outputs": ({"head": nn.Linear(8, 3)}, ("head", "head")),
    "head that is none": ({"head": "mlp"}, ("head", "head")),
    "optimizer": ({"optimizer": lambda parameters: 3}, ("optimizer", "torch.optim.Optimizer")),
    "share": ({"test": 1.5}, ("test", "share")),
    "rows": ({"test": [N]}, ("test", "numbers")),
    "all rows": ({"test": np.arange(N)}, ("test", "some")),
    "rows of one class": ({"test": np.flatnonzero(Y == 0)[:9]}, ("labels", "'0'")),
    "horizontal": ({"settings": {"mode": "horizontal"}}, ("models.parties", "mode=vertical")),
    "labels with parties": ({"settings": {"training.labels": "shared"}}, ("settings", "training.labels")),
    "setting": ({"settings": {"trainin.rounds": 3}}, ("trainin", "trainin")),
}


@pytest.mark.parametrize("wrong", [pytest.param(each, id=name) for name, each in WRONG_OBJECTS.items()])
def test_wrong_objects_are_one_line_without_yaml(wrong: tuple[dict[str, Any], tuple[str, ...]]):
    given, told = wrong
    with refused(*told) as raised:
        vfl.fit(**{"parties": parties(), "y": Y, "settings": QUICK} | given)
    assert "yaml" not in str(raised.value).lower()


def test_wrong_predictions_are_one_line(fitted: vfl.VerticalClassifier):
    new = frames(slice(180, N))
    for given, told in (
        ({"left": new["left"]}, ("X", "right")),
        (new | {"middle": new["left"]}, ("X", "middle")),
        (new | {"right": new["right"].drop(columns="d")}, ("X", "'d'")),
        ({name: table[:0] for name, table in new.items()}, ("X['left']", "row")),
    ):
        with refused(*told):
            fitted.predict(given)


@pytest.mark.parametrize("kind", [vfl.VerticalClassifier, vfl.VerticalRegressor])
@pytest.mark.parametrize(
    "check",
    ["check_estimators_unfitted", "check_estimator_sparse_array", "check_n_features_in"],
)
def test_an_estimator_of_a_plain_array_passes_the_quick_checks_of_scikit_learn(kind: type[Any], check: str):
    estimator = kind(rounds=1, random_state=0)
    getattr(estimator_checks, check)(kind.__name__, estimator)
    assert estimator.get_params()["rounds"] == 1


UNWEIGHTED = {
    "check_sample_weight_equivalence_on_dense_data": "rows that are repeated make other batches",
}
REFUSED = UNWEIGHTED | {
    "check_regressors_no_decision_function": "the check gives a column as y; a column that equals the label is refused",
}
"""Checks of scikit-learn that fail, with the reason."""


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")  # the checks bring tables that are warned of, on purpose
@pytest.mark.parametrize(("kind", "refused"), [(vfl.VerticalClassifier, UNWEIGHTED), (vfl.VerticalRegressor, REFUSED)])
def test_an_estimator_of_a_plain_array_passes_check_estimator(kind: type[Any], refused: dict[str, str]):
    """But for what is listed, and what scikit-learn itself skips without SCIPY_ARRAY_API."""
    estimator = kind(rounds=1, random_state=0, settings={"threads": 1})
    results: Any = estimator_checks.check_estimator(
        estimator, expected_failed_checks=refused, on_skip=None, on_fail=None
    )
    other = {each["check_name"]: each["status"] for each in results if each["status"] != "passed"}
    other.pop("check_array_api_input", None)
    assert other == dict.fromkeys(refused, "xfail")
    assert len(results) > 45


@pytest.mark.parametrize("kind", ["text", "boolean"])
def test_labels_may_be_an_array_of_pyarrow(kind: str):
    labels = Y[:60].astype(bool)
    given = pa.array(np.where(labels, "yes", "no") if kind == "text" else labels)
    fitted = vfl.VerticalClassifier(rounds=1, random_state=0, settings={"threads": 1}).fit(F, given)
    assert fitted.classes_.tolist() == (["no", "yes"] if kind == "text" else [False, True])


def test_settings_that_objects_ignore_are_told():
    ignored = {"data.train_samples": 40, "data.positive_class": "0", "lightweighting.beta": {9: 0.5}}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        vfl.fit(parties(), Y, settings=QUICK | ignored)
    lines = [str(each.message) for each in told]
    assert [next(line for line in lines if line.startswith(field)) for field in ignored]


@pytest.mark.parametrize(
    ("given", "mover"),
    [
        ({}, None),
        ({"sample_weight": np.ones(N)}, "weights"),
        ({"loss": nn.CrossEntropyLoss()}, "loss"),
        ({"head": nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 2))}, "head"),
        ({"settings": {"training.class_weights": {"0": 2.0}}}, "class_weights"),
        ({"settings": {"models.parties.left.batch_norm": True}}, "BatchNorm"),
    ],
)
def test_epsilon_and_a_warning_count_what_moves_the_whole_batch(given: dict[str, Any], mover: str | None):
    plain = {f"models.parties.{name}.batch_norm": False for name in ("left", "right")}
    noise = {"privacy.gradients": {"kind": "gaussian", "strength": 8.0}, "training.rounds": 1}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = vfl.fit(parties(), Y, **{**given, "settings": QUICK | noise | plain | given.get("settings", {})})
    releases, delta, epsilon = (run.summary["privacy"]["gradients"][key] for key in ("releases", "delta", "epsilon"))
    assert epsilon == epsilon_of(8.0 if mover is None else 8.0 / math.sqrt(32), releases, delta)
    lines = [str(each.message) for each in told if "moves its whole batch" in str(each.message)]
    assert len(lines) == (mover is not None)
    assert all(mover is not None and mover in line for line in lines)


ODD: dict[str, Any] = {
    "array": (lambda rows: rows, "1"),
    "tensor": (torch.from_numpy, "1"),
    "frame": (lambda rows: pd.DataFrame(rows, columns=["a", "b", "c"]), "'b'"),
    "dataset": (lambda rows: [*torch.from_numpy(rows)], "1"),
}


class Filled(Net):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows.nan_to_num(0.0, 0.0, 0.0))


@pytest.mark.parametrize("value", at_every_run([np.nan, np.inf, -np.inf], np.inf))
@pytest.mark.parametrize("kind", [*ODD])
@pytest.mark.parametrize("test", at_every_run([0.2, [3, 4, 5, 6, 7, 8]], 0.2))
def test_a_value_that_is_not_finite_is_named_by_owner_row_and_column(value: float, kind: str, test: Any):
    make, column = ODD[kind]
    right = X[:, 3:].copy()
    right[7, 1] = value
    with refused("parties", "row 7", column, value):
        vfl.fit(parties(right=make(right)), Y, test=test, settings=QUICK)


def test_a_model_that_embeds_such_values_trains_and_predictions_of_others_say_which_row_is_lost():
    right = X[:, 3:].copy()
    right[7, 1] = np.nan
    filled = [parties()[0], vfl.Party("right", right, Filled())]
    assert np.isfinite(vfl.fit(filled, Y, settings=QUICK).predict({"left": X[:, :3], "right": right})).all()
    run = vfl.fit(parties(), Y, settings=QUICK)
    with pytest.warns(UserWarning, match="^samples: right: row 7, column 1, holds nan"):
        predicted = run.predict({"left": X[:, :3], "right": right})
    assert np.flatnonzero(np.isnan(predicted).any(axis=1)).tolist() == [7]


def test_too_high_a_rate_is_not_blamed_on_the_data():
    with pytest.raises(Diverged, match="learning_rate"):
        vfl.fit(parties(), Y, settings=QUICK | {"training.optimizer.learning_rate": 1e30})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_label_that_is_not_finite_is_named_by_its_row(value: float):
    labels = X[:, 0].astype(float)
    labels[9] = value
    refuses("y", lambda: vfl.fit(parties(), labels, settings=QUICK), "row 9")


def test_rows_of_a_data_frame_are_its_rows():
    given = (parties(pd.DataFrame(X[:, :3])), parties())
    digests = [vfl.fit(each, Y, settings=QUICK).summary["model_digest"] for each in given]
    assert digests[0] == digests[1]
