"""training.loss: each loss is its formula, in value and slope; what belongs to it; the same bits wherever it trains."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses
from rich.console import Console
from shorthand import at_every_run
from tiny_training import check_resumed_run, train_run
from torch import nn
from two_tables import ROWS, sections_of, with_clerk, write_labels, write_tables

import vfl
from vfl.base.metrics import headline, worse_than_constant
from vfl.comparison.compare import loss_of_boosting, predicted_alone
from vfl.config import parse_config
from vfl.config.optimizer import FocalLoss
from vfl.core.losses import AmountLoss
from vfl.core.tasks import Regression, Task, restored_task, task_of, task_state, with_scale
from vfl.data.experiments import decide_parties
from vfl.data.source import open_source, split_samples
from vfl.data.tables.source import Tables
from vfl.predict.export_run import label_of
from vfl.reports.runs import load_runs
from vfl.reports.tables import tables

FOCAL: dict[str, dict[str, Any]] = {
    "focal": {"loss": {"kind": "focal"}},
    "gamma below 1": {"loss": {"kind": "focal", "gamma": 0.5}},
    "smoothed": {"loss": {"kind": "focal", "gamma": 3}, "label_smoothing": 0.1},
    "by class": {"loss": {"kind": "focal", "gamma": 1}, "class_weights": {"a": 2.0, "c": 0.5}, "label_smoothing": 0.3},
    "gamma 0": {"loss": {"kind": "focal", "gamma": 0}, "class_weights": {"a": 2.0}, "label_smoothing": 0.2},
}
AMOUNTS: dict[str, dict[str, Any]] = {
    "squared": {"kind": "squared"},
    "absolute": {"kind": "absolute"},
    "huber": {"kind": "huber", "delta": 0.7},
    "pinball": {"kind": "pinball", "quantile": 0.9},
}
LABELS = torch.tensor([0, 1, 2, 2, 0, 1])
VALUES = torch.tensor([3.0, 8.0, -2.0, 40.0, 0.5, 11.0], dtype=torch.float64)
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0, 1.0], dtype=torch.float64)
CLOSE: dict[str, Any] = {"rtol": 2e-5, "atol": 1e-6}


def of_classes(training: dict[str, Any]) -> Task:
    return task_of(parse_config({"name": "x", "training": training}), ("a", "b", "c"), LABELS)


def of_amounts(loss: dict[str, Any], values: torch.Tensor = VALUES, weights: torch.Tensor | None = None) -> Task:
    return task_of(parse_config({"name": "x", "task": "regression", "training": {"loss": loss}}), (), values, weights)


def drawn(outputs: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(6, outputs, generator=torch.Generator().manual_seed(seed)) * 2


def with_slope(task: Task, outputs: torch.Tensor, labels: torch.Tensor, weights: Any = None) -> tuple[Any, Any]:
    """The loss of outputs, and its gradient."""
    outputs = outputs.clone().requires_grad_()
    loss = task.loss(outputs, labels, weights)
    (slope,) = torch.autograd.grad(loss, outputs)
    return loss.detach().double().numpy(), slope.double().numpy()


def focal_by_hand(training: dict[str, Any], outputs: torch.Tensor, weights: Any) -> tuple[float, np.ndarray]:
    """The loss and its gradient by Lin et al.'s formulas, class by class, in float64."""
    gamma, smoothing = training["loss"].get("gamma", 2), training.get("label_smoothing", 0)
    by_class = [training.get("class_weights", {}).get(name, 1.0) for name in "abc"]
    z = outputs.double().numpy()
    weights = np.ones(len(z)) if weights is None else weights.numpy()
    value, slope, total = 0.0, np.zeros_like(z), 0.0
    for row, label in enumerate(LABELS.tolist()):
        p = np.exp(z[row]) / np.exp(z[row]).sum()
        total += weights[row] * by_class[label]
        for of in range(3):
            share = weights[row] * by_class[of] * (smoothing / 3 + (1 - smoothing) * (of == label))
            value -= share * (1 - p[of]) ** gamma * np.log(p[of])
            by_p = gamma * (1 - p[of]) ** (gamma - 1) * np.log(p[of]) - (1 - p[of]) ** gamma / p[of]
            slope[row] += share * by_p * p[of] * ((np.arange(3) == of) - p)
    return value / total, slope / total


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
@pytest.mark.parametrize("kind", FOCAL)
def test_focal_loss_is_its_formula_in_value_and_slope(kind: str, weights: Any):
    outputs = drawn(3)
    for found, wanted in zip(
        with_slope(of_classes(FOCAL[kind]), outputs, LABELS, weights),
        focal_by_hand(FOCAL[kind], outputs, weights),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, **CLOSE)


