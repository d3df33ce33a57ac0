"""The structure of a model: groups of units that can be pruned, and which entries of each tensor belong to a unit.

A *unit* is what goes together: a channel, a head of an attention, a group of a grouped convolution. A *group* has all
units of the same layers; alpha is a share of its units. ``find_structure`` proposes groups by one forward pass, in the
model's own precision and with its own weights (``follow.py``); ``mask_form.py`` tries them.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own signatures are partly untyped.

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from vfl.base.errors import with_type
from vfl.base.modules import copy_model, modules_by_name, uncompiled
from vfl.base.random import seeded
from vfl.compression.attention import put_twins
from vfl.compression.follow import Follow
from vfl.compression.units import WHOLE
from vfl.models.small_map import SmallMapConv2d

Importance = Literal["filter", "group"]
PrunableLayer = nn.Conv2d | nn.Linear

ROWS_AT_ONCE = 1 << 22
"""Values of a weight that are in memory in double precision at once."""
HEADS = re.compile(r"(^|_)n?_?(num_)?heads?$")
"""Attributes of a user's module that count what a group has."""

Axis = tuple[str, int]
"""A tensor's name and one of its dimensions."""


@dataclass(frozen=True)
class UnitGroup:
    """Units of the same layers, which are pruned by the same ratio."""

    name: str
    names: tuple[str, ...]
    """Layers that produce the units' values; ``name`` is the first one's, with a number if it has several groups."""
    producers: tuple[Axis, ...]
    units: tuple[int, ...]
    """Numbers of the units that are left, in the order of the first layer's outputs."""
    counts: tuple[tuple[str, str], ...] = ()
    """Modules and their attributes that hold the number of units, such as ``num_heads``."""

    @property
    def width(self) -> int:
        """Units that are left."""
        return len(self.units)


