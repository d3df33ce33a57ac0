"""Rows computed one at a time, so that a row's result has the same bits whichever rows it came with.

Kernels order their sums by the number of rows and by how a row lies in memory: on some processors a row's last bits
depend on its place in a batch, also in one of fixed size. `RowByRow` computes many rows at once where they have the
bits of each alone: its linear layers multiply each row as a matrix or a vector of its own. What has these bits, and
whether the complete model has in a batch of some size, is tried with probes; what differs is computed row by row.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LIGHT_MACS = 10_000_000
"""Multiply-accumulates of rows that a thread which also serves a stream computes by itself: some milliseconds."""
ROW_MACS = 50_000
"""Multiply-accumulates in the time that a row's calls take, however small its model."""

ALIGNED = 16
"""Values of float32 in the 64 bytes at whose multiples memory begins."""
SIZES = 64, 32, 16, 8, 4, 2
"""Rows that are computed at once."""
MOST_WEIGHTS = 1 << 20
"""Weights of a linear layer for which rows at once save time; reading more takes longer than calls do."""


def is_light(macs: int, rows: int) -> bool:
    """Return whether some rows of so many multiply-accumulates each take less than handing them to another thread."""
    return rows * (macs + ROW_MACS) <= LIGHT_MACS


def each_alone(compute: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """Return ``compute`` of tensors [B, ...] for each row alone, copied so that it begins where memory does."""
    rows = range(len(inputs[0]))
    return torch.cat([compute([tensor[row : row + 1].clone() for tensor in inputs]) for row in rows])


class RowByRow:
    """A model, in evaluation mode, that computes each row's result [B, ...] as if it were alone.

    Args:
        model: is changed; nobody else may use it.
        forward: applies a model to its inputs.
        probes: returns some rows like those that will come, [n, ...] each.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[..., Tensor],
        probes: Callable[[int], Sequence[Tensor]],
    ) -> None:
        self._model, self._forward, self._probes = model, forward, probes
        self._same: dict[int, bool] = {}
        """True for a number of rows that at once have the bits of each alone."""

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the results of inputs [B, ...] each."""
        if len(inputs[0]) == 1:
            return self._compute([tensor.clone() for tensor in inputs])
        start, results = 0, list[Tensor]()
        while start < len(inputs[0]):
            # The largest size with the bits of single rows. Few sizes, so that few have to be tried.
            size = next((size for size in SIZES if self._is_same(size, len(inputs[0]) - start)), 1)
            # A copy begins at an aligned address, as the probes did: the order of a kernel's sums depends on it too.
            results.append(self._compute([tensor[start : start + size].clone() for tensor in inputs]))
            start += size
        return torch.cat(results) if len(results) > 1 else results[0]

    def _compute(self, inputs: Sequence[Tensor]) -> Tensor:
        return self._forward(self._model, *inputs)

    def _is_same(self, size: int, rows: int) -> bool:
        if size > rows:
            return False
        if size not in self._same:
            if not self._same:  # at the first need: single rows are quicker in PyTorch's own layers
                _split_rows(self._model, self._forward)
            probes = self._probes(size)
            self._same[size] = torch.equal(self._compute(probes), each_alone(self._compute, probes))
        return self._same[size]


class _RowMatrices(nn.Linear):
    """A linear layer that multiplies each of several rows [B, I] as a matrix of its own."""

    def forward(self, input: Tensor) -> Tensor:
        if len(input) == 1 or input.dim() != 2:
            return super().forward(input)
        # A product of B rows may share sums among them; B products of one row cannot. The weights are not copied.
        weight_BIO = self.weight.t().expand(len(input), -1, -1)
        if cast(Tensor | None, self.bias) is None:
            return torch.bmm(input.unsqueeze(1), weight_BIO).squeeze(1)
        return torch.baddbmm(self.bias.expand(len(input), 1, -1), input.unsqueeze(1), weight_BIO).squeeze(1)


class _RowVectors(nn.Linear):
    """A linear layer that multiplies its weights by several rows [B, I] one after another, each a vector."""

    def forward(self, input: Tensor) -> Tensor:
        if len(input) == 1 or input.dim() != 2:
            return super().forward(input)
        width, weight_OI, bias_O = input.shape[1], self.weight, cast(Tensor | None, self.bias)
        # Each row begins at a multiple of 64 bytes, as memory of its own would.
        rows_BI = input.new_empty(len(input), -(-width // ALIGNED) * ALIGNED)[:, :width].copy_(input)
        if bias_O is None:
            return torch.stack([torch.mv(weight_OI, row_I) for row_I in rows_BI.unbind()])
        return torch.stack([torch.addmv(bias_O, weight_OI, row_I) for row_I in rows_BI.unbind()])


class _EachRow(nn.Linear):
    """A linear layer that multiplies several rows [B, I] one after another."""

    def forward(self, input: Tensor) -> Tensor:
        if len(input) == 1 or input.dim() != 2:
            return super().forward(input)
        return each_alone(lambda row: F.linear(row[0], self.weight, self.bias), [input])


def _split_rows(model: nn.Module, forward: Callable[..., Tensor]) -> None:
    """Let a model's linear layers compute rows as if each were alone, the quickest way that has these bits."""
    draw = torch.Generator().manual_seed(0)
    for layer in model.modules():
        if type(layer) is nn.Linear and layer.weight.numel() <= MOST_WEIGHTS:
            probe_BI = torch.randn(SIZES[0], layer.weight.shape[1], generator=draw).to(layer.weight)
            layer.__class__ = _EachRow  # a change of class keeps parameters, hooks and the place in the model
            alone_BO = forward(layer, probe_BI)
            for layer.__class__ in (_RowMatrices, _RowVectors, _EachRow):  # quickest first; the last has these bits
                if torch.equal(forward(layer, probe_BI), alone_BO):
                    break
