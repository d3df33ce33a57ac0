"""Values as whole numbers of steps: uniform levels in a block, rounded at random or to the nearest.

Sources: QSGD (Alistarh et al., NeurIPS 2017), with the largest magnitude for the norm, as its section 4 proposes; noise
that the receiver subtracts: Roberts, "Picture Coding Using Pseudo-Random Noise" (1962).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vfl.base.random import stream_of

BLOCK = 2048
"""Entries that share a float32 scale, in row-major order; a scale costs 1/64 bit per entry."""


@dataclass(frozen=True)
class BetweenLargest:
    """Levels -s to s for s = 2 ** (bits - 1) - 1 between the largest magnitudes of a block."""

    bits: int

    @property
    def largest(self) -> int:
        """The largest whole number, s."""
        return 2 ** (self.bits - 1) - 1

    def divide(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return values in units of their block's step, [blocks, BLOCK] with zeros appended, and the steps."""
        blocks = _blocks(values)
        scales = blocks.abs().amax(dim=1)
        # Divided first: the largest value gives exactly 1, and no level is passed.
        return blocks / torch.where(scales > 0, scales, 1.0).unsqueeze(1) * self.largest, scales / self.largest


@dataclass(frozen=True)
class OfSpread:
    """Levels a ``step`` apart, in units of the root mean square of a block; at least 0.36.

    With an entropy code, the size is within a quarter of a bit of the least that any code needs for the same error
    (Gish and Pierce, "Asymptotically efficient quantizing", 1968).
    """

    step: float
    largest: int = 127
    """Largest whole number: no value exceeds sqrt(BLOCK) times the root mean square."""

    def divide(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return values in units of their block's step, [blocks, BLOCK] with zeros appended, and the steps."""
        blocks = _blocks(values)
        scales = blocks.abs().amax(dim=1)
        # Divided first: squares neither overflow nor vanish.
        relative = blocks / torch.where(scales > 0, scales, 1.0).unsqueeze(1)
        counts = torch.full((len(blocks),), float(BLOCK))
        counts[-1:] += values.numel() - blocks.numel()
        steps = (relative.square().sum(dim=1) / counts).sqrt() * self.step
        return relative / torch.where(steps > 0, steps, 1.0).unsqueeze(1), scales * steps


Spacing = BetweenLargest | OfSpread
"""Distance between levels."""


def blocks_of(entries: int) -> int:
    """Return the number of blocks, and scales, of ``entries`` entries."""
    return math.ceil(entries / BLOCK)


def quantise(values: Tensor, spacing: Spacing, stream: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Return whole numbers of steps, float32 in the shape of the values, and the blocks' steps.

    The values are float32 on the CPU and finite. Zeros stay zeros. With a stream a value is rounded up with a
    probability equal to its distance from the level below, so that its mean is exact; without one to the nearest level,
    which is never farther away than zero is.
    """
    shares, steps = spacing.divide(values)
    # floor(x + u) of a uniform u in [0, 1) rounds up with the probability of x's fraction, u = 0.5 to the nearest.
    dither = 0.5 if stream is None else torch.rand(shares.shape, generator=stream)
    # Of magnitudes, so that a value and its negative are rounded alike. float32 may round x + u up to levels + 1.
    codes = (shares.abs() + dither).floor().clamp(max=spacing.largest).copysign(shares)
    return codes.view(-1)[: values.numel()].view(values.shape), steps


def dequantise(codes: Tensor, steps: Tensor) -> Tensor:
    """Return the values of whole numbers: each times its block's step."""
    flat = codes.flatten()
    return (flat * steps.repeat_interleave(BLOCK)[: len(flat)]).view(codes.shape)


def quantise_dithered(values: Tensor, spacing: Spacing) -> tuple[Tensor, Tensor]:
    """Return whole numbers and steps as ``quantise`` does, rounded down after adding noise in [0, 1).

    The noise is a function of the steps, so that the receiver can compute and subtract it (``dequantise_dithered``).
    The error is then uniform within half a step, whatever the value: its mean square is half that of random rounding. A
    zero does not stay one.
    """
    shares, steps = spacing.divide(values)
    noisy = shares.view(-1)[: values.numel()] + _noise(steps, values.numel())
    return noisy.floor().clamp(max=spacing.largest).view(values.shape), steps


def dequantise_dithered(codes: Tensor, steps: Tensor) -> Tensor:
    """Return the values of whole numbers made by ``quantise_dithered``."""
    return dequantise(codes - _noise(steps, codes.numel()).view(codes.shape) + 0.5, steps)


def _noise(steps: Tensor, entries: int) -> Tensor:
    return torch.rand(entries, generator=stream_of(steps, "dither"))


def _blocks(values: Tensor) -> Tensor:
    """Return values as [blocks, BLOCK], the last block padded with zeros, which change no largest magnitude."""
    padded = torch.zeros(blocks_of(values.numel()), BLOCK)
    padded.view(-1)[: values.numel()] = values.flatten()
    return padded
