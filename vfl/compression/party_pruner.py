"""A party's pruner: examines the model when a pruning is asked for, and says who cannot be pruned and why."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vfl.base.errors import one_line, with_type
from vfl.base.macs import count_macs, count_parameters, skipped_macs
from vfl.base.modules import copy_model
from vfl.base.random import seeded
from vfl.compression.pruning import PruningState, StructuredPruner
from vfl.compression.refit import Refit
from vfl.compression.shrink import PrunableOptimizer
from vfl.config import OptimizerConfig
from vfl.config.lightweighting import PruningConfig
from vfl.messages.control import Prices
from vfl.runs.optim import MakeOptimizer, build_optimizer

TRIAL_ALPHA = 0.5


class PartyPruner:
    """Prunes the model of the party ``name``, whose arguments are like ``example``.

    To examine a model takes seconds and memory, so nothing is done before a pruning, or ``can_prune``, is asked for.
    A model that cannot be pruned has no widths and trains unpruned.
    """

    def __init__(self, name: str, model: nn.Module, example: Sequence[Tensor], settings: PruningConfig) -> None:
        self.name = name
        self._model = model
        self._example = example
        self._settings, self.refits = settings, settings.refit
        self._pruner: StructuredPruner | None = None
        self._reason = ""
        """Fault for which the model cannot be pruned."""

    def prepare(self, planned: float, optimizer: MakeOptimizer | None = None) -> None:
        """Examine the model now, rather than in the round that would have pruned.

        ``optimizer`` makes a user's own optimizer, which must go on after a pruning; None if there is none. Raises
        ValueError if the model cannot be pruned and ``planned``, the largest configured alpha, is above 0.
        """
        pruner = self._examined()
        if pruner is not None and optimizer is not None:
            try:
                _try_optimizer(self._model, pruner, optimizer)
            except ValueError as error:
                self._pruner, self._reason = None, str(error)
        self._refuse(planned)

    @property
    def alpha_max(self) -> float:
        """The largest ratio reached so far."""
        return 0.0 if self._pruner is None else self._pruner.alpha_max

    @property
    def original_widths(self) -> dict[str, int]:
        """Output channels of every prunable layer as built; none before the model was examined."""
        return {} if self._pruner is None else self._pruner.original_widths

    def widths(self) -> dict[str, int]:
        """Return the present output channels of every prunable layer; none before the model was examined."""
        return {} if self._pruner is None else self._pruner.widths()

    @property
    def whole_macs(self) -> dict[str, int]:
        """Multiply-accumulates of layers that are not pruned beside others that are; none before it was examined."""
        return {} if self._pruner is None else self._pruner.whole_macs

    def can_prune(self) -> bool:
        """Examine the model, if nobody has, and return whether anything of it can be pruned."""
        return self._examined() is not None

    def prune_to(self, alpha: float, optimizer: PrunableOptimizer | None = None, refit: Refit | None = None) -> bool:
        """Prune as ``StructuredPruner``. Raises ValueError for any alpha above 0 if the model cannot be pruned."""
        if alpha <= self.alpha_max:
            return False
        pruner = self._examined()
        self._refuse(alpha)
        return pruner is not None and pruner.prune_to(alpha, optimizer, refit)

    def state_dict(self) -> PruningState:
        """Return the state of the pruner."""
        return {"alpha_max": 0.0, "history": []} if self._pruner is None else self._pruner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], optimizer: PrunableOptimizer | None = None) -> None:
        """Repeat the prunings of a state. Raises ValueError if this model cannot be pruned so."""
        if float(state["alpha_max"]) > 0 and (pruner := self._examined()) is not None:
            pruner.load_state_dict(state, optimizer)
        self._refuse(float(state["alpha_max"]))

    def _examined(self) -> StructuredPruner | None:
        if self._pruner is None and not self._reason:
            settings = self._settings
            try:
                self._pruner = StructuredPruner(
                    self._model, self._example, round_to=settings.round_to, importance=settings.importance
                )
            except ValueError as error:
                self._reason = str(error)
        return self._pruner

    def _refuse(self, alpha: float) -> None:
        if alpha > 0 and self._reason:
            raise ValueError(
                f"lightweighting.alpha: {alpha:g} is not possible for {self.name}, set it to 0: {self._reason}; "
                f"other parties keep theirs by name, as alpha: {{OTHER: {alpha:g}}}"
            )


def _try_optimizer(model: nn.Module, pruner: StructuredPruner, make: MakeOptimizer) -> None:
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
