"""Replacing the tensors of a model, and of its optimizer, by the entries that survive a pruning.

`positions` maps the name of a parameter or buffer to an int64 tensor of its new shape, which holds positions in the
flattened old tensor: one form for every kind of layer, for both its dimensions and for the optimizer's state.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vfl.compression.attention import put_twin, stop_nesting

Positions = Mapping[str, Tensor]


class PrunableOptimizer(Protocol):
    """Parts of an optimizer that pruning changes; ``torch.optim.Optimizer`` and ``vfl.runs.optim`` have them."""

    param_groups: list[dict[str, Any]]
    state: Any


def select(values: Tensor, positions: Tensor) -> Tensor:
    """Return the entries of `values` at the flat `positions`, in their shape, keeping a channels_last layout."""
    selected = values.detach().flatten()[positions.to(values.device)]
    if not _is_channels_last(values):
        return selected
    return torch.empty_like(selected, memory_format=torch.channels_last).copy_(selected)


def _is_channels_last(tensor: Tensor) -> bool:
    """Return whether the strides are those of channels_last; `is_contiguous` accepts both if a side has length 1."""
    if tensor.dim() != 4:
        return False
    layout = torch.empty(tensor.shape, device="meta", memory_format=torch.channels_last)
    return tensor.stride() == layout.stride()


def shrink_model(model: nn.Module, positions: Positions) -> dict[Tensor, nn.Parameter]:
    """Replace the named parameters and buffers, drop all gradients, and return the new parameter of each old one.

    Parameters are new objects because autograd remembers the shape of an old one while a graph that used it lives. They
    keep `requires_grad`.
    """
    replaced: dict[Tensor, nn.Parameter] = {}
    owners = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, kept in positions.items():
        prefix, _, leaf = name.rpartition(".")
        old = getattr(model.get_submodule(prefix), leaf)
        new = select(old, kept)
        if isinstance(old, nn.Parameter):
            new = replaced[old] = nn.Parameter(new, requires_grad=old.requires_grad)
        for other, tensor in owners:
            if tensor is old:  # several layers may share it
                prefix, _, leaf = other.rpartition(".")
                setattr(model.get_submodule(prefix), leaf, new)
    model.zero_grad(set_to_none=True)
    return replaced


def fit_widths(model: nn.Module) -> None:
    """Set the attributes of PyTorch's layers that name a width, or count groups, to what their tensors have."""
    for module in model.modules():
        weight = vars(module)["_parameters"].get("weight")
        match module:
            case nn.Linear():
                module.out_features, module.in_features = module.weight.shape
            case nn.modules.conv._ConvNd():  # pyright: ignore[reportPrivateUsage]  # convolutions of all dimensions
                outputs, inputs = module.weight.shape[:2]
                if module.transposed:
                    outputs, inputs = inputs, outputs
                elif module.groups > 1:  # of which each has as many outputs as before
                    module.groups = outputs // (module.out_channels // module.groups)
                module.out_channels, module.in_channels = outputs, inputs * module.groups
            case nn.GroupNorm() if weight is not None:
                module.num_groups = len(weight) // (module.num_channels // module.num_groups)
                module.num_channels = len(weight)
            case nn.modules.batchnorm._NormBase():  # pyright: ignore[reportPrivateUsage]
                statistics = weight if weight is not None else module.running_mean
                module.num_features = module.num_features if statistics is None else len(statistics)
            case nn.PReLU():
                module.num_parameters = len(module.weight)
            case _:
                pass


def set_counts(model: nn.Module, counts: Mapping[tuple[str, str], int]) -> None:
    """Set attributes of modules, such as ``num_heads``; an attention layer can then take fewer heads."""
    for (name, attribute), count in counts.items():
        module = model.get_submodule(name)
        if getattr(module, attribute) != count:
            put_twin(module)
            setattr(module, attribute, count)
    stop_nesting(model)


def take_shapes(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a dense model the shapes of a pruned one's weights, which it can then load."""
    own = model.state_dict()
    narrower = {name: each.shape for name, each in weights.items() if name in own and each.shape != own[name].shape}
    shrink_model(model, {name: torch.zeros(shape, dtype=torch.int64) for name, shape in narrower.items()})
    fit_widths(model)
    for name, shape in narrower.items():
        layer = model.get_submodule(name.rpartition(".")[0])
        if isinstance(layer, nn.Conv2d) and layer.groups > 1 and name.endswith("weight"):  # depthwise: as many groups
            layer.groups = shape[0]


def check_optimizer(optimizer: PrunableOptimizer, model: nn.Module, positions: Positions) -> None:
    """Raise ValueError unless the optimizer holds trainable parameters of the model and its state can be carried.

    State can be carried if it consists of scalars and tensors of the parameter's shape, as for SGD with momentum and
    Adam.
    """
    parameters = dict(model.named_parameters())
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if held.isdisjoint(parameters.values()) and any(p.requires_grad for p in parameters.values()):
        raise ValueError("optimizer: it holds none of the model's parameters; was it built for another model?")
    for name in (each for each in parameters if each in positions):
        for key, value in optimizer.state.get(parameters[name], {}).items():
            if isinstance(value, Tensor) and value.dim() > 0 and value.shape != parameters[name].shape:
                raise ValueError(f"optimizer: its state {key!r} of {name!r} does not have the parameter's shape")


def carry_optimizer(
    optimizer: PrunableOptimizer, replaced: Mapping[Tensor, nn.Parameter], positions_of: Mapping[Tensor, Tensor]
) -> None:
    """Rebind the parameter groups to the new parameters, in order, with the surviving entries of their state.

    `replaced` and `positions_of` are keyed by the old parameters.
    """
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(parameter, parameter) for parameter in group["params"]]
    # Over a copy of the keys, all popped and put back, so that the state keeps the order of its parameters.
    for old in list(optimizer.state):
        entries: dict[str, Any] = optimizer.state.pop(old)
        if old in replaced:
            # Scalars, such as Adam's count of steps, belong to the whole parameter and stay.
            entries = {
                key: select(value, positions_of[old])
                if isinstance(value, Tensor) and value.shape == old.shape
                else value
                for key, value in entries.items()
            }
        optimizer.state[replaced.get(old, old)] = entries
