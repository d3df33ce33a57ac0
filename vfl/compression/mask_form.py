"""Trial of a pruner before training: a pruned copy of the model must equal its mask form, theta * m.

Following channels (``follow.py``) proposes what can be removed. Where a model fixes a shape, reorders or mixes channels
in a way that shapes do not show, the pruned model would fail or compute something else. So units of every group are
removed once, in double precision and with weights drawn at random, and the output is compared with the same model's
whose removed entries are 0. Weights are drawn while the layers compute, a part of a large one at a time: the trial
needs no copy of them. Nor is multiplied by what is 0.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own signatures are partly untyped; operations of any kind pass through.

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from vfl.base.errors import with_type
from vfl.base.modules import modules_by_name, uncompiled
from vfl.base.random import generator, seeded, stream_seed
from vfl.compression.dependency import Axis, Structure, UnitGroup, indices_of, skeleton
from vfl.compression.shrink import fit_widths, set_counts

SAME = 1e-8
"""Largest difference, relative to the largest value, that is rounding in float64 and no wrong column."""
VALUES = 2048
"""Input values of a trial, which set its number of samples between the two below: VGG16's takes two images."""
FEWEST, MOST = 2, 64
POOL = 1_000_003
"""Random values from which all weights are taken, a prime number: no two rows of a weight are alike."""
VALUES_AT_ONCE = 1 << 20
"""Values of a linear layer's weight that are in memory at once."""
NORMS = (nn.modules.batchnorm._NormBase,)  # pyright: ignore[reportPrivateUsage]  # BatchNorm and InstanceNorm of all dimensions

Removed = Mapping[str, Sequence[int]]
"""Places of the units to remove, by the group's name."""


def exact_groups(
    model: nn.Module, example: Sequence[Tensor], structure: Structure
) -> tuple[tuple[UnitGroup, ...], dict[str, str]]:
    """Return the groups without some of whose units the model equals its mask form, and what is wrong with others.

    Where an activation maps 0 to another constant, what the next layer reads of it counts as masked too. Neither the
    model nor the random state is changed.
    """
    groups, faults = [each for each in structure.groups if each.width > 1], dict[str, str]()
    exact = _exact(model, example, structure, groups, faults)
    return tuple(each for each in structure.groups if each.width == 1 or each in exact), faults


