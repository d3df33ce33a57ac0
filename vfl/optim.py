"""SGD as both sides use it, with a state that names parameters instead of counting them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vfl.config import OptimizerConfig
from vfl.lightweighting.schedule import value_at


def build_sgd(module: nn.Module, config: OptimizerConfig) -> torch.optim.SGD:
    """Return SGD over all parameters of a module, with one fused kernel per step where that is the faster form."""
    parameters = list(module.parameters())
    return torch.optim.SGD(
        parameters,
        lr=value_at(config.learning_rate, 0),
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.nesterov,
        # The fused CPU kernel copies every gradient that is not contiguous: slower for channels_last than plain steps.
        fused=all(parameter.is_contiguous() for parameter in parameters),
    )


def set_learning_rate(optimizer: torch.optim.SGD, config: OptimizerConfig, round_index: int) -> None:
    """Set the learning rate that the schedule holds for a round."""
    for group in optimizer.param_groups:
        group["lr"] = value_at(config.learning_rate, round_index)


def momentum_of(optimizer: torch.optim.SGD, module: nn.Module) -> dict[str, Tensor]:
    """Return the momentum buffers by parameter name; parameters that took no step have none."""
    buffers: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        buffer = optimizer.state[parameter].get("momentum_buffer") if parameter in optimizer.state else None
        if buffer is not None:
            buffers[name] = buffer
    return buffers


def load_momentum(optimizer: torch.optim.SGD, module: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Restore what ``momentum_of`` returned, in each parameter's own memory format."""
    optimizer.state.clear()
    for name, parameter in module.named_parameters():
        if name in buffers:
            optimizer.state[parameter] = {"momentum_buffer": torch.empty_like(parameter).copy_(buffers[name])}