def amount_by_hand(loss: dict[str, Any], told: float, wanted: float) -> tuple[float, float]:
    """A loss and its slope."""
    error = told - wanted
    match loss["kind"]:
        case "squared":
            return error**2, 2 * error
        case "absolute":
            return abs(error), np.sign(error)
        case "huber":
            delta = loss["delta"]
            near = abs(error) <= delta
            return (error**2 / 2 if near else delta * (abs(error) - delta / 2)), np.clip(error, -delta, delta)
        case _:
            quantile = loss["quantile"]
            return (error * (1 - quantile) if error > 0 else -error * quantile), (
                1 - quantile if error > 0 else -quantile
            )


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
@pytest.mark.parametrize("kind", AMOUNTS)
def test_losses_of_amounts_are_their_formulas_in_value_and_slope(kind: str, weights: Any):
    outputs, shares = drawn(1), np.ones(6) if weights is None else weights.numpy()
    mean, std = VALUES.mean().item(), VALUES.std(correction=0).item()
    values = VALUES if weights is None else VALUES * 1.0
    if weights is not None:
        mean = float((shares * VALUES.numpy()).sum() / shares.sum())
        std = float(np.sqrt((shares * (VALUES.numpy() - mean) ** 2).sum() / shares.sum()))
    rows = zip(outputs[:, 0].tolist(), ((values.numpy() - mean) / std).tolist(), strict=True)
    by_hand = np.array([amount_by_hand(AMOUNTS[kind], *row) for row in rows]).T
    loss, slope = with_slope(of_amounts(AMOUNTS[kind], weights=weights), outputs, VALUES, weights)
    np.testing.assert_allclose(loss, (shares * by_hand[0]).sum() / shares.sum(), **CLOSE)
    np.testing.assert_allclose(slope[:, 0], shares * by_hand[1] / shares.sum(), **CLOSE)


def test_the_half_quantile_is_half_the_absolute_error_to_the_bit():
    half, whole = of_amounts({"kind": "pinball", "quantile": 0.5}), of_amounts({"kind": "absolute"})
    for of_half, of_whole in zip(*(with_slope(task, drawn(1), VALUES) for task in (half, whole)), strict=True):
        assert (2 * of_half == of_whole).all()


@pytest.mark.parametrize("outputs", [torch.tensor([[90.0, 0.0, -90.0]]), torch.tensor([[0.0, 60.0, -400.0]])])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_focal_loss_of_a_sure_model_has_a_finite_slope(outputs: torch.Tensor, smoothing: float):
    task = of_classes({"loss": {"kind": "focal", "gamma": 0.3}, "label_smoothing": smoothing})
    for values in (outputs, outputs.bfloat16()):
        loss, slope = with_slope(task, values, torch.tensor([0]))
        assert np.isfinite([loss, *slope.flatten()]).all()


@pytest.mark.parametrize("kind", [*AMOUNTS, "focal"])
def test_members_have_their_own_loss_and_the_test_that_of_what_they_predict(kind: str):
    task, labels = (of_classes(FOCAL["focal"]), LABELS) if kind == "focal" else (of_amounts(AMOUNTS[kind]), VALUES)
    outputs = torch.stack([drawn(task.outputs, seed) for seed in range(3)], dim=1)
    alone = torch.stack([task.loss(each, labels) for each in outputs.unbind(1)])
    torch.testing.assert_close(task.loss(outputs, labels), alone.mean())
    tested = task.loss(task.merged(outputs), labels) * len(labels)
    assert task.test_loss(outputs, labels) == pytest.approx(float(tested), rel=1e-5)
    assert task.test_loss(outputs, labels, torch.full((6,), 2.0)) == pytest.approx(2 * float(tested), rel=1e-5)


@given(
    values=st.lists(st.floats(-50, 50), min_size=2, max_size=12, unique=True),
    quantile=st.floats(0.05, 0.95),
    kind=st.sampled_from(["squared", "absolute", "huber", "pinball"]),
    weighted=st.booleans(),
)
def test_no_constant_beats_the_one_that_a_run_is_compared_with(values: Any, quantile: float, kind: Any, weighted: bool):
    labels = torch.tensor(values, dtype=torch.float64)
    weights = torch.arange(1.0, len(values) + 1).double() if weighted else torch.ones(len(values)).double()
    loss = AmountLoss(kind, 0.8, quantile)
    best = loss.constant(labels, weights if weighted else None, unit=2.0)

    def of(constant: float) -> float:
        return float((weights * loss.of(torch.full_like(labels, constant), labels, unit=2.0)).sum())

    others = [*values, best - 0.01, best + 0.01, labels.mean().item(), labels.median().item()]
    assert of(best) <= min(map(of, others)) * (1 + 1e-9) + 1e-9


