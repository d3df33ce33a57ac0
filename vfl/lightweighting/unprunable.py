"""Replacement of the pruner for a model that cannot be pruned; it trains whole, with alpha = 0."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from vfl.config.lightweighting import PruningConfig
from vfl.lightweighting.pruning import PruningState, StructuredPruner
from vfl.lightweighting.shrink import PrunableOptimizer


class Unprunable:
    """Keeps the reason why a model cannot be pruned, and raises it when asked to prune."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.original_widths: dict[str, int] = {}
        self.alpha_max = 0.0

    def widths(self) -> dict[str, int]:
        """Return no layers: none is prunable."""
        return {}

    def prune_to(self, alpha: float, optimizer: PrunableOptimizer | None = None) -> bool:
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


def build_pruner(model: nn.Module, example: Sequence[Tensor], settings: PruningConfig, planned: float) -> Pruner:
    """Return the pruner of a feature model whose arguments are like ``example``.

    Raises ValueError if the model cannot be pruned and ``planned``, the largest configured alpha, is above 0.
    """
    try:
        return StructuredPruner(model, example, round_to=settings.round_to, importance=settings.importance)
    except ValueError as error:
        # Refused at once, and not in the round that would have pruned.
        unprunable = Unprunable(str(error))
        unprunable.prune_to(planned)
        return unprunable