@dataclass(frozen=True)
class Structure:
    """Groups of a model, and the units of the entries of its tensors."""

    groups: tuple[UnitGroup, ...]
    axes: Mapping[Axis, Tensor]
    """The unit of each index of a dimension, int64, -1 for none."""
    macs: Mapping[str, int] = field(default_factory=Counter[str])
    """Multiply-accumulates of a sample by the weight's name."""
    outputs: frozenset[str] = frozenset()
    """Weights that produce the model's output."""

    def restricted(self, groups: Iterable[UnitGroup]) -> "Structure":
        """Return the structure with only these groups."""
        return replace(self, groups=tuple(groups))

    def units_of(self, removed: Mapping[str, Sequence[int]]) -> Tensor:
        """Return the numbers of units, named by a group's name and their places in it."""
        by_name = {group.name: group.units for group in self.groups}
        return torch.tensor([by_name[name][place] for name, places in removed.items() for place in places])

    def kept(self, removed: Mapping[str, Sequence[int]]) -> dict[Axis, Tensor]:
        """Return the indices that remain of each dimension that loses some."""
        units = self.units_of(removed)
        stays = {axis: ~torch.isin(each, units) for axis, each in self.axes.items()}
        return {axis: each.nonzero().flatten() for axis, each in stays.items() if not each.all()}

    def without(self, removed: Mapping[str, Sequence[int]]) -> "Structure":
        """Return the structure of the model after a removal."""
        kept, gone = self.kept(removed), set(self.units_of(removed).tolist())
        axes = {axis: units[kept[axis]] if axis in kept else units for axis, units in self.axes.items()}
        groups = [replace(each, units=tuple(unit for unit in each.units if unit not in gone)) for each in self.groups]
        return replace(self, groups=tuple(groups), axes=axes)

    def positions(self, model: nn.Module, removed: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """Return the flat positions of what remains of each tensor that shrinks, in its new shape, by name."""
        kept = self.kept(removed)
        return {name: flat_positions(tensor_of(model, name).shape, indices_of(name, kept)) for name, _ in kept}

    def importance(self, model: nn.Module, group: UnitGroup, kind: Importance) -> Tensor:
        """Return the importance of each unit of the group, float64 [width]; the lowest are to be removed.

        "filter": L1 norm of what the unit's layers produce it with (Li et al., ICLR 2017), summed over them. "group":
        with the weights that read it and those of its normalizations.
        """
        axes = group.producers if kind == "filter" else [axis for axis in self.axes if axis[0].endswith("weight")]
        parts = [self._norms(tensor_of(model, axis[0]), axis, group) for axis in axes]
        return torch.stack([part for part in parts if part is not None]).sum(dim=0)

    def _norms(self, weight: Tensor, axis: Axis, group: UnitGroup) -> Tensor | None:
        places = {unit: place for place, unit in enumerate(group.units)}
        mine = torch.tensor([places.get(int(unit), -1) for unit in self.axes[axis]])
        if bool((mine < 0).all()):
            return None
        norms = _norms_along(weight.detach(), axis[1])
        if mine.tolist() == list(range(len(mine))):
            return norms
        return torch.zeros(group.width, dtype=torch.float64).index_add(0, mine[mine >= 0], norms[mine >= 0])


def _norms_along(weight: Tensor, dim: int) -> Tensor:
    """Return the L1 norms of a tensor's slices, in double precision."""
    rows = weight.movedim(dim, 0).flatten(1) if weight.dim() > 1 else weight[:, None]
    step = max(1, ROWS_AT_ONCE // max(1, rows.shape[1]))
    return torch.cat([part.to("cpu", torch.float64).abs().sum(dim=1) for part in rows.split(step)])


def tensor_of(model: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer."""
    prefix, _, leaf = name.rpartition(".")
    return cast(Tensor, getattr(model.get_submodule(prefix), leaf))


def indices_of(name: str, kept: Mapping[Axis, Tensor]) -> dict[int, Tensor]:
    """Return the remaining indices of a tensor by dimension."""
    return {dim: indices for (each, dim), indices in kept.items() if each == name}


def flat_positions(shape: Sequence[int], indices: Mapping[int, Tensor]) -> Tensor:
    """Return the flat positions of what remains of a tensor, in its new shape."""
    positions, stride = torch.zeros([1] * len(shape), dtype=torch.int64), 1
    for dim in reversed(range(len(shape))):
        left = indices.get(dim, torch.arange(shape[dim]))
        positions = positions + (left * stride).view([-1, *[1] * (len(shape) - 1 - dim)])
        stride *= shape[dim]
    return positions


def skeleton(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a copy of the model in evaluation mode whose operations can be followed; it shares the tensors.

    ``memo`` maps the id of a tensor to what stands for it.
    """
    shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    twin = copy_model(model, shared if memo is None else memo).eval()
    put_twins(twin)
    for module in twin.modules():
        if isinstance(module, SmallMapConv2d):  # the same values as one operation
            cast(Any, module).__class__ = nn.Conv2d
    return twin


def find_structure(model: nn.Module, example: Sequence[Tensor]) -> Structure:
    """Propose the groups of a model, from one forward pass. Raises ValueError if it cannot be computed."""
    twin = skeleton(model)
    follow = Follow(twin)
    try:
        with uncompiled(twin), torch.no_grad(), seeded(0, "trace"):
            inputs = tuple(each.detach()[:1].clone() for each in example)
            with follow:
                follow.end(twin(*follow.begin(inputs)))
    except Exception as error:  # a user's model may fail in any way
        raise ValueError(f"cannot prune the model: its channels cannot be followed ({with_type(error)})") from error
    axes = {axis: follow.units.find(labels).clone() for axis, labels in follow.axes.items()}
    for name, labels in follow.entries.items():
        found = follow.units.find(labels)
        # Entries that differ along two dimensions were kept (`Follow.end`): the first of each slice stands for it.
        for dim in (d for d in range(found.dim()) if found.shape[d] > 1 and found.stride(d)):
            axes[name, dim] = found.movedim(dim, 0).reshape(found.shape[dim], -1)[:, 0].clone()
    groups = tuple(_groups(twin, axes, follow))
    axes = {axis: units.where(units > WHOLE, -1) for axis, units in axes.items() if bool((units > WHOLE).any())}
    return Structure(groups, axes, dict(follow.macs), frozenset(follow.outputs))


def _groups(model: nn.Module, axes: Mapping[Axis, Tensor], follow: Follow) -> Iterable[UnitGroup]:
    """Yield the groups of units that some layer produces and some layer reads, in the order of computation."""
    read = {unit for axis in follow.axes if axis not in follow.producers for unit in axes[axis].tolist()}
    made: dict[int, list[tuple[Axis, int]]] = {}
    for axis in follow.producers:
        for unit, count in Counter(axes[axis].tolist()).items():
            if unit > WHOLE and unit in read:
                made.setdefault(unit, []).append((axis, count))
    alike: dict[tuple[tuple[Axis, int], ...], list[int]] = {}
    for unit, counts in made.items():  # in the order of the first layer's outputs
        alike.setdefault(tuple(counts), []).append(unit)
    names = Counter[str]()
    for signature, units in alike.items():
        producers = tuple(axis for axis, _ in signature)
        layers = tuple(axis[0].removesuffix(".weight") for axis in producers)
        first = layers[0]
        names[first] += 1
        name = first if names[first] == 1 else f"{first}[{names[first]}]"
        yield UnitGroup(name, layers, producers, tuple(units), tuple(_counts(model, layers, len(units))))


def _counts(model: nn.Module, layers: Sequence[str], width: int) -> Iterable[tuple[str, str]]:
    """Yield the attributes of the modules around the layers that count the units."""
    modules = modules_by_name(model)
    for name in dict.fromkeys(part for layer in layers for part in (layer, layer.rpartition(".")[0])):
        module = modules.get(name)
        for attribute, value in vars(module).items() if module is not None else ():
            if HEADS.search(attribute) and type(value) is int and value == width > 1:
                yield name, attribute
