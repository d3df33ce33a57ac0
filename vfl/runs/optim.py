"""The optimizer of both sides, with a state that refers to parameters by name."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from vfl.config import OptimizerConfig
from vfl.config.schedules import value_at

_PREFIXES = {"momentum_buffer": "", "exp_avg": "exp_avg/", "exp_avg_sq": "exp_avg_sq/", "step": "step/"}
"""Prefix of a parameter's name in the saved state, by the optimizer's own name of the value."""
BETAS = (0.9, 0.999)
"""Decay of Adam's mean and mean square of the gradients."""


class Optimizer(ABC):
    """An optimizer of ``torch.optim`` by its functional form, with the same bits, ``param_groups`` and ``state``.

    The classes themselves are not used because the first object of one imports PyTorch's compiler, which takes two
    seconds, and because their hooks take longer than a step of a small model. One fused kernel per step is used where
    that is faster.
    """

    def __init__(self, parameters: Iterable[Tensor], config: OptimizerConfig) -> None:
        params = list(parameters)
        self.param_groups: list[dict[str, Any]] = [{"params": params, "lr": value_at(config.learning_rate, 0)}]
        self.state: dict[Tensor, dict[str, Any]] = {}
        """State of every parameter that has taken a step."""
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
            moved, gradients = list[Tensor](), list[Tensor]()
            for each in group["params"]:
                # A parameter without a gradient stays as it is, even with weight decay and momentum.
                if each.grad is not None:
                    moved.append(each)
                    gradients.append(each.grad)
            if self.config.clip_gradient is not None:
                nn.utils.clip_grad_norm_(moved, self.config.clip_gradient)
            self._move(moved, gradients, group["lr"])

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
    """``torch.optim.Adam``, or AdamW if configured."""

    def _move(self, moved: list[Tensor], gradients: list[Tensor], learning_rate: float) -> None:
        means, squares, steps = list[Tensor](), list[Tensor](), list[Tensor]()
        for parameter in moved:
            state = self.state.get(parameter) or self._begin(parameter)
            means.append(state["exp_avg"])
            squares.append(state["exp_avg_sq"])
            steps.append(state["step"])
        adam(
            moved,
            gradients,
            means,
            squares,
            [],  # the largest squares, for amsgrad only
            steps,
            foreach=False,
            fused=self.fused,
            decoupled_weight_decay=self.config.kind == "adamw",
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=learning_rate,
            weight_decay=self.config.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def _begin(self, parameter: Tensor) -> dict[str, Any]:
        """Return the initial state of a parameter."""
        self.state[parameter] = {
            "step": self.step_count(parameter, torch.tensor(0.0)),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        return self.state[parameter]

    def step_count(self, parameter: Tensor, value: Tensor) -> Tensor:
        """Return a step count on the device that the kernels expect: the parameter's if they are fused."""
        return value.to(parameter.device if self.fused else "cpu", copy=True)


MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Function that makes a user's own optimizer for some parameters."""


def build_optimizer(
    module: nn.Module, config: OptimizerConfig, make: MakeOptimizer | None = None
) -> Optimizer | torch.optim.Optimizer:
    """Return the optimizer of all parameters of a module, ``make``'s if given. Raises ValueError if that is none."""
    if make is not None:
        made = cast(object, make(list(module.parameters())))
        if not isinstance(made, torch.optim.Optimizer):
            raise ValueError(f"optimizer: gives {type(made).__name__}; return a torch.optim.Optimizer")
        return made
    return (SGD if config.kind == "sgd" else Adam)(module.parameters(), config)


def set_learning_rate(optimizer: Optimizer | torch.optim.Optimizer, rate: float) -> None:
    """Set the scheduled rate of an exchange; a user's own optimizer keeps its rate."""
    if isinstance(optimizer, Optimizer):
        for group in optimizer.param_groups:
            group["lr"] = rate


def optimizer_state(optimizer: Optimizer | torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """Return momentum, or Adam's two moments and steps, by parameter name, for parameters that have taken a step."""
    return {
        _PREFIXES.get(entry, f"{entry}/") + name: value
        for name, parameter in module.named_parameters()
        for entry, value in sorted(optimizer.state.get(parameter, {}).items(), key=_as_ever)
        if isinstance(value, Tensor)
    }


def _as_ever(item: tuple[str, Any]) -> tuple[int, str]:
    """Return the sort key of a parameter's entry, which keeps the order of saved states."""
    known = [*_PREFIXES]
    return (known.index(item[0]) if item[0] in known else len(known), item[0])


def load_optimizer_state(
    optimizer: Optimizer | torch.optim.Optimizer, module: nn.Module, saved: Mapping[str, Tensor]
) -> None:
    """Restore what ``optimizer_state`` returned, moments in each parameter's own memory format."""
    optimizer.state.clear()  # a parameter that had taken no step when it was saved keeps nothing
    names = {prefix.removesuffix("/"): entry for entry, prefix in _PREFIXES.items()}
    for key, value in saved.items():
        prefix, _, name = key.rpartition("/")
        parameter, entry = module.get_parameter(name), names.get(prefix, prefix)
        if isinstance(optimizer, Adam) and entry == "step":
            restored = optimizer.step_count(parameter, value)
        else:
            same = value.shape == parameter.shape
            restored = torch.empty_like(parameter).copy_(value) if same else value.clone()
        optimizer.state.setdefault(parameter, {})[entry] = restored
