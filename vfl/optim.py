"""The optimizer as both sides use it, with a state that names parameters instead of counting them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from vfl.config import OptimizerConfig
from vfl.config.schedules import value_at

_PREFIXES = {"momentum_buffer": "", "exp_avg": "exp_avg/", "exp_avg_sq": "exp_avg_sq/", "step": "step/"}
"""What stands before a parameter's name in the saved state, by what the optimizer keeps of it."""


class Optimizer(ABC):
    """An optimizer of ``torch.optim`` by its function, so its bits, with ``param_groups`` and ``state`` as there.

    The classes themselves are not used because the first object of one imports PyTorch's compiler, which takes two
    seconds, and because their hooks take longer than a step of a small model. Takes one fused kernel per step where
    that is the faster form.
    """

    def __init__(self, parameters: Iterable[Tensor], config: OptimizerConfig) -> None:
        params = list(parameters)
        self.param_groups: list[dict[str, Any]] = [{"params": params, "lr": value_at(config.learning_rate, 0)}]
        self.state: dict[Tensor, dict[str, Any]] = {}
        """What is kept of every parameter that took a step."""
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
            # One without a gradient stays as it is, also under weight decay and momentum.
            moved = [each for each in group["params"] if each.grad is not None]
            self._move(moved, [each.grad for each in moved], group["lr"])

    @abstractmethod
    def _move(self, moved: list[Tensor], gradients: list[Tensor], learning_rate: float) -> None: ...


class SGD(Optimizer):
    """``torch.optim.SGD``."""

    def _move(self, moved: list[Tensor], gradients: list[Tensor], learning_rate: float) -> None:
        # `sgd` puts the buffers that it makes at first steps into this list.
        buffers = [self.state.get(parameter, {}).get("momentum_buffer") for parameter in moved]
        sgd(
            moved,
            gradients,
            buffers,
            foreach=False,
            fused=self.fused,
            lr=learning_rate,
            momentum=self.config.momentum,
            weight_decay=self.config.weight_decay,
            nesterov=self.config.nesterov,
            dampening=0.0,
            maximize=False,
        )
        for parameter, buffer in zip(moved, buffers, strict=True):
            if buffer is not None:  # without momentum there is none
                self.state[parameter] = {"momentum_buffer": buffer}


class Adam(Optimizer):
    """``torch.optim.Adam``, or AdamW where the configuration says so."""

    def _move(self, moved: list[Tensor], gradients: list[Tensor], learning_rate: float) -> None:
        states = [self.state.get(parameter) or self._begin(parameter) for parameter in moved]
        adam(
            moved,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],  # the largest squares, of amsgrad alone
            [state["step"] for state in states],
            foreach=False,
            fused=self.fused,
            decoupled_weight_decay=self.config.kind == "adamw",
            amsgrad=False,
            beta1=self.config.betas[0],
            beta2=self.config.betas[1],
            lr=learning_rate,
            weight_decay=self.config.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def _begin(self, parameter: Tensor) -> dict[str, Any]:
        """Return what is kept of a parameter that takes its first step."""
        self.state[parameter] = {
            "step": self.step_count(parameter, torch.tensor(0.0)),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        return self.state[parameter]

    def step_count(self, parameter: Tensor, value: Tensor) -> Tensor:
        """Return a count of steps where the kernels want it: at the parameter if they are fused."""
        return value.to(parameter.device if self.fused else "cpu", copy=True)


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> Optimizer:
    """Return the optimizer of all parameters of a module."""
    return (SGD if config.kind == "sgd" else Adam)(module.parameters(), config)


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
    optimizer.state.clear()  # a parameter that had taken no step when it was saved keeps nothing
    for name, parameter in module.named_parameters():
        entries = {entry: saved[prefix + name] for entry, prefix in _PREFIXES.items() if prefix + name in saved}
        if entries:
            optimizer.state[parameter] = {
                entry: optimizer.step_count(parameter, value)
                if isinstance(optimizer, Adam) and entry == "step"
                else torch.empty_like(parameter).copy_(value)
                for entry, value in entries.items()
            }
