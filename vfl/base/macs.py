"""Multiply-accumulates and parameters of a model: the units of the compute ledger."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from vfl.base.modules import modules_by_name, uncompiled

COUNTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.Bilinear)
"""Layers in which every output value is one weight row times as many inputs."""

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Layers in which every input value is multiplied by one weight row."""

RECURRENT = (nn.RNNBase, nn.RNNCellBase)
"""Layers that multiply every weight matrix once with every element of a sequence."""

NAMESPACES = {"aten", "prim", "prims"}
"""Namespaces of PyTorch's own operations; those of others have no known count."""


@dataclass
class Macs:
    """Multiply-accumulates of one sample's forward pass."""

    layers: Counter[str] = field(default_factory=Counter[str])
    """Counts by the layer's name; those of matrix products outside of such a layer under ''."""
    uncounted: set[str] = field(default_factory=set[str])
    """Operations of other packages, which count nothing as nobody knows what they compute."""


def count_macs(model: nn.Module, *example_inputs: Tensor) -> int:
    """Return the multiply-accumulates of one sample's forward pass: ``measure_macs``, summed."""
    return measure_macs(model, *example_inputs).layers.total()


def measure_macs(model: nn.Module, *example_inputs: Tensor) -> Macs:
    """Return the multiply-accumulates of layers and of other matrix products, such as those of attention.

    `example_inputs` [B, ...] each: their first sample is passed through in evaluation mode, without torch.compile and
    PyTorch's fused transformer layers. Bias, normalization, activation, pooling, embedding lookups and products of
    single values count nothing; a layer called twice counts twice, a recurrent one once per step; groups, stride,
    padding and dilation are accounted for by the shapes. Modes and BatchNorm statistics stay unchanged.

    Raises ValueError for an empty batch.
    """
    if len(example_inputs[0]) == 0:
        raise ValueError("example_inputs: expected at least one sample")
    modes = {module: module.training for module in model.modules()}
    products = _MatrixProducts()
    hooks = [
        hook
        for name, module in modules_by_name(model).items()
        if isinstance(module, COUNTED + TRANSPOSED + RECURRENT)
        for hook in (
            module.register_forward_pre_hook(products.enter),
            module.register_forward_hook(partial(products.leave, name)),
        )
    ]
    try:
        model.eval()  # draws nothing and leaves the BatchNorm statistics
        # With any function mode, PyTorch's transformer layers compute step by step.
        with torch.no_grad(), uncompiled(model) as plain, BaseTorchFunctionMode(), products:
            plain(*(example[:1] for example in example_inputs))
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes.items():
            module.training = training
    return products.found


class _MatrixProducts(TorchDispatchMode):
    """Counts layers by their hooks, and PyTorch's matrix products outside of them by their operands' shapes."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # unannotated in PyTorch
        self.found = Macs()
        self._inside = 0

    def enter(self, module: nn.Module, inputs: Any) -> None:
        self._inside += 1

    def leave(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        self._inside -= 1
        count = _recurrent if isinstance(module, RECURRENT) else _per_value
        self.found.layers[name] += count(module, inputs[0], output)

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if not self._inside:
            count = PRODUCTS.get(func.overloadpacket)
            if count is not None:
                self.found.layers[""] += count(args)
            elif func.namespace not in NAMESPACES:
                self.found.uncounted.add(str(func.overloadpacket))
        return output


def _product(left: int, right: int) -> Callable[[tuple[Any, ...]], int]:
    """Return the count of a product [..., N, K] x [..., K, M] of the operands at these places."""
    return lambda args: args[left].numel() * args[right].shape[-1]


def _convolution(args: tuple[Any, ...]) -> int:
    images, weight, transposed = args[0], args[1], args[6]
    if transposed:
        return images.numel() * weight[0].numel()
    sides = zip(images.shape[2:], weight.shape[2:], *args[3:6], strict=True)
    pixels = 1
    for side, kernel, stride, padding, dilation in sides:
        pixels *= (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return len(images) * pixels * weight.numel()


def _attention(args: tuple[Any, ...]) -> int:
    """Count scores, [..., N, K] x [..., K, M], and their mixture of the values [..., M, V]."""
    query, key, value = args[:3]
    return query[..., 0].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])


_aten = cast(Any, torch.ops.aten)
PRODUCTS: dict[Any, Callable[[tuple[Any, ...]], int]] = {
    _aten.mm: _product(0, 1),
    _aten.bmm: _product(0, 1),
    _aten.addmm: _product(1, 2),
    _aten.baddbmm: _product(1, 2),
    _aten.addbmm: _product(1, 2),
    _aten.convolution: _convolution,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention: _attention,
    _aten._scaled_dot_product_efficient_attention: _attention,
    _aten._scaled_dot_product_cudnn_attention: _attention,
}
"""The count of an operation by its arguments."""


def _per_value(module: nn.Module, values: Tensor, output: Tensor) -> int:
    weight = cast(Tensor, module.weight)
    return (values if isinstance(module, TRANSPOSED) else output).numel() * weight[0].numel()


def _recurrent(module: nn.Module, sequence: Tensor | PackedSequence, _: object) -> int:
    """Count all layers and directions: each has its own weights, and takes every step once."""
    elements = sequence.data
    steps = elements.numel() // elements.shape[-1]  # of the one sample: all dimensions but the features'
    return steps * sum(weight.numel() for weight in module.parameters() if weight.dim() == 2)


def skipped_macs(model: nn.Module, *example: Tensor) -> int:
    """Return the multiply-accumulates of a sample's backward pass that frozen layers save.

    A layer's backward pass counts as two forward ones: one for the gradient of its weights, which a frozen layer does
    not need, and one for that of its input, which it needs only if a layer before it is trained.
    """
    frozen = {name: each for name, each in modules_by_name(model).items() if _is_frozen(each)}
    if not frozen:
        return 0
    passing: set[str] = set()

    def note(name: str, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if any(isinstance(each, Tensor) and each.requires_grad for each in inputs):
            passing.add(name)

    hooks = [each.register_forward_pre_hook(partial(note, name)) for name, each in frozen.items()]
    modes = {each: each.training for each in model.modules()}
    try:
        model.eval()  # draws nothing and leaves the statistics
        with torch.enable_grad():
            model(*(each[:1] for each in example))
    finally:
        for hook in hooks:
            hook.remove()
        for each, mode in modes.items():
            each.training = mode
    counts = measure_macs(model, *example).layers
    return sum(counts[name] * (1 if name in passing else 2) for name in frozen)


def _is_frozen(layer: nn.Module) -> bool:
    own = [*layer.parameters(recurse=False)]
    return bool(own) and not any(each.requires_grad for each in own)


def count_parameters(model: nn.Module) -> int:
    """Return the number of trainable and frozen parameters of the model, shared ones once; buffers do not count."""
    return sum(parameter.numel() for parameter in model.parameters())
