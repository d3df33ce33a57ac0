"""Train prunings that the product does not have: python -m scripts.lab.frontier.variants ROWS [key=value ...].

variants.yaml declares the protocol. ROWS, a CSV file, gets a line per run; runs that it has are not repeated.

Shapes: N training samples, n samples of a batch, D embedding width.
"""

import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vfl
import vfl.core.build
import vfl.core.party
from scripts.lab.frontier.rows import run_protocol
from vfl.base.macs import count_macs
from vfl.compression.dependency import Shadow
from vfl.compression.pruning import StructuredPruner
from vfl.compression.refit import Refit
from vfl.compression.shrink import PrunableOptimizer
from vfl.config.files import parse_overrides, read_yaml
from vfl.config.lightweighting import PruningConfig
from vfl.core.party import FeatureParty
from vfl.core.privacy.defences import NoDefence
from vfl.messages.messages import Message

PROTOCOL = Path(__file__).with_name("variants.yaml")
FLOOR = 0.2
"""Least share of a layer's channels that one threshold over all layers leaves."""
SPARSITY = 0.005
"""Weight of sparse learning's penalty, the sum of the filters' L2 norms, until the pruning."""
DISTILLATION = 1.0
"""Weight of self-distillation, the squared distance from the embedding before the pruning over its mean square."""


class VariantPruner(StructuredPruner):
    """Prunes by another importance, or by one threshold over all layers."""

    taylor = False
    one_threshold = False
    gradients: Mapping[str, Tensor]
    """Sum over the exchanges of the last round of each parameter's gradient, by name."""

    def prune_to(self, alpha: float, optimizer: PrunableOptimizer | None = None, refit: Refit | None = None) -> bool:
        """Prune if alpha exceeds all earlier ones, as the product does."""
        if alpha <= self.alpha_max:
            return False
        scores = self._scores()
        uniform = {name: len(score) - self.target_widths(alpha)[name] for name, score in scores.items()}
        counts = self._by_one_threshold(scores, uniform) if self.one_threshold else uniform
        removed = {
            name: sorted(scores[name].argsort(stable=True)[:count].tolist()) for name, count in counts.items() if count
        }
        with Shadow(self._model, self._example) as shadow:
            self._remove(shadow, removed, optimizer, refit)
        self._history.append({"alpha": alpha, "removed": removed})
        self.alpha_max = alpha
        return True

    def _scores(self) -> dict[str, Tensor]:
        """Return the importance of every channel: the sum of |w| or, by Taylor's first order, |w dL/dw| of its filter.

        For one threshold the sums of |w| are divided by their layer's mean, as layers differ in scale.
        """
        scores: dict[str, Tensor] = {}
        for group in self._groups:
            scores[group.names[0]] = torch.zeros(group.width, dtype=torch.float64)
            for name in group.names:
                weight = self._model.get_parameter(f"{name}.weight").detach().double()
                terms = weight * self.gradients[f"{name}.weight"] if self.taylor else weight
                scores[group.names[0]] += terms.abs().flatten(1).sum(1)
        return scores if self.taylor else {name: score / score.mean() for name, score in scores.items()}

    def _by_one_threshold(self, scores: Mapping[str, Tensor], uniform: Mapping[str, int]) -> dict[str, int]:
        """Return how many channels of each layer lie below the lowest threshold that saves what uniform counts save."""
        goal = self._macs(uniform)
        ascending = torch.cat([*scores.values()]).sort().values
        low, high = 0, len(ascending)
        while low < high:
            middle = (low + high) // 2
            if self._macs(_below(scores, float(ascending[middle]))) <= goal:
                high = middle
            else:
                low = middle + 1
        return _below(scores, float(ascending[min(low, len(ascending) - 1)]))

    def _macs(self, counts: Mapping[str, int]) -> int:
        with Shadow(self._model, self._example) as shadow:
            shadow.remove({name: range(count) for name, count in counts.items() if count})
            return count_macs(shadow.model, *(each.double() for each in self._example))


def _below(scores: Mapping[str, Tensor], threshold: float) -> dict[str, int]:
    return {
        name: min(int((score <= threshold).sum()), len(score) - max(1, round(FLOOR * len(score))))
        for name, score in scores.items()
    }


