"""Replacement of the pruner for a model that cannot be pruned; it trains whole, with alpha = 0."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vfl.base.errors import one_line, with_type
from vfl.base.random import seeded
from vfl.compression.pruning import PruningState, StructuredPruner
from vfl.compression.refit import Refit
from vfl.compression.shrink import PrunableOptimizer
from vfl.config import OptimizerConfig
from vfl.config.lightweighting import PruningConfig
from vfl.runs.optim import MakeOptimizer, build_optimizer

TRIAL_ALPHA = 0.5
"""Ratio to which a copy is pruned to try an optimizer."""


class Unprunable:
    """Keeps the reason why a model cannot be pruned, and raises it when asked to prune."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.original_widths: dict[str, int] = {}
        self.alpha_max = 0.0

    def widths(self) -> dict[str, int]:
        """Return no layers: none is prunable."""
        return {}

    def prune_to(self, alpha: float, optimizer: PrunableOptimizer | None = None, refit: Refit | None = None) -> bool:
        """Raise ValueError for any alpha above 0."""
        if alpha > 0:
            raise ValueError(f"lightweighting.alpha: {alpha:g} is not possible, set it to 0: {self.reason}")
        return False

    def state_dict(self) -> PruningState:
        """Return the state of an unpruned model."""
        return {"alpha_max": 0.0, "history": []}

    def load_state_dict(self, state: Mapping[str, Any], optimizer: PrunableOptimizer | None = None) -> None:
        """Raise ValueError for a state of a pruned model."""
        self.prune_to(float(state["alpha_max"]))


Pruner = StructuredPruner | Unprunable


def build_pruner(
    model: nn.Module,
    example: Sequence[Tensor],
    settings: PruningConfig,
    planned: float,
    optimizer: MakeOptimizer | None = None,
) -> Pruner:
    """Return the pruner of a feature model whose arguments are like ``example``.

    ``optimizer`` makes a user's own optimizer, which must go on after a pruning; None if there is none, or nothing to
    prune. Raises ValueError if the model cannot be pruned and ``planned``, the largest configured alpha, is above 0.
    """
    try:
        pruner = StructuredPruner(model, example, round_to=settings.round_to, importance=settings.importance)
        if optimizer is not None:
            _try_optimizer(model, pruner, optimizer)
        return pruner
    except ValueError as error:
        # Refused at once, and not in the round that would have pruned.
        unprunable = Unprunable(str(error))
        unprunable.prune_to(planned)
        return unprunable


def _try_optimizer(model: nn.Module, pruner: StructuredPruner, make: MakeOptimizer) -> None:
    """Raise ValueError unless an optimizer steps before and after a pruning; a copy of the model is tried."""
    model, pruner = copy.deepcopy((model, pruner))
    try:
        with seeded(0, "trial"):  # an optimizer may draw
            optimizer = build_optimizer(model, OptimizerConfig(), make)
            # Many make their state at the first step; only then does it show whether it can be shrunk.
            for _ in range(2):
                for parameter in model.parameters():
                    parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
                optimizer.step()
                pruner.prune_to(TRIAL_ALPHA, optimizer)
    except Exception as error:  # a user's optimizer may fail in any way
        told = one_line(error) if isinstance(error, ValueError) else f"optimizer: {with_type(error)}"
        raise ValueError(f"{told}; another optimizer, such as AdamW, can be pruned with its state") from error
