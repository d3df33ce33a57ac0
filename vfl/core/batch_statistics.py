"""Batch statistics of a model's current weights, estimated on a sample.

BatchNorm's running statistics lag behind the weights: ten exchanges refresh 65 % of them, and a pruning makes them
wrong at once. The exact statistics of a sample under the present weights take one forward pass (precise BatchNorm: Wu &
Johnson 2021, "Rethinking 'Batch' in BatchNorm", section 3; after a pruning: Li et al. 2020, "EagleEye", section 3.2).

Shapes: B samples, C channels.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from vfl.base.modules import modules_by_name
from vfl.base.random import generator
from vfl.core.initial_weights import StillNorm
from vfl.runs.runtime import Runtime

Statistics = dict[str, Tensor]
"""Statistics that replace a model's own running ones, by their buffers' names; empty keeps its own."""
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def sample_rows(seed: int, samples: int, wanted: int) -> Tensor:
    """Return the rows of the sample, ascending: the same for every party and round; all if there are no more."""
    return torch.randperm(samples, generator=generator(seed, "batch_statistics"))[:wanted].sort().values


def batch_norms(model: nn.Module) -> dict[str, BatchNorm]:
    """Return the layers that keep running statistics and are not frozen, by name."""
    layers = ((name, each) for name, each in modules_by_name(model).items() if not isinstance(each, StillNorm))
    return {name: layer for name, layer in layers if isinstance(layer, BatchNorm) and layer.track_running_stats}


def estimate_statistics(model: nn.Module, inputs: Sequence[Tensor], runtime: Runtime) -> Statistics:
    """Return mean and variance (divided by the count) [C] of every batch normalization's input, over the whole batch.

    One pass suffices: each layer's input is that of a model which normalises with the statistics found so far. Nothing
    in the model changes. It takes the memory of evaluating the same batch.
    """
    statistics: Statistics = {}

    def measure(name: str, layer: BatchNorm, images: Tensor) -> Tensor:
        apart_from_channels = [dim for dim in range(images.dim()) if dim != 1]
        # Welford's algorithm in float64: nothing cancels, however far a mean is from 0.
        variance_C, mean_C = torch.var_mean(images.float(), dim=apart_from_channels, correction=0)
        statistics[f"{name}.running_mean"], statistics[f"{name}.running_var"] = mean_C, variance_C
        # A hook's value replaces the layer's output, which was normalised with the old statistics.
        return F.batch_norm(images, mean_C, variance_C, layer.weight, layer.bias, eps=layer.eps)

    hooks = [
        layer.register_forward_hook(lambda _, inputs, __, name=name, layer=layer: measure(name, layer, inputs[0]))
        for name, layer in batch_norms(model).items()
    ]
    try:
        embed_still(model, inputs, runtime)
    finally:
        for hook in hooks:
            hook.remove()
    return statistics


def embed_still(
    model: nn.Module, inputs: Sequence[Tensor], runtime: Runtime, statistics: Statistics | None = None
) -> Tensor:
    """Embed in evaluation mode, with other statistics if given; weights, statistics and random streams stay."""
    was_training = model.training
    model.eval()

    def call(*batch: Tensor) -> Tensor:
        return functional_call(model, statistics or {}, batch)

    try:
        with torch.inference_mode():
            return runtime.forward(call, *inputs)
    finally:
        model.train(was_training)
