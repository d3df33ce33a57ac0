"""VGG16's convolutions with their normalization, forward and backward, one by one: bfloat16 against float32.

Times are processor seconds, which other work on the machine disturbs least; meant for one thread.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from scripts.lab.benchmarks.paired import Options, Result, interleave, ratios, required_ratio
from vfl.base.random import generator
from vfl.models.convolution import VGG_BLOCKS, Convolution, fast_convolution, plain_convolution
from vfl.models.features import scaled_width

WARM_UP = 3
SIDE = 16
"""Pixels of a quadrant's side."""
ALPHAS = (0.0, 0.3, 0.6, 0.8)
SIDES: dict[str, tuple[Convolution, torch.dtype]] = {
    "float32": (fast_convolution, torch.float32),
    "bfloat16": (fast_convolution, torch.bfloat16),
    "bfloat16 by PyTorch": (plain_convolution, torch.bfloat16),
}


def benchmark_layers(options: Options) -> list[Result]:
    """Measure every layer at every alpha, with the exact widths that uniform pruning leaves."""
    return [_measure(options, alpha, *layer) for alpha in ALPHAS for layer in _layers(options.width * (1 - alpha))]


def _layers(width: float) -> list[tuple[int, int, int]]:
    """Return input channels, output channels and side of VGG16's convolutions, equal ones once."""
    layers: dict[tuple[int, int, int], None] = {}
    channels, side = 3, SIDE
    for block in VGG_BLOCKS[16]:
        for out_channels in (scaled_width(c, width) for c in block):
            layers[channels, out_channels, side] = None
            channels = out_channels
        side = max(1, side // 2)
    return list(layers)


def _measure(options: Options, alpha: float, channels: int, out_channels: int, side: int) -> Result:
    steps = {
        name: _step(nn.Sequential(*convolution(channels, out_channels, True)), dtype, options.batch_size, side)
        for name, (convolution, dtype) in SIDES.items()
    }
    raw = interleave(steps, options.pairs, WARM_UP, clock=time.process_time)
    ratio_of = ("bfloat16", "float32")
    return Result(
        f"alpha {alpha:g}: a convolution and its normalization, forwards and backwards",
        f"{channels} to {out_channels} at {side}x{side}",
        raw,
        ratio_of,
        details={"to PyTorch's": median(ratios(raw, ("bfloat16", "bfloat16 by PyTorch")))},
        requirement=required_ratio(raw, ratio_of, "<=", 1.0),
    )


def _step(layer: nn.Sequential, dtype: torch.dtype, batch: int, side: int) -> Callable[[], None]:
    layer.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # missing in the stub
    first = layer[0]
    assert isinstance(first, nn.Conv2d)
    stream = generator(0, "benchmark", owner="layers")
    shapes = ((batch, channels, side, side) for channels in (first.in_channels, first.out_channels))
    images, gradient = (
        torch.randn(shape, generator=stream).to(dtype, memory_format=torch.channels_last) for shape in shapes
    )
    images.requires_grad_(first.in_channels > 3)  # nobody asks for the gradient of the pixels

    def step() -> None:
        layer.zero_grad()
        images.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            output = layer(images)
        output.backward(gradient)

    return step
