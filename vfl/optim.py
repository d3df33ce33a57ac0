"""SGD as both sides use it, with a state that names parameters instead of counting them."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from vfl.config import OptimizerConfig
from vfl.lightweighting.schedule import value_at


class SGD:
    """``torch.optim.SGD``: its function, so its bits, with ``param_groups`` and ``state`` as there.

    The class itself is not used because its first object imports PyTorch's compiler, which takes two seconds. Takes
    one fused kernel per step where that is the faster form.
    """

    def __init__(self, parameters: Iterable[Tensor], config: OptimizerConfig) -> None:
        params = list(parameters)
        self.param_groups: list[dict[str, Any]] = [{"params": params, "lr": value_at(config.learning_rate, 0)}]
        self.state: dict[Tensor, dict[str, Any]] = {}
        """The momentum buffer of every parameter that took a step."""
        self.config = config
        # The fused CPU kernel copies every gradient that is not contiguous: slower for channels_last than plain steps.
        self.fused = all(parameter.is_contiguous() for parameter in params)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take a step with every parameter that has a gradient."""
        for group in self.param_groups:
            moved: list[Tensor] = [parameter for parameter in group["params"] if parameter.grad is not None]
            buffers = [self.state.get(parameter, {}).get("momentum_buffer") for parameter in moved]
            sgd(
                moved,
                [parameter.grad for parameter in moved if parameter.grad is not None],
                buffers,
                foreach=False,
                fused=self.fused,
                lr=group["lr"],
                momentum=self.config.momentum,
                weight_decay=self.config.weight_decay,
                nesterov=self.config.nesterov,
                dampening=0.0,
                maximize=False,
            )
            for parameter, buffer in zip(moved, buffers, strict=True):
                if buffer is not None:  # without momentum there is none
                    self.state[parameter] = {"momentum_buffer": buffer}


def build_sgd(module: nn.Module, config: OptimizerConfig) -> SGD:
    """Return SGD over all parameters of a module."""
    return SGD(module.parameters(), config)


def set_learning_rate(optimizer: SGD, config: OptimizerConfig, round_index: int) -> None:
    """Set the learning rate that the schedule holds for a round."""
    for group in optimizer.param_groups:
        group["lr"] = value_at(config.learning_rate, round_index)


def momentum_of(optimizer: SGD, module: nn.Module) -> dict[str, Tensor]:
    """Return the momentum buffers by parameter name; parameters that took no step have none."""
    buffers: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        buffer = optimizer.state.get(parameter, {}).get("momentum_buffer")
        if buffer is not None:
            buffers[name] = buffer
    return buffers


def load_momentum(optimizer: SGD, module: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Restore what ``momentum_of`` returned, in each parameter's own memory format."""
    optimizer.state.clear()
    for name, parameter in module.named_parameters():
        if name in buffers:
            optimizer.state[parameter] = {"momentum_buffer": torch.empty_like(parameter).copy_(buffers[name])}