class Distilling(NoDefence):
    """Adds self-distillation's gradient to the sent one."""

    target_nD: Tensor | None = None

    def gradient(self, inputs: Any, embedding_nD: Tensor, gradient_nD: Tensor) -> Tensor:
        """Return the sent gradient, with that of the distance from the targets if there are any."""
        if self.target_nD is None:
            return gradient_nD
        away_nD = embedding_nD.detach() - self.target_nD
        return gradient_nD + 2 * DISTILLATION * away_nD / self.target_nD.square().sum()


class VariantParty(FeatureParty):
    """Notes gradients, and trains sparse before the pruning or towards its earlier embeddings after it."""

    sparse = False
    distils = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sums: dict[str, Tensor] = {}
        self._targets_ND = torch.zeros(len(self.train), self.sender.receiver.width)
        self._take_step = self.optimizer.step
        self.optimizer.step = self._noted_step  # pyright: ignore[reportAttributeAccessIssue]  # overloads
        self._own_defence = Distilling()
        self.defence = self._own_defence

    def start_round(self, message: Message) -> None:
        """Start a round; hand the last one's gradients to the pruner."""
        super().start_round(message)
        if isinstance(self.pruner, VariantPruner):
            self.pruner.gradients = self._sums
        self._sums = {}

    def embed(self, exchange: int) -> bytes:
        """Embed a batch; note its embeddings as targets until the pruning."""
        frame = super().embed(exchange)
        forward = self.pending[-1].forward
        if self.pruner.alpha_max == 0 and exchange + self.round_index > 0 and forward is not None:
            self._targets_ND[self.batches[exchange]] = forward.embedding_nD.detach()
        return frame

    def update(self, message: Message) -> None:
        """Update, towards the targets from the pruning to half time."""
        rows_n = self.batches[self.pending[0].exchange]
        distilled = self.distils and self.alpha > 0 and self.round_index < self.config.training.rounds // 2
        self._own_defence.target_nD = self._targets_ND[rows_n] if distilled else None
        super().update(message)

    def _noted_step(self, closure: None = None) -> None:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is None:
                continue
            self._sums[name] = self._sums.get(name, 0) + parameter.grad.detach().clone()
            if self.sparse and self.alpha == 0 and parameter.dim() == 4:
                norms = parameter.detach().flatten(1).norm(dim=1).clamp(min=1e-12)
                parameter.grad += SPARSITY * parameter.detach() / norms.view(-1, 1, 1, 1)
        self._take_step()


def pruner_of(one_threshold: bool, taylor: bool) -> Any:
    """Return a function that builds parties' pruners."""

    def build(model: Any, example: Any, settings: PruningConfig, planned: float, *_: Any) -> VariantPruner:
        pruner = VariantPruner(model, example, round_to=settings.round_to)
        pruner.one_threshold, pruner.taylor = one_threshold, taylor
        return pruner

    return build


def train(base: str, settings: Mapping[str, Any], method: Mapping[str, Any]) -> dict[str, Any]:
    """Train a method; return its accuracy and costs."""
    ours, theirs = vfl.core.party.build_pruner, vfl.core.build.FeatureParty
    if method.get("pruning"):
        flags = method["pruning"]
        vfl.core.party.build_pruner = pruner_of("global" in flags, "taylor" in flags)
        party = type("Party", (VariantParty,), {"sparse": "sparse" in flags, "distils": "distilled" in flags})
        vfl.core.build.FeatureParty = party  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            run = vfl.train(base, {**settings, **method.get("settings", {})}, run_dir=Path(folder) / "run")
            summary = run.summary
            return {"test_accuracy": summary["test_accuracy"], "train_macs": summary["train_macs"]}
    finally:
        vfl.core.party.build_pruner, vfl.core.build.FeatureParty = ours, theirs


def main(path: Path, overrides: Sequence[str]) -> None:
    """Train all methods that the rows lack."""
    protocol: Any = read_yaml(PROTOCOL)
    protocol["settings"].update(parse_overrides(overrides))

    def train_one(method: Mapping[str, Any], seed: int) -> dict[str, Any]:
        return train(protocol["base"], {**protocol["settings"], "seed": seed}, method)

    run_protocol(protocol, path, train_one)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
