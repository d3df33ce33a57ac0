"""Rows computed one at a time, so that a row's result has the same bits whichever rows it came with."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LIGHT_MACS = 10_000_000
"""Multiply-accumulates of rows that a thread which also serves a stream computes by itself: some milliseconds."""
ROW_MACS = 50_000
"""Multiply-accumulates in the time that a row's calls take, however small its model."""


def is_light(macs: int, rows: int) -> bool:
    """Return whether some rows of so many multiply-accumulates each take less than handing them to another thread."""
    return rows * (macs + ROW_MACS) <= LIGHT_MACS


def each_alone(compute: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """Return ``compute`` of tensors [B, ...], computed for each row alone.

    Kernels order their sums by the number of rows and by how a row lies in memory: on some processors a row's last bits
    depend on its place in a batch, also in one of fixed size. Each row is copied, so that it begins where memory does.
    """
    rows = range(len(inputs[0]))
    return torch.cat([compute([tensor[row : row + 1].clone() for tensor in inputs]) for row in rows])
