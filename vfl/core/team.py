"""A party's batch over several processes: each computes some rows, with the same result as one process.

All processes hold the same model and data and do everything alike, except that a training batch goes through the
feature model in as many parts as there are processes. Batch normalization uses the statistics of the whole batch, every
process gets the embeddings of all parts, and the gradients of the weights are added up.

DistributedDataParallel is not used: its parameter buckets do not survive pruning, and its SyncBatchNorm needs CUDA. A
sum over the processes has the same bits in each of them, so they stay equal. The first one checks the owner's consent.

Shapes: n samples of a batch, D embedding width, C channels.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vfl.core.batch_statistics import BatchNorm, batch_norms
from vfl.runs.runtime import Runtime
from vfl.runs.torchrun_group import Workers

Call = Callable[..., Tensor]


class Team:
    """The processes of a party under torchrun. All must make the same calls in the same order."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    def _shares(self, samples: int) -> bool:
        """Return whether there are two rows for each process; otherwise all compute the whole batch."""
        return samples >= 2 * self.workers.size

    def embed(self, model: nn.Module, call: Call, inputs: Sequence[Tensor], runtime: Runtime) -> Tensor:
        """Return the embeddings [n, D] of a batch with their graph, by ``call``, which calls the model.

        Computes this process's rows and gets those of the others. Raises PeerLost.
        """
        samples = len(inputs[0])
        if not self._shares(samples):
            return runtime.forward(call, *inputs)
        # In ranks' order and consecutive, so that the parts one below the other are the batch.
        rows = torch.arange(samples).tensor_split(self.workers.size)[self.workers.rank]
        own = slice(int(rows[0]), int(rows[-1]) + 1)
        with _normalized_by(partial(self._normalize, samples), model):
            part_nD = runtime.forward(call, *(tensor[own] for tensor in inputs))
        return _Gathered.apply(part_nD, own, samples, self.workers)

    def add_gradients(self, model: nn.Module, samples: int) -> None:
        """Turn the gradients of the weights into those of all n samples. Raises PeerLost."""
        if not self._shares(samples):
            return
        gradients = [weights.grad for weights in model.parameters() if weights.grad is not None]
        # All in one exchange: every exchange waits for the slowest process.
        total = self.workers.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        parts = torch.split(total, [gradient.numel() for gradient in gradients])
        for gradient, summed in zip(gradients, parts, strict=True):
            gradient.copy_(summed.view_as(gradient))

    def _normalize(self, samples: int, layer: BatchNorm, part: Tensor) -> Tensor:
        """Normalize a part [b, C, ...] of n samples by the statistics of all (Ioffe & Szegedy 2015, Algorithm 1)."""
        apart_from_channels = [dim for dim in range(part.dim()) if dim != 1]
        over_channels = [-1 if dim == 1 else 1 for dim in range(part.dim())]
        count = samples * part[0, 0].numel()
        values = part.float()  # under autocast sums in half precision would lose digits
        # Two passes over the values, the second one about the mean: squares of raw values would cancel.
        mean_C = _Summed.apply(values.sum(apart_from_channels), self.workers) / count
        centred = values - mean_C.view(over_channels)
        variance_C = _Summed.apply(centred.square().sum(apart_from_channels), self.workers) / count
        normal = centred * torch.rsqrt(variance_C + layer.eps).view(over_channels)
        with torch.no_grad():
            layer.get_buffer("num_batches_tracked").add_(1)
            tracked = int(layer.num_batches_tracked or 0)
            momentum = 1 / tracked if layer.momentum is None else layer.momentum
            layer.get_buffer("running_mean").lerp_(mean_C, momentum)
            layer.get_buffer("running_var").lerp_(variance_C * (count / (count - 1)), momentum)
        if layer.affine:
            normal = normal * layer.weight.view(over_channels) + layer.bias.view(over_channels)
        return normal.to(part.dtype)


@contextmanager
def _normalized_by(normalize: Any, model: nn.Module) -> Generator[None]:
    """Make the layers that normalize by a batch in training use ``normalize(layer, input)``."""
    layers = [layer for layer in batch_norms(model).values() if layer.training]
    for layer in layers:
        layer.forward = partial(normalize, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class _Summed(torch.autograd.Function):
    """Sum over all processes; its gradient reaches the input of each of them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, workers: Workers) -> Tensor:
        ctx.workers = workers
        return workers.sum(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub names no arguments
        return ctx.workers.sum(gradient), None  # each process knows what its own rows make of the sum


class _Gathered(torch.autograd.Function):
    """Concatenation of the parts of all processes; the computation after it is the same in all."""

    @staticmethod
    def forward(ctx: Any, part_nD: Tensor, own: slice, samples: int, workers: Workers) -> Tensor:
        ctx.own = own
        whole_nD = part_nD.new_zeros(samples, *part_nD.shape[1:])
        whole_nD[own] = part_nD
        return workers.sum(whole_nD)

    @staticmethod
    def backward(ctx: Any, gradient_nD: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub names no arguments
        return gradient_nD[ctx.own], None, None, None  # no sum: all processes have the same gradient of the whole
