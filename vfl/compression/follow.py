"""Following of channels through a model's operations: which values of which tensors can only be removed together.

``Follow`` computes the model once. For each operation a rule says what it does to labels (``units.py``): moves values
(by the operation itself, on the labels), combines them value by value, mixes them along dimensions, or is a layer,
whose weights read some channels and produce others. An operation without a rule protects all that it reads. What the
rules find is only proposed: ``mask_form.py`` tries it.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# Operations of any kind pass through.

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from vfl.compression.units import CONSTANT, WHOLE, Units, aligned, differing

Arguments = Any
Rule = Callable[["Follow", Any, Any, Arguments, Mapping[str, Any]], None]

MOST_ENTRIES = 1 << 22
"""Most entries of a parameter that is followed entry by entry; a larger one is not pruned, but for layers' weights."""


class Follow(TorchFunctionMode):
    """Labels the tensors of a model that computes under it, from ``begin`` to ``end``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.units = Units()
        tensors = [*model.named_parameters(), *model.named_buffers()]
        self._names = {id(tensor): name for name, tensor in tensors if tensor.is_floating_point()}
        self.entries: dict[str, Tensor] = {}
        """Labels of parameters and buffers that are combined with channels, entry by entry."""
        self.axes: dict[tuple[str, int], Tensor] = {}
        """Labels of the two dimensions of layers' weights, by the weight's name and the dimension."""
        self.producers: list[tuple[str, int]] = []
        """Those dimensions that are outputs, in the order in which they were computed."""
        self.outputs = set[str]()
        """Names of the weights that produce the model's output."""
        self.macs = Counter[str]()
        """Multiply-accumulates by the weight's name."""

    def begin(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the model's inputs, all of which stay."""
        inputs = tuple(tensor.clone() for tensor in inputs)
        for tensor in inputs:
            self.put(tensor, torch.tensor(WHOLE))
        return inputs

    def end(self, output: object) -> None:
        """Keep the model's output, and parameters from which no slices can be cut."""
        for tensor in _tensors(output):
            if (labels := self.labels(tensor)) is not None:
                ends = labels.unique()
                self.outputs |= {
                    n for n, d in self.producers if torch.isin(self.units.find(self.axes[n, d]), ends).any()
                }
                self.units.keep(labels)
        while uncut := [each for name, each in self.entries.items() if not self._can_cut(name, each)]:
            for labels in uncut:
                self.units.keep(labels)

    def _can_cut(self, name: str, labels: Tensor) -> bool:
        found = self.units.find(labels)
        if bool((found == WHOLE).all()):
            return True
        return len(differing(found)) == 1 and (name, 0) not in self.axes

    def __torch_function__(
        self, func: Any, types: object, args: Arguments = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        name = _name(func)
        if (_tensors(output) or name == "setitem") and any(self._known(each) for each in tree_leaves((args, kwargs))):
            try:
                RULES.get(name, keep_all)(self, func, output, args, kwargs)
            except Exception:  # arguments that a rule does not know
                keep_all(self, func, output, args, kwargs)
        return output

    def _known(self, value: object) -> bool:
        return isinstance(value, Tensor) and (hasattr(value, "_labels") or id(value) in self._names)

    def labels(self, tensor: Tensor) -> Tensor | None:
        """Return a tensor's labels, None if it depends on nothing that could go."""
        if (name := self._names.get(id(tensor))) is not None:
            if name not in self.entries:
                every = tensor.numel() <= MOST_ENTRIES
                atoms = self.units.atoms(tensor.numel()) if every else torch.tensor(WHOLE)
                self.entries[name] = atoms.view(tensor.shape) if every else atoms.expand(tensor.shape)
            return self.units.find(self.entries[name])
        labels = cast(Any, tensor).__dict__.get("_labels")
        if isinstance(labels, partial):
            labels = labels()
            self.put(tensor, labels)
        return None if labels is None else self.units.find(labels)

    def put(self, tensor: Tensor, labels: Tensor) -> None:
        """Label a tensor by what expands to its shape."""
        if id(tensor) not in self._names:
            cast(Any, tensor)._labels = labels.expand(tensor.shape)

    def axis(self, weight: Tensor, dim: int, *, output: bool) -> Tensor | None:
        """Return the labels of a dimension of a layer's weight; None if the weight is no parameter of the model."""
        name = self._names.get(id(weight))
        if name is None:
            return None
        if (name, dim) not in self.axes:
            self.axes[name, dim] = self.units.atoms(weight.shape[dim])
            if output:
                self.producers.append((name, dim))
        return self.axes[name, dim]

    def count(self, weight: Tensor, values: Tensor) -> None:
        """Count the products of ``values`` with a row of the weight each."""
        self.macs[self._names[id(weight)]] += values.numel() * weight[0].numel()

    def combine(self, shape: Sequence[int], operands: Sequence[Tensor], *, multiplies: bool) -> Tensor:
        """Return the labels of what is computed value by value from operands that broadcast to ``shape``."""
        result: Tensor | None = None
        lengths: list[int] = []
        fixed = False
        for operand in operands:
            labels = self.labels(operand)
            mine = aligned(operand.shape, len(shape))
            stored = id(operand) in self._names
            if result is None:
                result = torch.tensor(CONSTANT).expand(mine) if labels is None else labels.expand(mine)
                lengths, fixed = mine, stored
            else:
                other = torch.tensor(CONSTANT) if labels is None else labels
                result = self._pair(result, lengths, fixed, other.expand(mine), mine, stored, multiplies)
                lengths = [max(pair) for pair in zip(lengths, mine, strict=True)]
                fixed = fixed and stored
        assert result is not None
        return result.expand(tuple(shape))

    def _pair(
        self, left: Tensor, left_shape: list[int], left_stored: bool, right: Tensor, right_shape: list[int],
        right_stored: bool, multiplies: bool,
    ) -> Tensor:  # fmt: skip
        left, right = self.units.find(left), self.units.find(right)
        for a, b, shape, stored in ((left, right, right_shape, right_stored), (right, left, left_shape, left_stored)):
            # b has one value for all of a's channels: they can go without it, if the product or sum is 0 or constant.
            apart = all(shape[dim] == 1 for dim in differing(a)) and bool((a > WHOLE).any())
            constant, whole = bool((b == CONSTANT).all()), bool((b <= WHOLE).all())
            if apart and (constant or ((whole or differing(a)) and (multiplies or stored))):
                self.units.keep(b)
                return torch.broadcast_tensors(a, b)[0]
            if whole and not apart and bool((a > WHOLE).any()):  # its shape cannot follow, or a sum is left of it
                self.units.keep(a)
                return torch.broadcast_tensors(a, b)[0]
        self.units.unite(left, right)
        return self.units.find(torch.maximum(*torch.broadcast_tensors(self.units.find(left), self.units.find(right))))

    def contract(self, left: Tensor, right: Tensor, summed: int) -> Tensor:
        """Return the labels of a sum of products: of labels in a common shape, summed over one dimension of it."""
        shapes = list(left.shape), list(right.shape)
        product = self._pair(left, shapes[0], False, right, shapes[1], False, True)
        return self.units.unite_along(product, [summed]).squeeze(summed)


def _name(func: Any) -> str:
    name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
    return name.strip("_")


def _tensors(values: object) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor)]