def test_a_quantile_is_told_by_its_loss_and_coverage_in_the_labels_unit():
    task = of_amounts(AMOUNTS["pinball"])
    assert isinstance(task, Regression)
    told = torch.tensor([[4.0], [8.0], [-3.0], [35.0], [1.0], [10.0]], dtype=torch.float64)
    found = task.metrics(told, VALUES)
    assert found["coverage"] == 3 / 6
    assert found["pinball_loss"] == pytest.approx((0.1 * (1 + 0 + 0.5) + 0.9 * (1 + 5 + 1)) / 6)
    assert found.keys() == {"rmse", "mae", "r2", "pinball_loss", "coverage"}
    assert task.metrics(told, VALUES, WEIGHTS)["coverage"] == pytest.approx(4 / 8.5)
    assert task.metric == "pinball_loss"
    assert task.best_constant(VALUES).tolist() == [40.0]
    summary = {"metric": task.metric, "test_metrics": found, "constant": task.constant(VALUES, None, VALUES, None)}
    assert "quantile is " in worse_than_constant(summary | {"constant": {"pinball_loss": 0.1}})
    assert headline(summary).endswith("coverage 0.5000")
    assert restored_task(task_state(task)) == task
    assert label_of(task) == {"mean": task.mean, "std": task.std, "quantile": 0.9}
    assert loss_of_boosting(task) == {"loss": "quantile", "quantile": 0.9}


@pytest.mark.parametrize(
    ("kind", "metric"), [("squared", "rmse"), ("absolute", "mae"), ("huber", "huber_loss"), ("pinball", "pinball_loss")]
)
def test_models_are_compared_by_the_metric_of_their_loss(kind: str, metric: str):
    task = of_amounts(AMOUNTS[kind])
    assert (task.metric, [*task.constant(VALUES, None, VALUES, None)]) == (metric, [metric])
    assert metric in task.metric_names


def test_a_metric_of_another_loss_is_refused():
    with refused("evaluation.metric", "huber_loss"):
        task_of(parse_config({"name": "x", "task": "regression", "evaluation": {"metric": "huber_loss"}}), (), VALUES)


DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(40, 4)).astype(np.float32)
Y = (X[:, 0] + X[:, 2] > 0).astype(int)
AMOUNT = 10 * X[:, 0].astype(float)
QUICK: dict[str, Any] = {"threads": 1, "training.rounds": 1, "training.batch_size": 16}


def digest(y: Any, loss: Any = None, settings: dict[str, Any] | None = None, **given: Any) -> str:
    torch.manual_seed(0)
    parties = [vfl.Party(name, part, nn.Linear(2, 3)) for name, part in (("a", X[:, :2]), ("b", X[:, 2:]))]
    run = vfl.fit(parties, y, test=range(32, 40), settings=QUICK | (settings or {}), loss=loss, **given)
    return run.summary["model_digest"]


@pytest.mark.release
def test_named_defaults_gamma_0_and_one_own_function_have_the_same_bits():
    classes, amounts = digest(Y), digest(AMOUNT)
    assert digest(Y, "cross_entropy") == digest(Y, {"kind": "focal", "gamma": 0}) == classes
    assert digest(AMOUNT, "squared") == amounts
    assert digest(Y, "focal") != classes
    found = {kind: digest(AMOUNT, loss) for kind, loss in AMOUNTS.items() if kind != "squared"}
    assert len({amounts, *found.values()}) == 4
    assert digest(AMOUNT, lambda outputs, targets: F.l1_loss(outputs[:, 0], targets)) == found["absolute"]


def test_a_named_loss_goes_with_weights_but_with_no_other_loss():
    assert digest(Y, "focal", sample_weight=np.ones(40)) == digest(Y, "focal")
    assert digest(AMOUNT, "absolute", sample_weight=1.0 + Y) != digest(AMOUNT, "absolute")
    refuses("settings", lambda: digest(Y, F.cross_entropy, settings={"training.loss.kind": "focal"}), "training.loss")
    refuses("loss", lambda: digest(Y, 3), "function")
    refuses("settings", lambda: digest(Y, "focal", settings={"training.loss": "cross_entropy"}), "training.loss")


