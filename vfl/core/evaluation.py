"""Evaluations of a split model in training: after a round, around a pruning, and for every set of parties."""

import math
from dataclasses import dataclass, field
from typing import Any

from vfl.base.metrics import AND, subsets_of
from vfl.core.joint_model import JointModel
from vfl.data.drift import Histograms
from vfl.messages.control import EvaluatedModel
from vfl.runs.checkpoint import State
from vfl.runs.loop import Metrics


@dataclass(eq=False)
class Evaluation:
    """Tests the joint model, and keeps the results of the parties' present models."""

    joint: JointModel
    tested: Metrics | None = field(default=None, init=False)
    """Metrics of the parties' current models; None if the models have changed since."""
    subsets: dict[str, Metrics] = field(default_factory=dict[str, Metrics], init=False)
    """Metrics of each set of parties in the last test, by their names."""
    alone: dict[str, Metrics] = field(default_factory=dict[str, Metrics], init=False)
    """Metrics of each party's own classifier in the last test, where its rows define them."""
    decided: State = field(default_factory=dict[str, Any], init=False)
    """Confusion matrix and decision by costs of the last test."""
    scores: Histograms | None = field(default=None, init=False)
    """Predictions of the last test, with which later ones can be compared."""

    def __post_init__(self) -> None:
        self.settings = self.joint.config.evaluation

    @property
    def metric(self) -> str:
        """The metric by which models are compared."""
        return self.joint.task.metric

    def test(self) -> Metrics:
        """Return metrics and mean loss on all test samples, with the parties' finished models."""
        self.tested = self._test("finished", "test")
        return self.tested

    def test_pruning(self) -> Metrics:
        """Return the same just before a pruning, and just after it without a step."""
        before = self.tested or self._test("finished", "test")
        named = {tag.replace("/test", "/test_before_pruning"): value for tag, value in before.items()}
        return named | self._test("pruned", "test_after_pruning")

    def forget(self) -> None:
        """Discard the test, as the parties' models change."""
        self.tested = None

    def reached(self) -> Metrics | None:
        """Return the metric of the last test, to be sent to the parties."""
        return None if self.tested is None else {self.metric: self.tested[f"{self.metric}/test"]}

    def state_dict(self) -> State:
        """Return the last results."""
        scores = {} if self.scores is None else {"scores": self.scores.state_dict()}
        alone = {"alone": self.alone} if self.alone else {}
        return {"tested": self.tested, "subsets": self.subsets, **alone, "decided": self.decided, **scores}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        self.tested, self.subsets = state["tested"], state["subsets"] if self.settings.subsets else {}
        self.alone, self.decided = state.get("alone", {}), state.get("decided", {})
        self.scores = Histograms.of_state(state["scores"]) if "scores" in state else None

    def _test(self, model: EvaluatedModel, name: str) -> Metrics:
        """Return metrics and mean loss of all test samples under ``name``, with each party's model of a kind."""
        everyone = self.joint.names
        sets = subsets_of(everyone) if self.settings.subsets and name == "test" else [everyone]
        tested, alone = self.joint.measure(model, sets)
        tests = dict(zip(sets, tested, strict=True))
        if name == "test":
            task, samples, predictions_MC = self.joint.task, self.joint.samples, tests[everyone].predictions_NC
            self.scores = Histograms(*task.as_columns(predictions_MC))
            weights_M = None if samples.weights is None else samples.weights.cpu()
            self.decided = task.decided(predictions_MC.cpu(), samples.values.cpu(), weights_M)
        measured = {names: each.metrics for names, each in tests.items()}
        tagged = {f"{metric}/{name}": value for metric, value in measured[everyone].items()}
        if name == "test":
            # On the rows of one class a metric may be undefined: the AUC is.
            defined = {
                party: {metric: value for metric, value in each.metrics.items() if math.isfinite(value)}
                for party, each in alone.items()
            }
            self.alone = {party: metrics for party, metrics in defined.items() if self.metric in metrics}
            tagged |= {f"{self.metric}_alone/{party}": metrics[self.metric] for party, metrics in self.alone.items()}
        if len(sets) == 1:
            return tagged
        self.subsets = {AND.join(names): metrics for names, metrics in measured.items()}
        return tagged | {f"{self.metric}_of/{names}": metrics[self.metric] for names, metrics in self.subsets.items()}
