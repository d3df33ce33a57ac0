"""Feature-model lightweighting: physical structural pruning to a ratio alpha of the original widths.

The method is that of "Computation and Communication Efficient Lightweighting Vertical Federated Learning": remove the
share alpha of the filters of every layer, lowest L1 norm first (Li et al., "Pruning Filters for Efficient ConvNets",
ICLR 2017), and only when alpha exceeds every ratio reached before. Its definition is the mask form theta * m; here the
masked tensors become smaller, with the same output wherever the activations map 0 to 0 (ReLU).

Shapes: B samples, D the embedding's width.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from torch import Tensor, nn

from vfl.base.amounts import exact
from vfl.compression.dependency import CoupledLayers, Importance, PrunableLayer, Shadow, modules_by_name
from vfl.compression.mask_form import check_mask_form
from vfl.compression.refit import Refit
from vfl.compression.shrink import PrunableOptimizer, carry_optimizer, check_optimizer, shrink_model


class PruningEvent(TypedDict):
    """One pruning of a model, as JSON."""

    alpha: float
    removed: dict[str, list[int]]
    """Channels removed, by the first layer of their group, counted in the widths just before the event."""


class PruningState(TypedDict):
    """State that separates a pruned model's structure from the dense one's, as JSON."""

    alpha_max: float
    history: list[PruningEvent]


def kept_width(alpha: float, width: int, round_to: int | None = None) -> int:
    """Return the channels that remain of `width` original ones when the share `alpha` is removed.

    max(1, round((1 - alpha) * width)), halves to even; with `round_to`, the nearest multiple of it, at least one
    multiple and never more than `width`. Raises ValueError unless 0 <= alpha < 1.
    """
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha: expected 0 <= alpha < 1, got {alpha}")
    if alpha == 0:
        return width
    multiple = round_to or 1
    # Exactly: (1 - 0.85) * 30 is 4.5 and goes to 4, in floats it is 4.500000000000001 and would go to 5.
    return min(width, max(multiple, multiple * round((1 - exact(alpha)) * width / multiple)))


class StructuredPruner:
    """Prunes one model, in place, to ever larger ratios alpha.

    `example` is any valid input of the model: a tensor [B, ...], or one for each of its arguments; only its first
    sample is used. Whatever is an output of the model keeps its width. `importance` is "filter" (L1 norm of the
    filter's own weights) or "group" (Torch-Pruning's group norm). `round_to` rounds kept widths to multiples of it.

    Modes, `requires_grad`, memory format, BatchNorm statistics and the random state survive; gradients are dropped.
    Raises ValueError for a model that cannot be pruned exactly (see `Shadow` and `check_mask_form`); warns of layers
    that the output does not depend on, which stay whole.
    """

    original_widths: dict[str, int]
    """Output channels of every prunable Conv2d and Linear when the pruner was built, in the model's order."""
    alpha_max: float
    """The largest ratio reached so far."""

    def __init__(
        self,
        model: nn.Module,
        example: Tensor | Sequence[Tensor],
        *,
        round_to: int | None = None,
        importance: Importance = "filter",
    ) -> None:
        if round_to is not None and round_to < 1:
            raise ValueError(f"round_to: expected at least 1, got {round_to}")
        if importance not in ("filter", "group"):
            raise ValueError(f"importance: expected 'filter' or 'group', got {importance!r}")
        self._model = model
        tensors = (example,) if isinstance(example, Tensor) else example
        self._example = tuple(tensor.detach()[:1].clone() for tensor in tensors)
        self._round_to = round_to
        self._importance: Importance = importance
        # For the groups and a trial: a shadow copies the present weights, so every event makes its own.
        with Shadow(model, self._example) as shadow:
            groups = shadow.groups
            _warn_of_unreached(model, groups)
            check_mask_form(model, self._example, shadow)
        self._groups = [group for group in groups if not group.reaches_output]
        self._history: list[PruningEvent] = []
        widths = {name: group.width for group in self._groups for name in group.names}
        self.original_widths = {name: widths[name] for name in modules_by_name(model) if name in widths}
        self.alpha_max = 0.0

    def widths(self) -> dict[str, int]:
        """Return the present output channels of every prunable layer."""
        weights = {name: self._model.get_parameter(f"{name}.weight") for name in self.original_widths}
        return {name: weight.shape[0] for name, weight in weights.items()}

    def target_widths(self, alpha: float) -> dict[str, int]:
        """Return the output channels of every prunable layer at the ratio alpha, if it were the first one reached."""
        return {name: kept_width(alpha, width, self._round_to) for name, width in self.original_widths.items()}

    def prune_to(self, alpha: float, optimizer: PrunableOptimizer | None = None, refit: Refit | None = None) -> bool:
        """Prune from the present widths to those of `alpha`, if it exceeds `alpha_max`; return True if a width changed.

        All importances are those of the weights before the event; ties go to the lower index, which is removed first.
        `optimizer` is rebound to the new parameters, with its state at the kept indices. `refit` gives the layers that
        read removed channels new weights; without it they keep theirs. Raises ValueError for alpha
        outside [0, 1) or an optimizer whose state cannot be carried, and then changes nothing.
        """
        targets = self.target_widths(alpha)  # also refuses an alpha outside [0, 1)
        if alpha <= self.alpha_max:
            return False
        present = self.widths()
        # Against the present widths: earlier events have removed some of what this alpha asks for.
        excess = {g.names[0]: present[g.names[0]] - targets[g.names[0]] for g in self._groups}
        changed = any(count > 0 for count in excess.values())
        if changed:
            with Shadow(self._model, self._example) as shadow:
                removed = {
                    group.names[0]: _lowest(shadow.importance(group, self._importance), excess[group.names[0]])
                    for group in shadow.groups
                    if excess.get(group.names[0], 0) > 0  # groups that reach the output have no excess at all
                }
                self._remove(shadow, removed, optimizer, refit)
            # Events that changed no width are left out: there is nothing to repeat.
            self._history.append({"alpha": alpha, "removed": removed})
        self.alpha_max = alpha
        return changed

    def _remove(
        self,
        shadow: Shadow,
        removed: Mapping[str, Sequence[int]],
        optimizer: PrunableOptimizer | None,
        refit: Refit | None = None,
    ) -> None:
        """Remove channels, given by the name of a group's first layer, from the model and the optimizer's state."""
        positions = shadow.remove(removed)
        # So far only the shadow has changed: a refusal leaves model and optimizer as they were.
        if optimizer is not None:
            check_optimizer(optimizer, self._model, positions)
        if refit is not None:
            refit.measure(self._model, positions)
        # By the old tensors, as the optimizer holds them: once the model is shrunk, their names lead to new ones.
        positions_of: dict[Tensor, Tensor] = {
            p: positions[n] for n, p in self._model.named_parameters() if n in positions
        }
        replaced = shrink_model(self._model, positions)
        shadow.copy_widths(self._model)
        if optimizer is not None:
            carry_optimizer(optimizer, replaced, positions_of)
        if refit is not None:
            refit.apply(self._model)

    def state_dict(self) -> PruningState:
        """Return a copy of the state with which `load_state_dict` gives a dense model this one's structure."""
        return {"alpha_max": self.alpha_max, "history": copy.deepcopy(self._history)}

    def load_state_dict(self, state: Mapping[str, Any], optimizer: PrunableOptimizer | None = None) -> None:
        """Repeat the removals of `state` on a model that was not pruned yet, so that pruned weights then fit.

        `optimizer` is rebound as in `prune_to`. The caller loads weights and the optimizer's state afterwards. Raises
        ValueError, changing nothing, if this pruner has pruned already or `state` belongs to another model.
        """
        if self._history or self.alpha_max > 0:
            raise ValueError("pruning state: load it into a newly built model, this one was pruned already")
        checked = _checked(state, {group.names[0]: group.width for group in self._groups})
        for event in checked["history"]:
            # A shadow for each: an event's channels are counted in the widths that the one before has left.
            with Shadow(self._model, self._example) as shadow:
                self._remove(shadow, event["removed"], optimizer)
        self._history, self.alpha_max = checked["history"], checked["alpha_max"]


