"""What is predicted: losses and default metrics by task, and metrics against scikit-learn's."""

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from sklearn import metrics as library

from vfl.base.metrics import decision_line, headline, is_better, points_lost, worse_than_constant
from vfl.config import parse_config
from vfl.core.tasks import Classification, measure, task_of, task_state

metrics: Any = library
LABELS = torch.tensor([0, 1, 1, 1])


def experiment(**sections):
    return parse_config({"name": "x", **sections})


def calibration_by_hand(told, true):
    """Mean over ten bins, by their share of the samples, of |mean probability - share that came true|."""
    bins = [min(int(each * 10), 9) for each in told.tolist()]
    total = 0.0
    for each in set(bins):
        rows = torch.tensor([place for place, own in enumerate(bins) if own == each])
        total += len(rows) / len(bins) * abs(float(told[rows].mean() - true[rows].double().mean()))
    return total


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12)), min_size=2, max_size=40), st.floats(0.1, 0.9))
def test_two_class_metrics_are_those_of_scikit_learn_also_with_tied_scores(rows, threshold):
    labels = torch.tensor([0, 1, *(label for label, _ in rows)])
    scores = torch.tensor([3, 7, *(score for _, score in rows)], dtype=torch.float32) / 13 + 0.02
    probabilities = torch.stack([1 - scores, scores], dim=1)
    found = Classification(2, threshold=threshold).metrics(probabilities, labels)
    positive, negative = scores[labels == 1], scores[labels == 0]
    ks = max(float(((negative <= s).double().mean() - (positive <= s).double().mean()).abs()) for s in scores)
    predicted = scores.double().numpy() >= threshold
    expected = {
        "auc": metrics.roc_auc_score(labels, scores),
        "average_precision": metrics.average_precision_score(labels, scores),
        "ks": ks,
        "log_loss": metrics.log_loss(labels, scores.double()),
        "calibration_error": calibration_by_hand(scores.double(), labels),
        "f1": metrics.f1_score(labels, predicted, zero_division=0.0),
        "precision": metrics.precision_score(labels, predicted, zero_division=0.0),
        "recall": metrics.recall_score(labels, predicted, zero_division=0.0),
        "accuracy": metrics.accuracy_score(labels, predicted),
    }
    assert found == pytest.approx(expected, abs=1e-9)
    assert Classification(2, threshold=threshold).predicted(probabilities).tolist() == predicted.tolist()


@pytest.mark.parametrize("label", [0, 1])
def test_two_class_metrics_of_one_class_alone_say_so(label):
    scores, labels = torch.tensor([0.2, 0.7, 0.7]), torch.full((3,), label)
    with pytest.warns(UserWarning, match="one class"):
        found = Classification(2).metrics(torch.stack([1 - scores, scores], dim=1), labels)
    assert math.isnan(found["auc"])
    assert math.isnan(found["ks"])
    assert found["average_precision"] == pytest.approx(label)
    assert found["log_loss"] == pytest.approx(metrics.log_loss(labels, scores.double(), labels=[0, 1]))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_metrics_of_more_classes_are_those_of_scikit_learn(rows):
    labels, predicted = torch.tensor(rows).T
    told = 0.9 * F.one_hot(predicted, 5).double() + 0.02
    found = Classification(5).metrics(told, labels)
    expected = {
        "accuracy": metrics.accuracy_score(labels, predicted),
        "macro_f1": metrics.f1_score(labels, predicted, average="macro", zero_division=0.0),
        "log_loss": metrics.log_loss(labels, told, labels=range(5)),
        "calibration_error": calibration_by_hand(told.max(dim=1).values, labels == predicted),
    }
    assert found == pytest.approx(expected)


@given(st.lists(st.tuples(st.floats(-9, 9, width=32), st.floats(-9, 9, width=32)), min_size=2, max_size=30))
def test_a_regression_is_measured_in_the_labels_unit(rows):
    values, wanted = torch.tensor([*rows, (1.0, -3.0)]).T
    task = task_of(experiment(task="regression"), (), torch.tensor([10.0, 20.0, 60.0]))
    outputs = (values[:, None] - 30) / (1400 / 3) ** 0.5
    found = task.metrics(task.predictions(outputs), wanted)
    expected = {
        "rmse": metrics.root_mean_squared_error(wanted, values),
        "mae": metrics.mean_absolute_error(wanted, values),
        "r2": metrics.r2_score(wanted.double(), values.double()),
    }
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert float(task.loss(outputs, wanted)) == pytest.approx(expected["rmse"] ** 2 / (1400 / 3), rel=1e-3, abs=1e-4)


def test_class_weights_balance_the_loss_by_the_training_samples():
    task = task_of(experiment(training={"class_weights": "balanced"}), ("no", "yes"), LABELS)
    assert isinstance(task, Classification)
    assert task.weights == (2.0, 4 / 6)
    outputs = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    expected = F.cross_entropy(outputs, LABELS, torch.tensor([2.0, 4 / 6]))
    assert torch.equal(task.loss(outputs, LABELS), expected)
    named = task_of(experiment(training={"class_weights": {"yes": 3.0}}), ("no", "yes"), LABELS)
    assert isinstance(named, Classification)
    assert named.weights == (1.0, 3.0)


