"""What is predicted: losses and default metrics by task, and metrics against scikit-learn's."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as library

from vfl.base.metrics import headline, is_better, points_lost
from vfl.config import parse_config
from vfl.core.tasks import Classification, task_of

metrics: Any = library
LABELS = torch.tensor([0, 1, 1, 1])


def experiment(**sections):
    return parse_config({"name": "x", **sections})


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
        "f1": metrics.f1_score(labels, predicted, zero_division=0.0),
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
    found = Classification(5).metrics(F.one_hot(predicted, 5).float(), labels)
    expected = {
        "accuracy": metrics.accuracy_score(labels, predicted),
        "macro_f1": metrics.f1_score(labels, predicted, average="macro", zero_division=0.0),
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
        ({"training": {"class_weights": {"maybe": 2}}}, ("no", "yes"), "unknown class 'maybe'; known: no, yes"),
        (
            {"training": {"class_weights": "balanced"}},
            ("no", "yes", "never"),
            "needs training samples of class 'never'",
        ),
        ({"evaluation": {"metric": "auc"}}, ("a", "b", "c"), "auc is not a metric of this task: accuracy, macro_f1"),
        ({"task": "regression"}, ("no", "yes"), "task: regression needs labels that are values"),
    ],
)
def test_what_does_not_go_with_the_labels_is_one_line(sections, classes, line):
    with pytest.raises(ValueError, match=line):
        task_of(experiment(**sections), classes, LABELS)


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