def _checked(state: Mapping[str, Any], widths: Mapping[str, int]) -> PruningState:
    """Return the pruning state, read strictly. Raises ValueError unless it fits groups of these original widths."""
    try:
        alpha_max = float(state["alpha_max"])
        history = [
            PruningEvent(
                alpha=float(event["alpha"]),
                removed={str(name): [int(i) for i in channels] for name, channels in event["removed"].items()},
            )
            for event in state["history"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"pruning state: malformed ({error!r})") from error
    if not 0 <= alpha_max < 1:
        raise ValueError(f"pruning state: expected 0 <= alpha_max < 1, got {alpha_max}")
    left = dict(widths)  # each event counts in the widths that the one before has left
    for event in history:
        for name, channels in event["removed"].items():
            distinct = set(channels)
            # A proper subset: at least one channel stays.
            if name not in left or not distinct < set(range(left[name])) or len(distinct) < len(channels):
                raise ValueError(f"pruning state: its removals from {name!r} do not fit this model")
            left[name] -= len(channels)
    return {"alpha_max": alpha_max, "history": history}


def psi(dense: Tensor, pruned: Tensor) -> float:
    """Return the paper's computation lightweighting error: the mean over samples of |h(theta) - h(theta^)|^2.

    `dense` and `pruned` [B, D] are the embeddings of the same probe batch before and after a pruning event. Raises
    ValueError if the shapes differ or the batch is empty.
    """
    if dense.shape != pruned.shape or len(dense) == 0:
        raise ValueError(f"psi: expected two non-empty batches alike, got {dense.shape} and {pruned.shape}")
    return (dense.detach().double() - pruned.detach().double()).square().flatten(1).sum(dim=1).mean().item()


def _warn_of_unreached(model: nn.Module, groups: Sequence[CoupledLayers]) -> None:
    reached = {name for group in groups for name in group.names}
    layers = {name for name, module in modules_by_name(model).items() if isinstance(module, PrunableLayer)}
    if unreached := sorted(layers - reached):
        warnings.warn(f"never pruned, as the model's output does not depend on it: {unreached}", stacklevel=3)


def _lowest(importance: Tensor, count: int) -> list[int]:
    """Return the indices of the `count` lowest values, ascending; of equal values the lower index first."""
    return sorted(int(index) for index in importance.argsort(stable=True)[:count])
