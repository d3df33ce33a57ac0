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
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from vfl.base.costs import exact
from vfl.base.modules import modules_by_name, without_compilation
from vfl.compression.attention import put_twin
from vfl.compression.dependency import (
    Importance,
    PrunableLayer,
    Structure,
    find_structure,
    tensor_of,
)
from vfl.compression.mask_form import exact_groups
from vfl.compression.refit import Refit
from vfl.compression.shrink import (
    PrunableOptimizer,
    carry_optimizer,
    check_optimizer,
    fit_widths,
    set_counts,
    shrink_model,
)

MIXED = "what it computes is mixed (by a norm, a softmax, a sum over channels), or read with something that stays"


class PruningEvent(TypedDict):
    """One pruning of a model, as JSON."""

    alpha: float
    removed: dict[str, list[int]]
    """Units removed, by their group, counted in those that were left just before the event."""


class PruningState(TypedDict):
    """State that separates a pruned model's structure from the dense one's, as JSON."""

    alpha_max: float
    history: list[PruningEvent]
    counts: NotRequired[dict[str, int]]
    """Attributes that count heads, by the module's name and their own with a point between; none without heads."""


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
    sample is used. Whatever is an output of the model keeps its width, and so does what cannot be pruned exactly.
    `importance` is "filter" (L1 norm of the weights that produce a unit) or "group" (with those that read it).
    `round_to` rounds kept units to multiples of it.

    Modes, `requires_grad`, memory format, BatchNorm statistics and the random state survive; gradients are dropped.
    Raises ValueError for a model in which nothing can be pruned exactly (see `find_structure` and `exact_groups`);
    warns of layers that the output does not depend on, which are not pruned.
    """

    original_widths: dict[str, int]
    """Outputs of every layer whose units can be pruned when the pruner was built, in the model's order."""
    alpha_max: float
    """The largest ratio reached so far."""
    whole: dict[str, str]
    """Layers that cannot be pruned, by name, and the reason; not those that produce the output."""
    whole_macs: dict[str, int]
    """Multiply-accumulates of a sample in these layers."""

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
        self._model = without_compilation(model)
        self._example = (example,) if isinstance(example, Tensor) else example
        self._round_to = round_to
        self._importance: Importance = importance
        self._reset()
        self._examine()

    def _reset(self) -> None:
        """Be a pruner that knows no unit to prune."""
        self._structure = Structure((), {})
        self._originals, self.original_widths = dict[str, int](), dict[str, int]()
        self._history: list[PruningEvent] = []
        self.alpha_max = 0.0
        self.whole, self.whole_macs = dict[str, str](), dict[str, int]()

    def _examine(self) -> None:
        """Find the units of the model, and try which of them can be pruned exactly."""
        proposed = find_structure(self._model, self._example)
        exact, faults = exact_groups(self._model, self._example, proposed)
        structure = proposed.restricted(exact)
        whole, whole_macs = _whole_layers(proposed, structure, faults)
        narrow = {name for name in proposed.macs if len(tensor_of(self._model, name)) == 1}
        refused = {name: reason for name, reason in whole.items() if f"{name}.weight" not in narrow}
        if refused and not any(group.width > 1 for group in structure.groups):
            name = next((each for each in refused if each in faults), next(iter(refused)))
            raise ValueError(f"cannot prune {name!r}: {refused[name]}")
        _warn_of_unreached(self._model, proposed)
        self._structure, self.whole, self.whole_macs = structure, whole, whole_macs
        self._originals = {group.name: group.width for group in structure.groups}
        self.original_widths = self.widths()

    def widths(self) -> dict[str, int]:
        """Return the present outputs of every layer whose units can be pruned, in the model's order."""
        axes = {axis for group in self._structure.groups for axis in group.producers}
        order = {name: place for place, (name, _) in enumerate(self._model.named_parameters())}
        return {
            name.removesuffix(".weight"): tensor_of(self._model, name).shape[dim]
            for name, dim in sorted(axes, key=lambda axis: order[axis[0]])
        }

    def prune_to(self, alpha: float, optimizer: PrunableOptimizer | None = None, refit: Refit | None = None) -> bool:
        """Prune from the present widths to those of `alpha`, if it exceeds `alpha_max`; return True if a width changed.

        All importances are those of the weights before the event; ties go to the lower index, which is removed first.
        `optimizer` is rebound to the new parameters, with its state at the kept indices. `refit` gives the layers that
        read removed channels new weights; without it they keep theirs. Raises ValueError for alpha
        outside [0, 1) or an optimizer whose state cannot be carried, and then changes nothing.
        """
        # Also refuses an alpha outside [0, 1).
        targets = {name: kept_width(alpha, width, self._round_to) for name, width in self._originals.items()}
        if alpha <= self.alpha_max:
            return False
        # Against the units that are left: earlier events have removed some of what this alpha asks for.
        removed = {
            group.name: sorted(int(unit) for unit in importance.argsort(stable=True)[:excess])
            for group in self._structure.groups
            if (excess := group.width - targets[group.name]) > 0
            for importance in [self._structure.importance(self._model, group, self._importance)]
        }
        if removed:
            self._remove(removed, optimizer, refit)
            # Events that changed no width are left out: there is nothing to repeat.
            self._history.append({"alpha": alpha, "removed": removed})
        self.alpha_max = alpha
        return bool(removed)

    def _remove(
        self, removed: Mapping[str, Sequence[int]], optimizer: PrunableOptimizer | None, refit: Refit | None = None
    ) -> None:
        """Remove units, given by their group's name, from the model and the optimizer's state."""
        positions = self._structure.positions(self._model, removed)
        # A refusal leaves model and optimizer as they were.
        if optimizer is not None:
            check_optimizer(optimizer, self._model, positions)
        left = self._structure.without(removed)
        counts = {at: group.width for group in left.groups for at in group.counts if group.name in removed}
        for name in {name for name, _ in counts}:
            put_twin(self._model.get_submodule(name))  # before the refit, which reads what its layers read
        if refit is not None:
            refit.measure(self._model, positions)
        # By the old tensors, as the optimizer holds them: once the model is shrunk, their names lead to new ones.
        positions_of: dict[Tensor, Tensor] = {
            p: positions[n] for n, p in self._model.named_parameters() if n in positions
        }
        replaced = shrink_model(self._model, positions)
        fit_widths(self._model)
        set_counts(self._model, counts)
        self._structure = left
        if optimizer is not None:
            carry_optimizer(optimizer, replaced, positions_of)
        if refit is not None:
            refit.apply(self._model)

    def state_dict(self) -> PruningState:
        """Return a copy of the state with which `load_state_dict` gives a dense model this one's structure."""
        state = PruningState(alpha_max=self.alpha_max, history=copy.deepcopy(self._history))
        counts = {f"{m}.{name}": g.width for g in self._structure.groups for m, name in g.counts if self._history}
        if counts:
            state["counts"] = counts
        return state

    def load_state_dict(self, state: Mapping[str, Any], optimizer: PrunableOptimizer | None = None) -> None:
        """Repeat the removals of `state` on a model that was not pruned yet, so that pruned weights then fit.

        `optimizer` is rebound as in `prune_to`. The caller loads weights and the optimizer's state afterwards. Raises
        ValueError, changing nothing, if this pruner has pruned already or `state` belongs to another model.
        """
        if self._history or self.alpha_max > 0:
            raise ValueError("pruning state: load it into a newly built model, this one was pruned already")
        checked = _checked(state, self._originals)
        for event in checked["history"]:
            self._remove(event["removed"], optimizer)
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


def _warn_of_unreached(model: nn.Module, structure: Structure) -> None:
    reached = {id(tensor_of(model, name)) for name in structure.macs}
    layers = {name: each for name, each in modules_by_name(model).items() if isinstance(each, PrunableLayer)}
    if unreached := sorted(name for name, layer in layers.items() if id(layer.weight) not in reached):
        warnings.warn(f"never pruned, as the model's output does not depend on it: {unreached}", stacklevel=4)


def _whole_layers(
    proposed: Structure, pruned: Structure, faults: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, int]]:
    """Return the layers that are not pruned, with the reason and with their multiply-accumulates."""
    units = torch.tensor([unit for group in pruned.groups if group.width > 1 for unit in group.units])
    touched = {name for (name, _), each in pruned.axes.items() if bool(torch.isin(each, units).any())}
    reasons = {layer: faults[group.name] for group in proposed.groups if group.name in faults for layer in group.names}
    whole = {name: name.removesuffix(".weight") for name in proposed.macs if name not in touched | proposed.outputs}
    macs = {layer: proposed.macs[name] for name, layer in whole.items()}
    return {layer: reasons.get(layer, MIXED) for layer in macs}, macs