def keep_all(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Keep all that an unknown operation reads, and what it makes of it."""
    for tensor in _tensors((args, kwargs)):
        if (labels := follow.labels(tensor)) is not None:
            follow.units.keep(labels)
    for tensor in _tensors(output):
        follow.put(tensor, torch.tensor(WHOLE))


def move(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Move labels as the operation moves values."""

    if any(follow.labels(each) is not None for each in _tensors((args[1:], kwargs)) if not each.is_floating_point()):
        return keep_all(follow, func, output, args, kwargs)  # places that are computed

    def labels_of(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        labels = follow.labels(value)
        constant = labels is None and value.is_floating_point()
        return torch.tensor(CONSTANT).expand(value.shape) if constant else value if labels is None else labels

    moved = func(*tree_map(labels_of, args), **tree_map(labels_of, dict(kwargs)))
    for tensor, labels in zip(_tensors(output), _tensors(moved), strict=True):
        follow.put(tensor, labels)
    return None


def reshape(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Move labels; channels that differ in two dimensions which become one (a channel shuffle) stay whole."""
    labels = follow.labels(args[0])
    assert labels is not None
    merged = _merged(labels.shape, output.shape)
    if any(len(set(dims) & set(differing(labels))) > 1 for dims in merged):
        follow.units.keep(labels)
    follow.put(output, labels.reshape(output.shape))


def _merged(old: Sequence[int], new: Sequence[int]) -> list[list[int]]:
    """Return the groups of old dimensions that become the same new ones, in a reshape."""
    groups, dims, sizes = list[list[int]](), list(range(len(old))), list(new)
    while dims:
        group, size = [dims.pop(0)], sizes.pop(0) if sizes else 1
        while prod(old[dim] for dim in group) != size and (dims or sizes):
            if prod(old[dim] for dim in group) < size and dims:
                group.append(dims.pop(0))
            elif sizes:
                size *= sizes.pop(0)
            else:
                break
        groups.append(group)
    return groups


def combine(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Combine value by value; a product with 0 is 0."""
    multiplies = _name(func).removeprefix("i").removeprefix("r") in PRODUCTS
    operands = _tensors((args, kwargs))
    follow.put(output, follow.combine(output.shape, operands, multiplies=multiplies))


def by_channel(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Combine with vectors of a value for each channel, which is the second dimension."""
    for vector in _tensors((args[1:], kwargs)):
        labels = follow.labels(vector)
        if labels is not None:
            shape = [1, -1, *[1] * (args[0].dim() - 2)]
            mine = follow.labels(args[0])
            both = torch.tensor(CONSTANT).expand(args[0].shape) if mine is None else mine
            if vector.numel() == 1 and args[0].shape[1] > 1:
                follow.units.keep(labels)
            else:
                follow.units.unite(both, labels.reshape(shape))
                if mine is None or bool((mine == CONSTANT).all()):
                    follow.units.keep(labels)
    mine = follow.labels(args[0])
    follow.put(output, torch.tensor(WHOLE) if mine is None else mine)


def along(place: int, default: Any) -> Rule:
    """Return the rule of an operation that mixes values along the dimensions in its argument ``place``."""

    def mix(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
        if len(args) > 1 and isinstance(args[1], Tensor):  # max(a, b)
            return combine(follow, func, output, args, kwargs)
        labels = follow.labels(args[0])
        assert labels is not None
        dims = kwargs.get("dim", args[place] if len(args) > place else default)
        dims = range(labels.dim()) if dims is None or dims == () else [dims] if isinstance(dims, int) else dims
        dims = sorted({dim % max(1, labels.dim()) for dim in dims}) if labels.dim() else []

        def mixed(shape: Sequence[int]) -> Tensor:
            found = follow.units.unite_along(labels, dims)
            left = [length for dim, length in enumerate(found.shape) if dim not in dims]
            return found if len(shape) == found.dim() else found.reshape(left)

        for tensor in _tensors(output):
            if tensor is args[0]:
                follow.put(tensor, mixed(tensor.shape))
            else:  # mixed only if anything reads it: attention also returns its scores' mean, which few read
                cast(Any, tensor)._labels = partial(mixed, tensor.shape)
        return None

    return mix


def over_pixels(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Mix the values of each channel, the second dimension."""
    labels = follow.labels(args[0])
    assert labels is not None
    mixed = follow.units.unite_along(labels, range(2, labels.dim()))
    for tensor in _tensors(output):
        follow.put(tensor, mixed)


def pad(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Put constants at the sides, or pixels of the same channels."""
    mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
    (move if mode == "constant" else over_pixels)(follow, func, output, args, kwargs)


def normalise_groups(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Mix the channels of each group."""
    images, groups = args[0], int(args[1])
    labels = follow.labels(images)
    if labels is not None:
        split = labels.reshape(labels.shape[0], groups, labels.shape[1] // groups, -1)
        follow.units.unite_along(split, [2, 3])
    by_channel(follow, func, output, (images, *args[2:]), kwargs)


def normalise_last(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Mix the last dimensions, whose shape is the second argument."""
    labels = follow.labels(args[0])
    if labels is not None:
        follow.units.unite_along(labels, range(labels.dim() - len(args[1]), labels.dim()))
    follow.put(output, follow.combine(output.shape, _tensors((args, kwargs)), multiplies=False))


def linear(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Read the last dimension by the weight's columns, and produce that of its rows."""
    inputs, weight, bias = cast(Any, (*args, *kwargs.values(), None)[:3])
    layer(follow, output, inputs, weight, bias, (-1, 1, 0))


def convolve(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Read and produce channels, the second dimension; those of a group of a grouped convolution together."""
    values = dict(zip(("input", "weight", "bias", "stride", "padding", "", "groups"), args, strict=False)) | dict(
        kwargs
    )
    inputs, weight, groups = values["input"], values["weight"], values.get("groups", 1)
    transposed = "transpose" in _name(func)
    channel = -weight.dim() + 1
    if groups == 1:
        dims = (channel, 0, 1) if transposed else (channel, 1, 0)
        return layer(follow, output, inputs, weight, values.get("bias"), dims)
    labels, rows = follow.labels(inputs), None if transposed else follow.axis(weight, 0, output=True)
    if labels is None or rows is None:
        return keep_all(follow, func, output, args, kwargs)
    follow.count(weight, output)
    read = follow.units.unite_along(labels, [d for d in range(labels.dim()) if d != labels.dim() + channel]).flatten()
    if bool((read <= WHOLE).all()):
        follow.units.keep(rows)
    both = torch.cat([read.reshape(groups, -1), rows.reshape(groups, -1)], dim=1)
    follow.units.unite_along(both, [1])
    _produce(follow, output, rows, values.get("bias"), channel)
    return None


def layer(
    follow: Follow, output: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None, dims: tuple[int, int, int]
) -> None:
    """Follow a layer: ``dims`` are the channels of its inputs, and the weight's dimensions of inputs and outputs."""
    channel, read, produced = dims
    labels = follow.labels(inputs)
    columns, rows = follow.axis(weight, read, output=False), follow.axis(weight, produced, output=True)
    if columns is None or rows is None:  # a weight that is computed, as by weight_norm
        return keep_all(follow, None, output, (inputs, weight, bias), {})
    follow.count(weight, inputs if (read, produced) == (0, 1) else output)
    shape = [1] * inputs.dim()
    shape[channel] = -1
    if labels is None:
        follow.units.keep(columns)
    else:
        follow.units.unite(labels, columns.view(shape))
        if bool((labels == CONSTANT).all()):
            follow.units.keep(columns)
    _produce(follow, output, rows, bias, channel)
    return None


def _produce(follow: Follow, output: Tensor, rows: Tensor, bias: Tensor | None, channel: int) -> None:
    if bias is not None and (labels := follow.labels(bias)) is not None:
        follow.units.unite(rows, labels)
    shape = [1] * output.dim()
    shape[channel] = -1
    follow.put(output, rows.view(shape))


def look_up(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Keep the width of an embedding of categories."""
    follow.put(output, torch.tensor(WHOLE))


def multiply(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Follow a product of matrices that are both computed: what is summed is mixed."""
    left, right = (_labels_or_constant(follow, each) for each in (*args, *kwargs.values())[:2])
    if left.dim() < 2 or right.dim() < 2:
        return keep_all(follow, func, output, args, kwargs)
    follow.put(output, _product(follow, left, right))
    return None


def _labels_or_constant(follow: Follow, tensor: Tensor) -> Tensor:
    labels = follow.labels(tensor)
    return torch.tensor(CONSTANT).expand(tensor.shape) if labels is None else labels


def _product(follow: Follow, left: Tensor, right: Tensor) -> Tensor:
    """Return the labels of [..., N, K] x [..., K, M]."""
    most = max(left.dim(), right.dim())
    left, right = (each.reshape(aligned(each.shape, most)) for each in (left, right))
    return follow.contract(left.unsqueeze(-1), right.unsqueeze(-3), left.dim() - 1)


def attend(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Follow scores of queries and keys, and their mixture of values."""
    query, key, value = (_labels_or_constant(follow, each) for each in (*args, *kwargs.values())[:3])
    scores = _product(follow, query, key.transpose(-1, -2))
    follow.put(output, _product(follow, scores, value))


def einsum(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Follow a product of two tensors in Einstein's notation, with one sum."""
    operands = args[1:] if len(args) > 2 else args[1]
    terms, _, result = cast(str, args[0]).replace(" ", "").partition("->")
    letters = "".join(dict.fromkeys(terms.replace(",", "")))
    summed = [each for each in letters if each not in result]
    parts = terms.split(",")
    if len(parts) != 2 or len(summed) != 1 or "." in terms or any(len(set(each)) < len(each) for each in parts):
        return keep_all(follow, func, output, args, kwargs)
    full: list[Tensor] = []
    for part, operand in zip(parts, operands, strict=True):
        labels = _labels_or_constant(follow, operand).permute([part.index(each) for each in letters if each in part])
        for place, letter in enumerate(letters):
            labels = labels if letter in part else labels.unsqueeze(place)
        full.append(labels)
    left = letters.replace(summed[0], "")
    product = follow.contract(full[0], full[1], letters.index(summed[0]))
    follow.put(output, product.permute([left.index(each) for each in result]))
    return None


def write(follow: Follow, func: Any, output: Any, args: Arguments, kwargs: Mapping[str, Any]) -> None:
    """Write values over a part of a tensor."""
    target, place, value = args
    labels = _labels_or_constant(follow, target).contiguous().clone()
    new = _labels_or_constant(follow, value) if isinstance(value, Tensor) else torch.tensor(CONSTANT)
    labels[place] = new
    follow.put(target, labels)


def _rules() -> dict[str, Rule]:
    rules: dict[str, Rule] = {**dict.fromkeys(MOVES.split(), move), **dict.fromkeys(VALUES.split(), combine)}
    rules |= dict.fromkeys(("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "ravel"), reshape)
    rules |= dict.fromkeys(MIXES.split(), along(1, None)) | dict.fromkeys(("sort", "argsort", "glu"), along(1, -1))
    rules |= dict.fromkeys(("normalize", "topk", "norm", "kthvalue"), along(2, -1)) | {"norm": along(2, None)}
    rules |= {"normalize": along(2, 1), "glu": keep_all}
    for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool"):
        rules |= {f"{kind}{dims}d": over_pixels for dims in (1, 2, 3)}
        rules |= {f"{kind}{dims}d_with_indices": over_pixels for dims in (1, 2, 3)}
    rules |= dict.fromkeys(("interpolate", "upsample", "boolean_dispatch", "fn"), over_pixels)
    rules |= dict.fromkeys(("batch_norm", "instance_norm", "prelu"), by_channel)
    rules |= {"group_norm": normalise_groups, "layer_norm": normalise_last, "rms_norm": normalise_last}
    rules |= {f"conv{dims}d": convolve for dims in (1, 2, 3)}
    rules |= {f"conv_transpose{dims}d": convolve for dims in (1, 2, 3)}
    rules |= dict.fromkeys(("matmul", "bmm", "mm", "rmatmul"), multiply)
    return rules | {
        "linear": linear,
        "embedding": look_up,
        "scaled_dot_product_attention": attend,
        "einsum": einsum,
        "setitem": write,
        "pad": pad,
    }


MOVES = """
permute transpose squeeze unsqueeze contiguous clone expand expand_as chunk split unbind narrow select getitem
index_select cat concat concatenate stack hstack vstack flip roll repeat tile movedim moveaxis swapaxes swapdims t
T mT detach data broadcast_to tensor_split repeat_interleave rot90 diagonal alias unsafe_chunk unsafe_split
split_with_sizes requires_grad adjoint
"""
VALUES = """
relu relu6 gelu silu hardswish hardsigmoid hardtanh sigmoid tanh elu selu celu leaky_relu softplus mish logsigmoid
log_sigmoid softsign tanhshrink softshrink hardshrink threshold rrelu exp exp2 expm1 log log2 log10 log1p sqrt
rsqrt abs absolute neg negative pow square clamp clip clamp_min clamp_max sin cos erf erfc reciprocal round floor
ceil sign dropout dropout1d dropout2d dropout3d feature_dropout alpha_dropout feature_alpha_dropout to type float
double half bfloat16 type_as add iadd radd sub isub rsub subtract mul imul rmul multiply div idiv rdiv truediv
itruediv rtruediv divide true_divide maximum minimum where masked_fill lerp addcmul addcdiv atan2 fmod remainder eq
ne lt le gt ge logical_and logical_or logical_not nan_to_num sinh cosh asinh atan copysign isfinite isnan fill zero
rpow ipow invert floor_divide and or xor cpu positive float_power
"""
MIXES = """
mean sum amax amin max min softmax log_softmax softmin logsumexp var std var_mean std_mean prod cumsum cumprod
argmax argmin any all median nansum nanmean vector_norm
"""
PRODUCTS = {"mul", "multiply", "masked_fill", "where", "div", "truediv", "divide", "true_divide"}
RULES = _rules()
