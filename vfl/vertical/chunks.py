"""Rows in chunks of one size, so that a row's result has the same bits whichever rows it is computed with."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

CHUNK = 32
"""Rows computed at once of samples that are predicted."""


def in_chunks(compute: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """Return ``compute`` of tensors [B, ...], `CHUNK` rows at a time, the last chunk filled up with its first row.

    Kernels order their sums by the number of rows: the same row alone, or among 200, may differ in its last bits.
    """
    results: list[Tensor] = []
    for start in range(0, len(inputs[0]), CHUNK):
        chunk = [tensor[start : start + CHUNK] for tensor in inputs]
        rows = len(chunk[0])
        if rows < CHUNK:
            chunk = [torch.cat([part, part[:1].expand(CHUNK - rows, *part.shape[1:])]) for part in chunk]
        results.append(compute(chunk)[:rows])
    return torch.cat(results)
