"""Tasks of the head: its loss, the meaning of its outputs, and the metrics of its predictions.

Shapes: B batch, N samples, C outputs of the head. A head of M members has outputs [B, M, C]: each member has its own
loss, and predictions are the means of theirs (Lakshminarayanan et al., NeurIPS 2017).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vfl.base.metrics import (
    MANY_CLASS_METRICS,
    REGRESSION_METRICS,
    TWO_CLASS_METRICS,
    confusion,
    many_class_metrics,
    regression_metrics,
    two_class_metrics,
)
from vfl.config import ConfigError, ExperimentConfig
from vfl.config.data import TABLE_KINDS
from vfl.config.experiment import ClassWeights
from vfl.config.optimizer import FocalLoss
from vfl.core.losses import METRIC_OF, SQUARED, AmountLoss, focal_losses
from vfl.data.drift import Floats, Ints
from vfl.runs.checkpoint import State
from vfl.runs.loop import finite

MOST_CONFUSED = 20
"""Most classes of a confusion matrix in a summary."""


@dataclass(frozen=True)
class Classification:
    """One of two or more classes, by cross-entropy or focal loss."""

    classes: int
    weights: tuple[float, ...] | None = None
    """Weight of each class in the loss; None weighs all samples alike."""
    threshold: float = 0.5
    """Two classes only: probability from which the second one is predicted, for F1 and accuracy."""
    metric: str = "accuracy"
    """Metric by which models are compared."""
    names: tuple[str, ...] = ()
    """Names of the classes."""
    smoothing: float = 0.0
    """Share of each label that is spread over all classes in training."""
    costs: tuple[float, float] | None = None
    """Two classes only: cost of a false positive and of a false negative, for `decided`."""
    gamma: float = 0.0
    """Exponent of the focal loss; 0 is cross-entropy."""

    @property
    def positive(self) -> str | None:
        """The class of two whose probability the metrics judge; None of more."""
        return self.names[1] if len(self.names) == 2 else None

    @property
    def outputs(self) -> int:
        """C, the width of the head's output: a score per class."""
        return self.classes

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics, which differ between two and more classes."""
        return TWO_CLASS_METRICS if self.classes == 2 else MANY_CLASS_METRICS

    def loss(self, outputs_BC: Tensor, labels_B: Tensor, weights_B: Tensor | None = None) -> Tensor:
        """Return the mean loss, weighted by class and by row if there are weights."""
        labels_B, weights_B = by_member(outputs_BC, labels_B, weights_B)
        outputs_BC = outputs_BC.flatten(0, -2)
        weights = None if self.weights is None else outputs_BC.new_tensor(self.weights)
        if weights_B is None and self.gamma == 0:
            return F.cross_entropy(outputs_BC, labels_B, weights, label_smoothing=self.smoothing)
        losses_B = self._losses(outputs_BC, labels_B, weights, self.smoothing)
        weights_B = torch.ones_like(losses_B) if weights_B is None else weights_B
        return mean_by_weight(losses_B, weights_B, weights_B if weights is None else weights_B * weights[labels_B])

    def test_loss(self, outputs_BC: Tensor, labels_B: Tensor, weights_B: Tensor | None = None) -> float:
        """Return the sum of the losses without smoothing and weights of classes, each times its row's weight."""
        if weights_B is None and self.gamma == 0:
            return float(F.cross_entropy(self.merged(outputs_BC), labels_B, reduction="sum"))
        losses_B = self._losses(self.merged(outputs_BC), labels_B).double()
        return float((losses_B if weights_B is None else losses_B * weights_B).sum())

    def _losses(
        self, outputs_BC: Tensor, labels_B: Tensor, weights_C: Tensor | None = None, smoothing: float = 0.0
    ) -> Tensor:
        if self.gamma:
            return focal_losses(outputs_BC, labels_B, self.gamma, weights_C, smoothing)
        return F.cross_entropy(outputs_BC, labels_B, weights_C, reduction="none", label_smoothing=smoothing)

    def predictions(self, outputs_NC: Tensor) -> Tensor:
        """Return the probabilities [N, C]."""
        return self.merged(outputs_NC).softmax(dim=1)

    def merged(self, outputs_BC: Tensor) -> Tensor:
        """Return scores [B, C] whose softmax is the mean of the members' probabilities."""
        if outputs_BC.dim() == 2:
            return outputs_BC
        return outputs_BC.log_softmax(dim=2).logsumexp(dim=1) - math.log(outputs_BC.shape[1])

    def predicted(self, predictions_NC: Tensor) -> Tensor:
        """Return the predicted classes [N]: of two the second one from the threshold on, of more the most probable."""
        if self.classes == 2:
            return (predictions_NC[:, 1].double() >= self.threshold).long()
        return predictions_NC.argmax(dim=1)

    def metrics(self, predictions_NC: Tensor, labels_N: Tensor, weights_N: Tensor | None = None) -> dict[str, float]:
        """Return accuracy, log loss and calibration and, for two classes, AUC and others; for more, macro F1."""
        if self.classes == 2:
            return two_class_metrics(predictions_NC[:, 1], labels_N, self.threshold, weights_N)
        return many_class_metrics(predictions_NC, labels_N, weights_N)

    def targets(self, labels_B: Tensor) -> Tensor:
        """Return the labels, which are class indices."""
        return labels_B

    def constant(
        self, labels_N: Tensor, weights_N: Tensor | None, tests_M: Tensor, weights_M: Tensor | None
    ) -> dict[str, float]:
        """Return the log loss of the training labels' class shares on the test labels."""
        told_MC = self.best_constant(labels_N, weights_N).expand(len(tests_M), -1)
        weights_M = None if weights_M is None else weights_M.cpu()
        return {"log_loss": many_class_metrics(told_MC, tests_M.cpu(), weights_M)["log_loss"]}

    def best_constant(self, labels_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        """Return the classes' shares [C] of the labels."""
        weights = torch.ones(len(labels_N)) if weights_N is None else weights_N
        shares_C = torch.bincount(labels_N.cpu(), weights.double().cpu(), minlength=self.classes)
        return shares_C / shares_C.sum()

    def decided(self, predictions_NC: Tensor, labels_N: Tensor, weights_N: Tensor | None = None) -> State:
        """Return the confusion matrix, class by predicted class, and with costs the one at the threshold they give.

        That threshold is fp / (fp + fn), the best one for probabilities that are right (Elkan, IJCAI 2001).
        """
        if self.classes > MOST_CONFUSED:
            return {}
        counts = confusion(self.predicted(predictions_NC), labels_N, self.classes, weights_N)
        values: State = {"confusion": _numbers(counts, weights_N)}
        if self.costs is None:
            return values
        false_positive, false_negative = self.costs
        threshold = false_positive / (false_positive + false_negative)
        chosen = (predictions_NC[:, 1].double() >= threshold).long()
        at = confusion(chosen, labels_N, 2, weights_N)

        def cost(matrix: Tensor) -> float:
            return float((false_positive * matrix[0, 1] + false_negative * matrix[1, 0]) / matrix.sum())

        values["decision"] = {
            "threshold": threshold,
            "cost": cost(at),
            "cost_at_threshold": cost(counts),
            "cost_of_one_class": min(false_positive * float(at[0].sum()), false_negative * float(at[1].sum()))
            / float(at.sum()),
            "precision": float(at[1, 1] / at[:, 1].sum()) if at[:, 1].sum() else 0.0,
            "recall": float(at[1, 1] / at[1].sum()) if at[1].sum() else 0.0,
            "confusion": _numbers(at, weights_N),
        }
        return values

    def as_columns(self, predictions_NC: Tensor) -> tuple[Floats, Ints]:
        """Return the column in which drift shows: the second of two classes' probability, or the class predicted."""
        if self.classes == 2:
            return predictions_NC[:, 1:].double().cpu().numpy(), np.zeros((len(predictions_NC), 0), np.int64)
        return np.zeros((len(predictions_NC), 0)), self.predicted(predictions_NC)[:, None].cpu().numpy()


@dataclass(frozen=True)
class Regression:
    """A number, by its squared error or another loss after the training labels are standardised."""

    mean: float
    std: float
    metric: str = "rmse"
    outputs: int = 1
    names: tuple[str, ...] = ()
    """Empty: there are no classes."""
    metric_names: tuple[str, ...] = REGRESSION_METRICS
    positive: None = None
    by: AmountLoss = SQUARED

    def loss(self, outputs_BC: Tensor, labels_B: Tensor, weights_B: Tensor | None = None) -> Tensor:
        """Return the mean loss of standardised labels."""
        labels_B, weights_B = by_member(outputs_BC, labels_B, weights_B)
        outputs_BC, wanted_B = outputs_BC.flatten(0, -2), self.targets(labels_B)
        if weights_B is None:
            return self.by.of(outputs_BC[:, 0], wanted_B, "mean")
        return mean_by_weight(self.by.of(outputs_BC[:, 0], wanted_B), weights_B, weights_B)

    def test_loss(self, outputs_BC: Tensor, labels_B: Tensor, weights_B: Tensor | None = None) -> float:
        """Return the sum of the losses, in the same unit, each times its row's weight."""
        merged_B, wanted_B = self.merged(outputs_BC)[:, 0], self.targets(labels_B)
        if weights_B is None:
            return float(self.by.of(merged_B, wanted_B, "sum"))
        return float((self.by.of(merged_B, wanted_B).double() * weights_B).sum())

    def predictions(self, outputs_NC: Tensor) -> Tensor:
        """Return values float64 [N, 1] in the labels' own unit."""
        return self.merged(outputs_NC).double() * self.std + self.mean

    def merged(self, outputs_BC: Tensor) -> Tensor:
        """Return the mean of the members' outputs, [B, 1]."""
        return outputs_BC if outputs_BC.dim() == 2 else outputs_BC.mean(dim=1)

    def predicted(self, predictions_NC: Tensor) -> Tensor:
        """Return the values [N]."""
        return predictions_NC[:, 0]

    def metrics(self, predictions_NC: Tensor, labels_N: Tensor, weights_N: Tensor | None = None) -> dict[str, float]:
        """Return RMSE, MAE and R^2, and the loss and coverage of a quantile, or Huber's loss."""
        told_N = predictions_NC[:, 0]
        metrics = regression_metrics(told_N, labels_N, weights_N)
        return metrics | self.by.metrics(told_N, labels_N, weights_N, self.std)

    def constant(
        self, labels_N: Tensor, weights_N: Tensor | None, tests_M: Tensor, weights_M: Tensor | None
    ) -> dict[str, float]:
        """Return the error on the test labels of the constant that is best for the training labels."""
        told_M1 = self.best_constant(labels_N, weights_N).expand(len(tests_M), 1)
        metric, weights_M = METRIC_OF[self.by.kind], None if weights_M is None else weights_M.cpu()
        return {metric: self.metrics(told_M1, tests_M.cpu(), weights_M)[metric]}

    def best_constant(self, labels_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        """Return the constant [1] of least loss for the labels: their mean, median or quantile."""
        return torch.tensor([self.by.constant(labels_N, weights_N, self.std)], dtype=torch.float64)

    def decided(self, predictions_NC: Tensor, labels_N: Tensor, weights_N: Tensor | None = None) -> State:
        """Return nothing: no class is decided on."""
        return {}

    def as_columns(self, predictions_NC: Tensor) -> tuple[Floats, Ints]:
        """Return the column that is watched for drift: the predicted value."""
        return predictions_NC.double().cpu().numpy(), np.zeros((len(predictions_NC), 0), np.int64)

    def targets(self, labels_B: Tensor) -> Tensor:
        """Return the standardised labels, which the outputs are to equal."""
        # In float64: at 1e9 float32 steps by 64.
        return ((labels_B.double() - self.mean) / self.std).float()


def _numbers(counts_CC: Tensor, weights_N: Tensor | None) -> list[list[float]]:
    kind = int if weights_N is None else float
    return [[kind(count) for count in row] for row in counts_CC]


def by_member(outputs_BC: Tensor, labels_B: Tensor, weights_B: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return labels and weights for the outputs of all members, [B, M, C]; of one head's, [B, C], as they are."""
    if outputs_BC.dim() == 2:
        return labels_B, weights_B
    members = outputs_BC.shape[1]
    if weights_B is not None:
        weights_B = weights_B.repeat_interleave(members, dim=0)
    return labels_B.repeat_interleave(members, dim=0), weights_B


def mean_by_weight(losses_B: Tensor, weights_B: Tensor, total_B: Tensor) -> Tensor:
    """Return the sum of weighted losses by that of ``total_B``: a row of weight 2 counts as two rows."""
    weights_B = weights_B.to(losses_B.dtype)
    return (weights_B * losses_B).sum() / total_B.to(losses_B.dtype).sum()


Task = Classification | Regression
"""Task of the head."""


def task_state(task: Task) -> State:
    """Return the meaning of a trained head's outputs, for a checkpoint; ``restored_task`` is the inverse."""
    values = asdict(task).items()
    return {key: list(cast(Any, value)) if isinstance(value, tuple) else value for key, value in values}


def restored_task(state: State) -> Task:
    """Return the task described by a ``task_state``."""
    values: State = {key: tuple(cast(Any, each)) if isinstance(each, list) else each for key, each in state.items()}
    if "by" in values:
        values["by"] = AmountLoss(**values["by"])
    return Classification(**values) if "classes" in values else Regression(**values)


class Tested(NamedTuple):
    """Metrics of samples, mean loss among them, and their predictions [N, C]."""

    metrics: dict[str, float]
    predictions_NC: Tensor


def measure(task: Task, outputs: Sequence[Tensor], labels_N: Tensor, weights_N: Tensor | None = None) -> Tested:
    """Return metrics and predictions of the head's outputs, in batches [B, C]. Raises Diverged if not finite."""
    # By batch, each loss added in float64: one call over all samples would add them in float32.
    sizes = [len(outputs_BC) for outputs_BC in outputs]
    weights = [None] * len(sizes) if weights_N is None else torch.split(weights_N, sizes)
    batches = zip(outputs, torch.split(labels_N, sizes), weights, strict=True)
    loss_sum = sum(task.test_loss(*batch) for batch in batches)
    predictions_NC = task.predictions(torch.cat(list(outputs)))
    metrics = task.metrics(predictions_NC, labels_N, weights_N)
    total = len(labels_N) if weights_N is None else float(weights_N.sum())
    return Tested(metrics | {"loss": finite(loss_sum / total, "the test loss")}, predictions_NC)


def _regression(config: ExperimentConfig, train_labels_N: Tensor, weights_N: Tensor | None) -> Regression:
    if not train_labels_N.is_floating_point():
        raise ValueError("task: regression needs labels that are values; these are classes, use task=classification")
    mean, std = mean_and_std(train_labels_N, weights_N)
    if std == 0:
        raise ValueError(f"the label is {mean:g} in all training samples: there is nothing to learn")
    loss = config.training.loss
    by = SQUARED if loss is None else AmountLoss(**loss.model_dump())
    own = METRIC_OF[by.kind]
    names = (*REGRESSION_METRICS, own) if own not in REGRESSION_METRICS else REGRESSION_METRICS
    return Regression(mean, std, config.evaluation.metric or own, metric_names=names, by=by)


def mean_and_std(labels_N: Tensor, weights_N: Tensor | None) -> tuple[float, float]:
    """Return mean and standard deviation of amounts, by their weights if there are any."""
    labels = labels_N.double()
    if weights_N is None:
        # Divided by N: a single sample has the deviation 0, instead of NaN.
        return float(labels.mean()), float(labels.std(correction=0))
    weights = weights_N.double().to(labels.device) / weights_N.double().sum()
    mean = float((weights * labels).sum())
    return mean, float((weights * (labels - mean).square()).sum().sqrt())


def with_scale(task: Task, kept: State) -> Task:
    """Return a task whose outputs mean what those of another run do, given its ``task_state``."""
    if not isinstance(task, Regression):
        return task
    by = task.by
    if by.kind == "huber":  # stays in standard deviations of these labels
        by = replace(by, delta=by.delta * task.std / kept["std"])
    return replace(task, mean=kept["mean"], std=kept["std"], by=by)


def check_tested(task: Task, tested_M: Tensor) -> None:
    """Raise ConfigError if only one of two classes is tested: then there is no AUC, and no round has a score."""
    if isinstance(task, Classification) and task.classes == 2 and bool((tested_M == tested_M[0]).all()):
        only = task.names[int(tested_M[0])]
        raise ConfigError(f"labels: all {len(tested_M)} test samples are of class {only!r}; test some of both classes")


def task_of(
    config: ExperimentConfig, classes: tuple[str, ...], train_labels_N: Tensor, weights_N: Tensor | None = None
) -> Task:
    """Return an experiment's task, given the names of the classes (empty: values), training labels and their weights.

    Raises ValueError, naming the field, for labels or settings that do not fit it.
    """
    chosen = config.evaluation.metric
    if config.task == "regression":
        task: Task = _regression(config, train_labels_N, weights_N)
    else:
        of_table, loss = config.data.dataset.kind in TABLE_KINDS, config.training.loss
        task = Classification(
            len(classes),
            _class_weights(config.training.class_weights, classes, train_labels_N, weights_N),
            config.evaluation.threshold,
            chosen or ("auc" if of_table and len(classes) == 2 else "accuracy"),
            classes,
            config.training.label_smoothing,
            _costs(config, classes),
            loss.gamma if isinstance(loss, FocalLoss) else 0.0,
        )
    if chosen is not None and chosen not in task.metric_names:
        raise ValueError(f"evaluation.metric: {chosen} is not a metric of this task: {', '.join(task.metric_names)}")
    return task


def _costs(config: ExperimentConfig, classes: tuple[str, ...]) -> tuple[float, float] | None:
    costs = config.evaluation.decision
    if costs is not None and len(classes) != 2:
        raise ValueError(f"evaluation.decision: is for two classes, and there are {len(classes)}; leave it out")
    return None if costs is None else (costs["fp"], costs["fn"])


def _class_weights(
    wanted: ClassWeights | None, classes: tuple[str, ...], train_labels_N: Tensor, weights_N: Tensor | None = None
) -> tuple[float, ...] | None:
    """Return a weight per class: as given (default 1), or "balanced", N / (C x samples of the class), by row weights.

    Raises ValueError for a class that is unknown, or has no training sample to be balanced by.
    """
    if wanted is None:
        return None
    if wanted == "balanced":
        # Without the minimum, last classes that have no samples would have no count.
        counts = torch.bincount(train_labels_N, minlength=len(classes))
        if not bool(counts.all()):
            missing = classes[int((counts == 0).nonzero()[0])]
            raise ValueError(f"training.class_weights: balanced needs training samples of class {missing!r}")
        if weights_N is not None:
            counts = torch.bincount(train_labels_N, weights_N.double(), minlength=len(classes))
        total = len(train_labels_N) if weights_N is None else float(counts.sum())
        return tuple(total / (len(classes) * float(count)) for count in counts)
    if unknown := [name for name in wanted if name not in classes]:
        raise ValueError(f"training.class_weights: unknown class {unknown[0]!r}; known: {', '.join(classes)}")
    return tuple(float(wanted.get(name, 1.0)) for name in classes)
