"""Multiply-accumulates and parameters of a model: the units of the compute ledger."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

COUNTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""Layers in which every output value is one weight row times as many inputs."""

RECURRENT = (nn.RNNBase, nn.RNNCellBase)
"""Layers that multiply every weight matrix once with every element of a sequence."""

REFUSED = (nn.MultiheadAttention, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Layers that multiply by weights in another pattern: an error is better than a wrong count."""


def count_macs(model: nn.Module, *example_inputs: Tensor) -> int:
    """Return the multiply-accumulates of one sample's forward pass: convolutions, linear and recurrent layers only.

    `example_inputs` [B, ...] each: their first sample is passed through in evaluation mode. Bias, normalization,
    activation, pooling, embedding lookups and the gates' products of single values count nothing; a layer called twice
    counts twice, a recurrent one once per step; groups, stride, padding and dilation are accounted for by the shapes.
    Modes and BatchNorm statistics stay unchanged.

    Raises ValueError for an empty batch or a layer that it cannot count (attention, transposed, packed sequences).
    """
    if len(example_inputs[0]) == 0:
        raise ValueError("example_inputs: expected at least one sample")
    modes = {module: module.training for module in model.modules()}
    for module in modes:
        if isinstance(module, REFUSED):
            raise ValueError(f"cannot count the multiply-accumulates of a {type(module).__name__}")
    total = 0

    def add(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal total
        total += _recurrent(module, inputs[0]) if isinstance(module, RECURRENT) else _per_output(module, output)

    hooks = [m.register_forward_hook(add) for m in modes if isinstance(m, COUNTED + RECURRENT)]
    try:
        model.eval()  # draws nothing and leaves the BatchNorm statistics
        with torch.no_grad():
            model(*(example[:1] for example in example_inputs))
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes.items():
            module.training = training
    return total


def _per_output(module: nn.Module, output: Tensor) -> int:
    assert isinstance(module, COUNTED)
    return output.numel() * module.weight[0].numel()


def _recurrent(module: nn.Module, sequence: Tensor | PackedSequence) -> int:
    """Count all layers and directions: each has its own weights, and takes every step once."""
    if isinstance(sequence, PackedSequence):
        raise ValueError("cannot count the multiply-accumulates of a packed sequence; pass a padded one")
    steps = sequence.numel() // sequence.shape[-1]  # of the one sample: all dimensions but the features'
    return steps * sum(weight.numel() for weight in module.parameters() if weight.dim() == 2)


def count_parameters(model: nn.Module) -> int:
    """Return the number of trainable and frozen parameters of the model, shared ones once; buffers do not count."""
    return sum(parameter.numel() for parameter in model.parameters())
