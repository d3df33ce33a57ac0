"""A party's pruner: examines the model when a pruning is asked for, and says who cannot be pruned and why."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vfl.base.errors import one_line, with_type
from vfl.base.macs import count_macs, count_parameters, skipped_macs
from vfl.base.modules import copy_model
from vfl.base.random import seeded
from vfl.compression.pruning import StructuredPruner
from vfl.compression.refit import Refit
from vfl.compression.shrink import PrunableOptimizer
from vfl.config import OptimizerConfig
from vfl.config.lightweighting import PruningConfig
from vfl.messages.control import Prices
from vfl.runs.optim import MakeOptimizer, build_optimizer

TRIAL_ALPHA = 0.5


class PartyPruner(StructuredPruner):
    """Prunes the model of the party ``name``, whose arguments are like ``example``.

    To examine a model takes seconds and memory, so nothing is done before a pruning, or ``can_prune``, is asked for.
    A model that cannot be pruned has no widths and trains unpruned.
    """

    def __init__(self, name: str, model: nn.Module, example: Sequence[Tensor], settings: PruningConfig) -> None:
        self.name, self.refits = name, settings.refit
        self._examined, self._reason = False, ""
        """Fault for which the model cannot be pruned."""
        super().__init__(model, example, round_to=settings.round_to, importance=settings.importance)

    def _examine(self) -> None:
        """Wait for ``can_prune``."""

    def prepare(self, planned: float, optimizer: MakeOptimizer | None = None) -> None:
        """Examine the model now, rather than in the round that would have pruned.

        ``optimizer`` makes a user's own optimizer, which must go on after a pruning; None if there is none. Raises
        ValueError if the model cannot be pruned and ``planned``, the largest configured alpha, is above 0.
        """
        if self.can_prune() and optimizer is not None:
            try:
                _try_optimizer(self._model, self, optimizer)
            except ValueError as error:
                self._reset()
                self._reason = str(error)
        self._refuse(planned)

    def can_prune(self) -> bool:
        """Examine the model, if nobody has, and return whether anything of it can be pruned."""
        if not self._examined:
            self._examined = True
            try:
                super()._examine()
            except ValueError as error:
                self._reason = str(error)
        return not self._reason

    def prune_to(self, alpha: float, optimizer: PrunableOptimizer | None = None, refit: Refit | None = None) -> bool:
        """Prune as ``StructuredPruner``. Raises ValueError for any alpha above 0 if the model cannot be pruned."""
        if alpha <= self.alpha_max:
            return False
        if not self.can_prune():
            self._refuse(alpha)
        return super().prune_to(alpha, optimizer, refit)

    def load_state_dict(self, state: Mapping[str, Any], optimizer: PrunableOptimizer | None = None) -> None:
        """Repeat the prunings of a state. Raises ValueError if this model cannot be pruned so."""
        if (reached := float(state["alpha_max"])) > 0:
            self.can_prune()
            self._refuse(reached)
            super().load_state_dict(state, optimizer)

    def _refuse(self, alpha: float) -> None:
        if alpha > 0 and self._reason:
            raise ValueError(
                f"lightweighting.alpha: {alpha:g} is not possible for {self.name}, set it to 0: {self._reason}; "
                f"other parties keep theirs by name, as alpha: {{OTHER: {alpha:g}}}"
            )


def _try_optimizer(model: nn.Module, pruner: PartyPruner, make: MakeOptimizer) -> None:
    """Raise ValueError unless an optimizer steps before and after a pruning; a copy of the model is tried."""
    model, pruner = copy_model((model, pruner))
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


def model_costs(
    model: nn.Module,
    pruner: PartyPruner,
    example: tuple[Tensor, ...],
    smaller: Sequence[tuple[Tensor, ...]],
    alphas: Sequence[float],
) -> Prices:
    """Return the cost of a party's model at each of some ascending ratios, by pruning a copy of it.

    ``example`` is a batch of one sample, ``smaller`` the same at each resolution asked about.
    """
    prunable = any(alphas) and pruner.can_prune()
    # One copy for all ratios: they ascend, and pruned filters never return. In one call, so that the pruner's model is
    # the copy.
    model, pruner = copy_model((model, pruner))
    macs: list[list[int]] = []
    skipped: list[list[int]] = []
    parameters: list[int] = []
    for alpha in alphas:
        if prunable:
            pruner.prune_to(alpha)
        macs.append([count_macs(model, *each) for each in (example, *smaller)])
        skipped.append([skipped_macs(model, *each) for each in (example, *smaller)])
        parameters.append(count_parameters(model))
    whole, *others = zip(*macs, strict=True) if macs else ((),)
    return Prices(
        macs_per_sample=whole,
        parameters=tuple(parameters),
        smaller=tuple(others) or None,
        skipped=tuple(zip(*skipped, strict=True)) if any(map(any, skipped)) else None,
    )