def of_tables(folder: Path, loss: dict[str, Any], task: str, labels: str = "server") -> dict[str, Any]:
    """Sections of an experiment on two owners' tables, the labels' amounts or classes."""
    paths = write_tables(folder, range(ROWS), labelled=True)
    if task == "regression":
        heading, *lines = paths["bank"].read_text().splitlines()
        amounts = [f"{line.rpartition(',')[0]},{100 + 3 * place % 50}" for place, line in enumerate(lines)]
        paths["bank"].write_text("\n".join([heading, *amounts]))
    sections = {"name": "small", "seed": 3, "threads": 1, "task": task, **sections_of(paths)}
    sections["models"]["head"] = {"hidden": [8]}
    sections["training"] |= {"rounds": 2, "batch_size": 16, "labels": labels, "loss": loss}
    return sections


@pytest.mark.parametrize("labels", ["server", "shared"])
@pytest.mark.parametrize("kind", at_every_run(["focal", "pinball"], "focal"))
def test_a_resumed_run_keeps_its_loss_and_its_bits(tmp_path: Path, kind: str, labels: str):
    loss, task = ({"kind": "focal"}, "classification") if kind == "focal" else (AMOUNTS["pinball"], "regression")
    sections = of_tables(tmp_path, loss, task, labels)
    check_resumed_run(sections, tmp_path)
    other = sections | {"training": sections["training"] | {"loss": {}}}
    with refused("--resume", "training.loss "):
        train_run(other, tmp_path / "whole", resume=True)


def test_a_report_tells_a_quantile_and_compares_it_with_the_labels_quantile(tmp_path: Path):
    config = parse_config(of_tables(tmp_path, AMOUNTS["pinball"], "regression"))
    summary = train_run(config, tmp_path / "run")
    assert summary["constant"].keys() == {"pinball_loss"}
    assert (summary["metric"], "coverage" in summary["test_metrics"]) == ("pinball_loss", True)
    subject = load_runs([tmp_path / "run"], tmp_path)
    (against,) = [each for each in tables(subject) if each.title == "Against a constant"]
    assert against.rows[0][1] == "pinball loss"
    assert "of the values are at or below the predicted quantile" in against.caption
    line = worse_than_constant(summary)
    assert line.startswith("no better than a constant: pinball loss")
    assert f"run: {line}." in against.caption


@pytest.mark.parametrize(("kind", "wanted"), [("squared", np.mean), ("absolute", np.median), ("pinball", None)])
def test_the_label_owner_without_features_alone_is_the_constant_of_the_loss(tmp_path: Path, kind: str, wanted: Any):
    sections = of_tables(tmp_path, AMOUNTS[kind], "regression")
    bank = tmp_path / "bank.csv"
    config = decide_parties(parse_config(with_clerk(sections, write_labels(tmp_path, bank))))
    source = open_source(config)
    assert isinstance(source, Tables)
    labels = split_samples(source).labels
    told = predicted_alone(config, source, tmp_path / "alone", None, labels, Console(quiet=True))
    values = np.sort(labels.train.values.numpy())
    own = float(told[0, 0])
    assert told.shape == (len(labels.test.values), 1)
    if kind == "pinball":
        assert np.mean(values <= own) >= 0.9 > np.mean(values < own)
    else:
        assert own == pytest.approx(wanted(values), abs=2)


@pytest.mark.filterwarnings("ignore:no better than a constant")
def test_estimators_take_a_loss_by_name_also_where_they_begin_with_another():
    quick: dict[str, Any] = {"rounds": 1, "random_state": 0, "settings": {"threads": 1}}
    focal = vfl.VerticalClassifier(loss="focal", **quick).fit({"a": X}, Y, sample_weight=1.0 + Y)
    assert focal.run_.vertical.training.loss == FocalLoss(kind="focal")
    plain = vfl.VerticalRegressor(**quick).fit({"a": X}, AMOUNT)
    pinball = {"kind": "pinball", "quantile": 0.9}
    upper = vfl.VerticalRegressor(loss=pinball, **quick).fit({"a": X}, AMOUNT, start_from=plain)
    assert upper.run_.summary["metric"] == "pinball_loss"
    assert upper.predict({"a": X}).mean() > plain.predict({"a": X}).mean()


def test_hubers_delta_counts_deviations_of_the_labels_at_hand_after_a_warm_start():
    kept = task_state(of_amounts(AMOUNTS["huber"], torch.tensor([0.0, 1.0, 2.0])))
    values = torch.tensor([0.0, 100.0, 1000.0, 300.0])
    fresh, warm = of_amounts(AMOUNTS["huber"], values), with_scale(of_amounts(AMOUNTS["huber"], values), kept)
    told = torch.tensor([[50.0], [120.0], [10.0], [290.0]]).double()
    assert warm.metrics(told, values) == pytest.approx(fresh.metrics(told, values))
    assert float(warm.best_constant(values)) == pytest.approx(float(fresh.best_constant(values)))
