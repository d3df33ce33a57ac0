"""The optimizer as both sides use it, with a state that names parameters instead of counting them."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from vfl.config import OptimizerConfig
from vfl.lightweighting import shrink
from vfl.lightweighting.schedule import value_at

_PREFIXES = {"momentum_buffer": "", "exp_avg": "exp_avg/", "exp_avg_sq": "exp_avg_sq/", "step": "step/"}
"""What stands before a parameter's name in the saved state, by what the optimizer keeps of it."""


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


class Optimizer(shrink.Optimizer, Protocol):
    """What an exchange does with an optimizer."""

    def zero_grad(self) -> None:
        """Drop all gradients."""
        ...

    def step(self) -> Any:
        """Take a step with every parameter that has a gradient."""
        ...


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> Optimizer:
    """Return the optimizer of all parameters of a module."""
    if config.kind == "sgd":
        return SGD(module.parameters(), config)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.kind]
    parameters = list(module.parameters())
    return kind(
        parameters,
        lr=value_at(config.learning_rate, 0),
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=all(parameter.is_contiguous() for parameter in parameters),  # as SGD
    )


def set_learning_rate(optimizer: Optimizer, config: OptimizerConfig, round_index: int) -> None:
    """Set the learning rate that the schedule holds for a round."""
    for group in optimizer.param_groups:
        group["lr"] = value_at(config.learning_rate, round_index)


def optimizer_state(optimizer: Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """Return momentum, or Adam's two moments and steps, by parameter name; who took no step has none."""
    return {
        prefix + name: optimizer.state[parameter][entry]
        for name, parameter in module.named_parameters()
        for entry, prefix in _PREFIXES.items()
        if parameter in optimizer.state and entry in optimizer.state[parameter]
    }


def load_optimizer_state(optimizer: Optimizer, module: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Restore what ``optimizer_state`` returned, moments in each parameter's own memory format."""
    optimizer.state.clear()
    for name, parameter in module.named_parameters():
        entries = {entry: saved[prefix + name] for entry, prefix in _PREFIXES.items() if prefix + name in saved}
        if entries:
            optimizer.state[parameter] = {
                entry: _step_count(optimizer, parameter, value)
                if entry == "step"
                else torch.empty_like(parameter).copy_(value)
                for entry, value in entries.items()
            }


def _step_count(optimizer: Optimizer, parameter: Tensor, value: Tensor) -> Tensor:
    """Return Adam's count where its kernels want it: at the parameter if they are fused."""
    assert isinstance(optimizer, torch.optim.Adam)
    return value.to(parameter.device if optimizer.defaults["fused"] else "cpu", copy=True)