@pytest.mark.parametrize(
    ("sections", "classes", "line"),
    [
        ({"training": {"class_weights": {"maybe": 2}}}, ("no", "yes"), ("training.class_weights", "'maybe'")),
        ({"training": {"class_weights": "balanced"}}, ("no", "yes", "never"), ("training.class_weights", "'never'")),
        ({"evaluation": {"metric": "auc"}}, ("a", "b", "c"), ("evaluation.metric", "macro_f1")),
        ({"evaluation": {"decision": {"fp": 1}}}, ("no", "yes"), ("evaluation.decision", "20")),
        ({"evaluation": {"decision": {"fp": 1, "fn": 2}}}, ("a", "b", "c"), ("evaluation.decision", "classes")),
        ({"task": "regression"}, ("no", "yes"), ("task", "regression")),
    ],
)
def test_what_does_not_go_with_the_labels_is_one_line(sections, classes, line):
    with refused(*line):
        task_of(experiment(**sections), classes, LABELS)


KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "two classes": ({}, ("no", "yes")),
    "three classes, weighted": ({"training": {"class_weights": "balanced"}}, ("a", "b", "c")),
    "focal": ({"training": {"loss": {"kind": "focal"}, "label_smoothing": 0.1}}, ("a", "b", "c")),
    "amounts": ({"task": "regression"}, ()),
    "absolute": ({"task": "regression", "training": {"loss": {"kind": "absolute"}}}, ()),
    "huber": ({"task": "regression", "training": {"loss": {"kind": "huber"}}}, ()),
    "pinball": ({"task": "regression", "training": {"loss": {"kind": "pinball", "quantile": 0.8}}}, ()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_weight_two_counts_as_two_rows_in_loss_metrics_and_statistics(kind):
    sections, classes = KINDS[kind]
    stream = torch.Generator().manual_seed(1)
    outputs = torch.randn(12, max(1, len(classes)), generator=stream)
    labels = torch.arange(12) % len(classes) if classes else torch.randn(12, generator=stream).double()
    weights = torch.tensor([1.0, 2.0, 3.0, 1.0] * 3).double()
    rows = torch.arange(12).repeat_interleave(weights.long())
    weighted = task_of(experiment(**sections), classes, labels, weights)
    repeated = task_of(experiment(**sections), classes, labels[rows])
    for name, value in task_state(repeated).items():
        assert task_state(weighted)[name] == (pytest.approx(value) if name in ("mean", "std") else value), name
    close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-7)
    close(weighted.loss(outputs, labels, weights), repeated.loss(outputs[rows], labels[rows]))
    own, many = (
        measure(weighted, [outputs[:5], outputs[5:]], labels, weights),
        measure(repeated, [outputs[rows]], labels[rows]),
    )
    assert own.metrics == pytest.approx(many.metrics, rel=1e-6)
    tests = labels[:4], weights[:4], labels[rows][:7]
    assert weighted.constant(labels, weights, *tests[:2]) == pytest.approx(
        repeated.constant(labels[rows], None, tests[2], None)
    )
    found = weighted.decided(own.predictions_NC, labels, weights)
    assert found == repeated.decided(many.predictions_NC, labels[rows])


def test_costs_decide_by_their_own_threshold_and_tell_what_that_costs():
    task = task_of(experiment(evaluation={"decision": {"fp": 1, "fn": 4}}), ("no", "yes"), LABELS)
    yes = torch.tensor([0.1, 0.3, 0.25, 0.15, 0.9])
    found = task.decided(torch.stack([1 - yes, yes], dim=1), torch.tensor([0, 1, 0, 1, 1]))
    assert found["confusion"] == [[2, 0], [2, 1]]
    decision = found["decision"]
    assert (decision["threshold"], decision["confusion"]) == (0.2, [[1, 1], [1, 2]])
    assert decision["cost"] == pytest.approx((1 + 4) / 5)
    assert decision["cost_at_threshold"] == pytest.approx(8 / 5)
    assert decision["cost_of_one_class"] == pytest.approx(2 / 5)
    assert decision["recall"] == decision["precision"] == pytest.approx(2 / 3)
    assert "recall 66.67%" in decision_line(found)
    assert decision_line({}) == ""


def test_a_run_no_better_than_a_constant_says_so():
    run = {"metric": "auc", "test_metrics": {"auc": 0.8, "log_loss": 0.7}, "constant": {"log_loss": 0.6}}
    assert worse_than_constant(run).startswith("no better than a constant: log loss 0.7, that of")
    assert worse_than_constant(run | {"constant": {"log_loss": 0.71}}) == ""
    assert "mean is 3;" in worse_than_constant({"test_metrics": {"rmse": 3.0}, "constant": {"rmse": 3.0}})
    assert worse_than_constant({"test_accuracy": 0.5}) == ""


def test_a_headline_begins_with_the_metric_and_knows_older_summaries():
    two = {"metric": "auc", "test_metrics": {"accuracy": 0.5, "auc": 0.75, "f1": 0.1, "ks": 0.25}}
    assert headline(two) == "test AUC 0.7500, KS 0.2500, accuracy 50.00%"
    assert headline({"test_accuracy": 0.9123}) == "test accuracy 91.23%"
    assert is_better("rmse", 1.0, 2.0)
    assert is_better("auc", 0.8, 0.7)
    assert not is_better("auc", 0.7, 0.7)


def test_points_lost_are_of_shares_and_of_errors_percent_also_of_no_error():
    assert points_lost("auc", 0.7, 0.8) == pytest.approx(10.0)
    assert points_lost("rmse", 1.1, 1.0) == pytest.approx(10.0)
    assert points_lost("mae", 0.0, 0.0) == 0.0
    assert points_lost("mae", 0.1, 0.0) == float("inf")
