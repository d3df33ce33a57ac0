"""A module whose layers hold the weights of K clients, so that one pass computes all of them.

Between the layers the samples of all clients are concatenated, [K * B, ...], and the module's own code (ReLU, pooling,
flattening, residual sums) runs on them unchanged: it must treat samples independently, as all models here do. Only
layers with parameters handle clients separately. A module that has parameters of its own and is not a known layer is
computed whole, by ``torch.func.vmap``.

Shapes: K clients, B samples of each, I inputs, O outputs, C channels, H x W pixels.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]  # the only common base
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]  # the only common base

from vfl.config import ConfigError
from vfl.horizontal.flat import FlatModel


@dataclass
class Stack:
    """Tensors that all layers of a stacked module read; set before a pass."""

    weights: Sequence[Tensor] = ()
    """[K, *shape] of every parameter."""
    gradients: Sequence[Tensor] = ()
    """[K, *shape]: memory in which large gradients are computed, without a copy."""
    statistics: Sequence[Tensor] = ()
    """[K, *shape] of every floating-point buffer; a pass updates them."""
    counts: Sequence[int] = field(default_factory=list[int])
    """Number of real samples of each client; padding follows up to B."""
    called: set[int] = field(default_factory=set[int])
    """Places whose memory for a gradient is taken in this pass."""


def stack_model(model: FlatModel) -> tuple[nn.Module, Stack]:
    """Return a module [K * B, ...] -> [K * B, ...] with the model's structure, and the stack that it reads.

    Raises ConfigError for a layer that cannot be computed for several clients at once, or is random.
    """
    stack = Stack()
    layout = _Layout(
        stack,
        {id(parameter): place for place, parameter in enumerate(model.parameters)},
        {id(buffer): place for place, buffer in enumerate(model.buffers)},
    )
    return _stacked(model.module, layout), stack


@dataclass
class _Layout:
    """Indices of the original module's tensors in the stack."""

    stack: Stack
    parameters: dict[int, int]
    buffers: dict[int, int]
    taken: set[int] = field(default_factory=set[int])

    def place_if_any(self, parameter: Tensor | None) -> int | None:
        """Return a parameter's index, None for None."""
        return None if parameter is None else self.place(parameter)

    def place(self, parameter: Tensor) -> int:
        """Return a parameter's index. Raises ConfigError if two layers share it, or it is frozen."""
        if id(parameter) not in self.parameters:
            raise refusal("a parameter is frozen")
        if id(parameter) in self.taken:
            raise refusal("two layers share a parameter")
        self.taken.add(id(parameter))
        return self.parameters[id(parameter)]

    def statistic(self, buffer: Tensor | None) -> int | None:
        """Return a floating-point buffer's index, None for None."""
        return None if buffer is None else self.buffers[id(buffer)]


def refusal(reason: str) -> ConfigError:
    """Return the error for a model that cannot be stacked."""
    return ConfigError(f"horizontal.engine: batched cannot stack models.classifier: {reason}; use sequential or auto")


