"""Rows computed one at a time, so that a row's result has the same bits whichever rows it came with."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def each_alone(compute: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """Return ``compute`` of tensors [B, ...], computed for each row alone.

    Kernels order their sums by the number of rows and by how a row lies in memory: on some processors a row's last bits
    depend on its place in a batch, also in one of fixed size. Each row is copied, so that it begins where memory does.
    """
    rows = range(len(inputs[0]))
    return torch.cat([compute([tensor[row : row + 1].clone() for tensor in inputs]) for row in rows])
