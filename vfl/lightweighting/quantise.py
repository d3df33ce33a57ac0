"""Values of few bits: uniform levels between the largest magnitudes of a block, rounded at random or to the nearest.

Source: QSGD (Alistarh et al., NeurIPS 2017), with the largest magnitude for the norm, as its section 4 proposes.
"""

import math

import torch
from torch import Tensor

BLOCK = 2048
"""Entries that share a scale, in row-major order: it costs 1/64 bit each."""


def blocks_of(entries: int) -> int:
    """Return how many scales so many entries have."""
    return math.ceil(entries / BLOCK)


def quantise(values: Tensor, bits: int, stream: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Return whole numbers of ``bits`` bits, float32 in the shape of the values, and the blocks' scales.

    The values are float32 on the CPU and finite, the levels -s to s for s = 2 ** (bits - 1) - 1. Zeros stay zeros. With
    a stream a value is rounded up with the probability of its distance to the level below, so that its mean is exact;
    without one to the nearest level, which is never farther away than zero is.
    """
    levels = 2 ** (bits - 1) - 1
    # Padding of the last block is zeros: it changes no largest magnitude, and is cut off again.
    padded = torch.zeros(blocks_of(values.numel()), BLOCK)
    padded.view(-1)[: values.numel()] = values.flatten()
    scales = padded.abs().amax(dim=1)
    # Divided first: the largest value gives exactly 1, and no level is passed.
    shares = padded / torch.where(scales > 0, scales, 1.0).unsqueeze(1) * levels
    # floor(x + u) of a uniform u in [0, 1) rounds up with the probability of x's fraction, u = 0.5 to the nearest.
    dither = 0.5 if stream is None else torch.rand(shares.shape, generator=stream)
    # Of magnitudes, so that a value and its negative are rounded alike. float32 may round x + u up to levels + 1.
    codes = (shares.abs() + dither).floor().clamp(max=levels).copysign(shares)
    return codes.view(-1)[: values.numel()].view(values.shape), scales / levels


def dequantise(codes: Tensor, steps: Tensor) -> Tensor:
    """Return the values of whole numbers, by the blocks' distances between levels."""
    flat = codes.flatten()
    return (flat * steps.repeat_interleave(BLOCK)[: len(flat)]).view(codes.shape)