def _exact(
    model: nn.Module, example: Sequence[Tensor], structure: Structure, groups: list[UnitGroup], faults: dict[str, str]
) -> list[UnitGroup]:
    """Return those of the groups that are exact together, found by trying fewer at a time."""
    if not groups:
        return []
    fault = find_fault(model, example, structure, {each.name: trial_places(each) for each in groups})
    if fault is None:
        return groups
    if len(groups) == 1:
        faults[groups[0].name] = fault
        return []
    kinds = dict[str, list[UnitGroup]]()
    for each in groups:
        kinds.setdefault(re.sub(r"\d+", "*", each.name), []).append(each)
    parts = list(kinds.values())
    if len(parts) == 1 and len(groups) > 2:  # the same layer of many blocks: if the first and the last fail, all do
        ends = _exact(model, example, structure, [groups[0], groups[-1]], faults)
        if not ends:
            faults |= dict.fromkeys((each.name for each in groups), fault)
            return []
    if len(parts) == 1:
        parts = [groups[: len(groups) // 2], groups[len(groups) // 2 :]]
    left = [each for part in parts for each in _exact(model, example, structure, part, faults)]
    if len(left) < len(groups):
        return _exact(model, example, structure, left, faults)
    faults |= dict.fromkeys((each.name for each in groups), f"together, {fault}")
    return []


def trial_places(group: UnitGroup) -> list[int]:
    """Return about half of the group's units, chosen so that no regular reordering maps them to themselves.

    Their number has no divisor in common with the width, so that neither rotations nor equal parts keep them; they have
    the first channel and not the last, so that reversing does not.
    """
    width = group.width
    count = next(each for each in range(width // 2, 0, -1) if math.gcd(each, width) == 1)
    inner = torch.randperm(max(width - 2, 0), generator=generator(0, "trial channels", owner=group.name)) + 1
    return sorted([0, *(int(each) for each in inner[: count - 1])])


def find_fault(model: nn.Module, example: Sequence[Tensor], structure: Structure, removed: Removed) -> str | None:
    """Return what is wrong with a removal, None if nothing."""
    try:
        difference, scale, live = differ(model, example, structure, removed)
    except Exception as error:  # a user's model may fail in any way
        return f"without some of its channels the model cannot run ({with_type(error)})"
    if difference > SAME * scale:
        return f"its channels are reordered, cut or mixed on their way (the output would differ by {difference:.2g})"
    return f"with its channels {live[0]!r} would lose other inputs" if live else None


def differ(
    model: nn.Module, example: Sequence[Tensor], structure: Structure, removed: Removed
) -> tuple[float, float, list[str]]:
    """Return how much pruned and masked model differ, their largest value, and layers that would lose other inputs."""
    kept = structure.kept(removed)
    masked, pruned = _Weights(model, {}, kept), _Weights(model, kept, {})
    left = {group.name: group.width - len(removed.get(group.name, ())) for group in structure.groups}
    set_counts(pruned.model, {at: left[group.name] for group in structure.groups for at in group.counts})
    fit_widths(pruned.model)
    inputs, expected = _run_masked(masked, [_as_double(tensor.detach()[:1].cpu()) for tensor in example])
    got = pruned.run(inputs).nan_to_num()
    return float((got - expected).abs().max()), float(expected.abs().max()), masked.live


@dataclass(eq=False)
class _Stored:
    """Values of a tensor of the model: drawn, or its own."""

    name: str
    shape: torch.Size
    """Its shape in the model."""
    own: Tensor | None
    scale: float = 1.0
    middle: float = 0.0

    def values(self, indices: Mapping[int, Tensor]) -> Tensor:
        """Return what remains of the tensor, in double precision."""
        if self.own is not None:
            values = self.own.detach().to("cpu", torch.float64)
        elif len(self.shape) < 2:
            values = self._drawn(0, self.shape.numel()).view(self.shape) * self.scale + self.middle
        else:
            rows = indices.get(0, torch.arange(self.shape[0]))
            indices = {dim: left for dim, left in indices.items() if dim}
            values = self.rows(rows.tolist()).view(len(rows), *self.shape[1:]) * self.scale
        for dim, left in indices.items():
            values = values.index_select(dim, left)
        return values

    def rows(self, rows: Sequence[int], out: Tensor | None = None) -> Tensor:
        """Return drawn rows as they are before the scale, flattened."""
        width = self.shape[1:].numel()
        return torch.stack([self._drawn(row * width, width) for row in rows], out=out)

    @cached_property
    def _first(self) -> int:
        return stream_seed(0, "trial weights", owner=self.name)

    def _drawn(self, start: int, count: int) -> Tensor:
        """Return values of the flattened tensor."""
        first = (self._first + start) % POOL
        return _pool()[first : first + count] if count <= POOL else _pool()[(first + torch.arange(count)) % POOL]


@cache
def _pool() -> Tensor:
    """Return random values, twice the same."""
    values = 2 * torch.rand(POOL, dtype=torch.float64, generator=generator(0, "trial weights")) - 1
    return torch.cat([values, values])


def _stored(module: nn.Module, name: str, leaf: str, tensor: Tensor) -> _Stored:
    """Return a tensor's values for the trial: drawn to keep the signal's scale, as a model's own may hide a column."""
    norm = isinstance(module, NORMS)
    if norm and leaf in ("weight", "running_var"):
        return _Stored(name, tensor.shape, None, 0.5, 1.0)
    if isinstance(tensor, nn.Parameter) or (norm and leaf == "running_mean"):
        bound = math.sqrt(6 / max(1, math.prod(tensor.shape[1:]))) if tensor.dim() > 1 else 1.0
        return _Stored(name, tensor.shape, None, bound)
    return _Stored(name, tensor.shape, tensor)


class _Weights(TorchFunctionMode):
    """A model that computes in double precision with values of its weights that exist only while they are used.

    ``kept`` are the indices that the model has, ``shown`` those of a model of all indices that are not 0.
    """

    def __init__(self, model: nn.Module, kept: Mapping[Axis, Tensor], shown: Mapping[Axis, Tensor]) -> None:
        super().__init__()
        memo = dict[int, Any]()
        self._stored = dict[int, _Stored]()
        self._kept, self._shown = kept, shown
        self.live = list[str]()
        """Layers that were seen to lose other inputs."""
        for prefix, module in modules_by_name(model).items():
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            for leaf, tensor in own:
                if tensor.is_floating_point() and id(tensor) not in memo:
                    name = f"{prefix}.{leaf}" if prefix else leaf
                    shape = [len(indices_of(name, kept).get(d, range(n))) for d, n in enumerate(tensor.shape)]
                    stands = torch.zeros((), dtype=torch.float64).expand(shape)
                    stands = nn.Parameter(stands, requires_grad=False) if isinstance(tensor, nn.Parameter) else stands
                    memo[id(tensor)] = stands
                    self._stored[id(stands)] = _stored(module, name, leaf, tensor)
        self._alive = list(memo.values())  # the ids stay theirs
        self.model = skeleton(model, memo)

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the model's output."""
        with uncompiled(self.model), torch.no_grad(), seeded(0, "trace"), self:
            return cast(Tensor, self.model(*inputs))

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ == "__get__" and not isinstance(func(*args), Tensor):
            return func(*args)
        if func.__name__ in READERS:
            self._note_live(func.__name__, *args[:2])
            stored = self._stored.get(id(args[1]))
            if func is F.linear and stored is not None and stored.own is None:
                return self._linear(stored, *args, **kwargs)
            if func in CONVOLUTIONS and stored is not None and args[0].dim() == len(stored.shape):
                named = dict(zip(CONVOLVED, args, strict=False)) | dict(kwargs)
                if named.get("groups", 1) == 1:
                    return self._convolve(func, stored, **named)
        output = func(*tree_map(self._value, args), **tree_map(self._value, dict(kwargs)))
        return tree_map(_as_double, output)

    def _value(self, value: object) -> Any:
        """Return a value with which an operation computes."""
        if not isinstance(value, Tensor) or (stored := self._stored.get(id(value))) is None:
            return _as_double(value)
        values = stored.values(indices_of(stored.name, self._kept))
        for dim, left in indices_of(stored.name, self._shown).items():
            alive = torch.zeros(stored.shape[dim], dtype=torch.float64).index_fill(0, left, 1)
            values = values * alive.view([-1, *[1] * (values.dim() - 1 - dim)])
        return values

    def _linear(self, stored: _Stored, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply by some rows of the weight at a time; what is missing or 0 is left out of inputs and outputs."""
        kept, shown = indices_of(stored.name, self._kept), indices_of(stored.name, self._shown)
        outputs, columns = stored.shape
        rows = (kept | shown).get(0, torch.arange(outputs)).tolist()
        inputs = _as_double(inputs)
        if (left := kept.get(1)) is not None:
            inputs = torch.zeros(*inputs.shape[:-1], columns, dtype=torch.float64).index_copy(-1, left, inputs)
        if (left := shown.get(1)) is not None:
            inputs = inputs * torch.zeros(columns, dtype=torch.float64).index_fill(0, left, 1)
        step = max(1, VALUES_AT_ONCE // columns)
        buffer, parts = torch.empty(min(step, len(rows)), columns, dtype=torch.float64), list[Tensor]()
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            parts.append(F.linear(inputs, stored.rows(some, out=buffer[: len(some)])))
        output = torch.cat(parts, dim=-1) * stored.scale
        return self._completed(output, shown.get(0), outputs, -1, bias)

    def _convolve(
        self, func: Any, stored: _Stored, input: Tensor, weight: Tensor, bias: Tensor | None = None, **rest: Any
    ) -> Tensor:
        """Convolve what is neither missing nor 0, a sample at a time, as PyTorch unfolds all that it is given."""
        shown, channel = indices_of(stored.name, self._shown), 1 - len(stored.shape)
        values, inputs = stored.values(indices_of(stored.name, self._kept) | shown), _as_double(input)
        if (left := shown.get(1)) is not None:
            inputs = inputs.index_select(channel, left)
        output = torch.cat([func(each, values, None, **rest) for each in inputs.split(1)])
        return self._completed(output, shown.get(0), stored.shape[0], channel, bias)

    def _completed(self, output: Tensor, shown: Tensor | None, width: int, channel: int, bias: Tensor | None) -> Tensor:
        """Put 0 where a layer's output is not shown, and add the bias."""
        if shown is not None:
            shape = list(output.shape)
            shape[channel] = width
            output = torch.zeros(shape, dtype=torch.float64).index_copy(channel, shown, output)
        if bias is None:
            return output
        return output.add_(self._value(bias).view([-1, *[1] * (-1 - channel)]))

    def _note_live(self, kind: str, inputs: Tensor, weight: Tensor) -> None:
        """Note the layer if an input that pruning takes from it differs among samples: no masked channel does."""
        stored = self._stored.get(id(weight))
        read = 0 if "transpose" in kind else 1
        if stored is None or (left := indices_of(stored.name, self._shown).get(read)) is None or inputs.dim() < 2:
            return
        channel = -1 if kind == "linear" else -weight.dim() + 1
        lost = torch.ones(inputs.shape[channel], dtype=torch.bool)
        lost[left] = False
        values = inputs.movedim(channel, 0)[lost]
        if values.shape[1] == 1:  # a learned token, before it is repeated for the samples
            return
        spread = float((values[:, 1:] - values[:, :1]).abs().max())
        if spread > 0 and spread > SAME * float(inputs.abs().max()):
            self.live.append(stored.name.removesuffix(".weight"))


CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d}
CONVOLVED = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
READERS = {"linear", *(f"conv{kind}{dims}d" for kind in ("", "_transpose") for dims in (1, 2, 3))}


def _as_double(value: Any) -> Any:
    """Return a tensor of numbers in double precision, whatever type the model asked for."""
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _run_masked(masked: _Weights, example: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor]:
    """Return the first of the trial inputs that the model reads with a finite output, and this output."""
    *tried, last = _trial_inputs(example)
    for inputs in tried:
        try:
            output = masked.run(inputs)
        except Exception:  # a user's model; it may read codes, which noise is not
            output = None
        if output is not None and output.isfinite().all():
            return inputs, output
        masked.live.clear()
    return last, masked.run(last).nan_to_num()


def _trial_inputs(example: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Yield noise, then shares of the example's values, then the example repeated; whole numbers stay as they are."""
    largest = max(1, *(tensor[:1].numel() for tensor in example))
    samples = min(MOST, max(FEWEST, VALUES // largest))
    stream = generator(0, "trial inputs")
    repeated = [tensor[:1].expand(samples, *tensor.shape[1:]) for tensor in example]
    for draw in (torch.randn, torch.rand):
        noise = [draw(each.shape, dtype=torch.float64, generator=stream) for each in repeated]
        noise = [new if draw is torch.randn else new * old for new, old in zip(noise, repeated, strict=True)]
        yield [new if old.is_floating_point() else old.clone() for new, old in zip(noise, repeated, strict=True)]
    yield [each.clone() for each in repeated]