def _stacked(module: nn.Module, layout: _Layout) -> nn.Module:
    if isinstance(module, nn.RNNBase):
        raise refusal(f"a recurrent layer ({type(module).__name__}) computes one client at a time")
    if isinstance(module, _DropoutNd) and module.p > 0:
        raise refusal("dropout would draw other numbers than client by client")
    if isinstance(module, nn.Linear):
        return _Linear(module, layout)
    if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
        return _Conv2d(module, layout)
    if isinstance(module, nn.GroupNorm):
        return _GroupNorm(module, layout)
    if isinstance(module, _BatchNorm):
        return _BatchNormalization(module, layout)
    if [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
        return _Vmapped(module, layout)
    twin = copy.copy(module)
    # The copy is shallow: the original keeps its own children. named_children() would leave out those that are None,
    # which a module's code may ask for by name.
    twin._modules = {name: child and _stacked(child, layout) for name, child in module._modules.items()}  # pyright: ignore[reportPrivateUsage]
    return twin


class _Layer(nn.Module):
    """A layer with parameters."""

    def __init__(self, layout: _Layout) -> None:
        super().__init__()
        self.stack = layout.stack

    def by_client(self, samples: Tensor) -> Tensor:
        """Return [K * B, ...] as [K, B, ...]."""
        return samples.reshape(len(self.stack.counts), -1, *samples.shape[1:])

    def weight_of(self, place: int | None) -> Tensor | None:
        """Return the stacked parameter [K, ...] at an index."""
        return None if place is None else self.stack.weights[place]


class _Linear(_Layer):
    def __init__(self, linear: nn.Linear, layout: _Layout) -> None:
        super().__init__(layout)
        self.place = layout.place(linear.weight)
        self.bias_place = layout.place_if_any(linear.bias)

    def forward(self, samples: Tensor) -> Tensor:
        weight_KOI = self.stack.weights[self.place]
        flat_KBI = samples.reshape(len(weight_KOI), -1, weight_KOI.shape[2])
        # A layer that is called twice has two gradients, which autograd adds: they cannot share the memory.
        memory = None if self.place in self.stack.called else self.stack.gradients[self.place]
        self.stack.called.add(self.place)
        outputs_KBO = _Product.apply(flat_KBI, weight_KOI, self.weight_of(self.bias_place), memory)
        return outputs_KBO.reshape(*samples.shape[:-1], -1)  # as nn.Linear: dimensions between B and I are kept


class _Product(torch.autograd.Function):
    """x W^T + b of every client. The weights' gradient is computed in its final place and layout.

    PyTorch's own backward makes a transposed one, and copying that takes longer than the product.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs_KBI: Tensor, weight_KOI: Tensor, bias_KO: Tensor | None, gradient_KOI: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(inputs_KBI, weight_KOI)
        ctx.gradient_KOI = gradient_KOI
        if bias_KO is None:
            return torch.bmm(inputs_KBI, weight_KOI.mT)
        return torch.baddbmm(bias_KO[:, None], inputs_KBI, weight_KOI.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_KBO: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub names no arguments
        inputs_KBI, weight_KOI = ctx.saved_tensors
        # The first layer's inputs are data, whose gradient nobody needs.
        grad_inputs = torch.bmm(grad_KBO, weight_KOI) if ctx.needs_input_grad[0] else None
        grad_bias = grad_KBO.sum(dim=1) if ctx.needs_input_grad[2] else None
        return grad_inputs, torch.bmm(grad_KBO.mT, inputs_KBI, out=ctx.gradient_KOI), grad_bias, None


class _Conv2d(_Layer):
    """A convolution per client, as groups of one convolution."""

    def __init__(self, convolution: nn.Conv2d, layout: _Layout) -> None:
        super().__init__(layout)
        self.place = layout.place(convolution.weight)
        self.bias_place = layout.place_if_any(convolution.bias)
        self.stride, self.padding = convolution.stride, convolution.padding
        self.dilation, self.groups = convolution.dilation, convolution.groups

    def forward(self, samples: Tensor) -> Tensor:
        clients = len(self.stack.counts)
        bias_KO = self.weight_of(self.bias_place)
        outputs = F.conv2d(  # clients are groups of channels: none sees another's
            _clients_as_channels(self.by_client(samples)),
            self.stack.weights[self.place].flatten(0, 1),
            None if bias_KO is None else bias_KO.flatten(),
            self.stride,  # pyright: ignore[reportArgumentType]  # pairs, which the stub knows as any tuple
            self.padding,  # pyright: ignore[reportArgumentType]
            self.dilation,  # pyright: ignore[reportArgumentType]
            clients * self.groups,
        )
        return _channels_as_clients(outputs, clients)


class _GroupNorm(_Layer):
    def __init__(self, norm: nn.GroupNorm, layout: _Layout) -> None:
        super().__init__(layout)
        self.place, self.bias_place = layout.place_if_any(norm.weight), layout.place_if_any(norm.bias)
        self.groups, self.eps = norm.num_groups, norm.eps

    def forward(self, samples: Tensor) -> Tensor:
        # Statistics are of one sample each, so all clients' samples go at once; only scale and shift are a client's.
        normalised = self.by_client(F.group_norm(samples, self.groups, eps=self.eps))
        scale_KC, shift_KC = self.weight_of(self.place), self.weight_of(self.bias_place)
        if scale_KC is not None and shift_KC is not None:
            shape = (len(scale_KC), 1, -1, *[1] * (samples.dim() - 2))
            normalised = normalised * scale_KC.reshape(shape) + shift_KC.reshape(shape)
        return normalised.flatten(0, 1)


class _BatchNormalization(_Layer):
    """Batch normalization of every client by its own batch, with its own running statistics."""

    def __init__(self, norm: _BatchNorm, layout: _Layout) -> None:
        super().__init__(layout)
        if norm.momentum is None:  # its counter is an integer buffer, which is in no stack
            raise refusal("BatchNorm with momentum=None counts batches")
        self.place, self.bias_place = layout.place_if_any(norm.weight), layout.place_if_any(norm.bias)
        self.mean_place = layout.statistic(norm.running_mean)
        self.variance_place = layout.statistic(norm.running_var)
        self.momentum, self.eps = norm.momentum, norm.eps

    def forward(self, samples: Tensor) -> Tensor:
        samples_KB = self.by_client(samples)
        clients, size = samples_KB.shape[:2]
        if min(self.stack.counts) == size:  # statistics are by channel, and channels side by side are by client
            return _channels_as_clients(self._normalise(_clients_as_channels(samples_KB), slice(None)), clients)
        # What fills up a short batch must not count, and there are few such steps.
        outputs: list[Tensor] = []
        for client, count in enumerate(self.stack.counts):
            normalised = self._normalise(samples_KB[client, :count], slice(client, client + 1))
            outputs.append(F.pad(normalised, [0, 0] * (samples.dim() - 1) + [0, size - count]))  # last dimension first
        return torch.cat(outputs)

    def _normalise(self, samples: Tensor, clients: slice) -> Tensor:
        """Normalise [B, clients * C, ...]."""
        places = (self.place, self.bias_place)
        # [clients, C] becomes [clients * C], the order of the channels in `samples`.
        scale, shift = (None if place is None else self.stack.weights[place][clients].flatten() for place in places)
        if self.mean_place is None or self.variance_place is None:
            return F.batch_norm(samples, None, None, scale, shift, True, 0.0, self.eps)
        mean_KC, variance_KC = (
            self.stack.statistics[place][clients] for place in (self.mean_place, self.variance_place)
        )
        mean, variance = mean_KC.flatten().clone(), variance_KC.flatten().clone()  # autograd keeps them as they are
        outputs = F.batch_norm(samples, mean, variance, scale, shift, True, self.momentum, self.eps)
        mean_KC.copy_(mean.view_as(mean_KC))
        variance_KC.copy_(variance.view_as(variance_KC))
        return outputs


class _Vmapped(_Layer):
    """Any other module with parameters, and all that it contains."""

    def __init__(self, module: nn.Module, layout: _Layout) -> None:
        super().__init__(layout)
        for inner in module.modules():
            if isinstance(inner, nn.RNNBase | _DropoutNd):
                raise refusal(f"{type(module).__name__} has a {type(inner).__name__} within")
        if [*module.buffers()]:
            raise refusal(f"{type(module).__name__} has buffers")
        self.places = {name: layout.place(parameter) for name, parameter in module.named_parameters()}
        self.calls = [module]  # in a list, so that its parameters are not this module's

    def forward(self, samples: Tensor) -> Tensor:
        weights = {name: self.stack.weights[place] for name, place in self.places.items()}
        module = self.calls[0]

        def one_client(own: dict[str, Tensor], samples_B: Tensor) -> Tensor:
            return functional_call(module, own, (samples_B,))

        return vmap(one_client)(weights, self.by_client(samples)).flatten(0, 1)


def _clients_as_channels(samples_KBC: Tensor) -> Tensor:
    """Return [K, B, C, ...] as [B, K * C, ...]."""
    return samples_KBC.transpose(0, 1).flatten(1, 2)


def _channels_as_clients(samples: Tensor, clients: int) -> Tensor:
    """Return [B, K * C, ...] as [K * B, C, ...]."""
    by_client = samples.reshape(len(samples), clients, -1, *samples.shape[2:])
    return by_client.transpose(0, 1).flatten(0, 1)
