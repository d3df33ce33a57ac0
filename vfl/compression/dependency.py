"""A typed interface to Torch-Pruning: which layers share a width, and which entries remain after a removal.

Everything happens on a *shadow*: a float64 copy of the model on the CPU. Torch-Pruning traces it, which changes its
modes; scores it; and prunes it after every weight was overwritten by its own flat position, so that the remaining
values show which entries of each tensor survive. This file only reads the model. Float64 holds positions exactly up
to 2^53.

Written against Torch-Pruning 1.6 (Fang et al., "DepGraph: Towards Any Structural Pruning", CVPR 2023).
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch_pruning  # pyright: ignore[reportMissingTypeStubs]  # it has none; `Any` stays inside this file
from torch import Tensor, nn

from vfl.base.random import seeded

tp = cast(Any, torch_pruning)

Importance = Literal["filter", "group"]
PrunableLayer = nn.Conv2d | nn.Linear

WIDTH_ATTRIBUTES = ("in_channels", "out_channels", "groups", "in_features", "out_features", "num_features")
"""The attributes of the supported modules that name a width."""


@dataclass(frozen=True)
class CoupledLayers:
    """Layers whose outputs share one dimension (they are added, or depthwise): they are pruned together."""

    names: tuple[str, ...]
    """Convolutions and linear layers; the first one names the group."""
    width: int
    """Output channels, the same in each of them."""
    reaches_output: bool
    """This dimension is part of the model's output, whose width must not change."""


class Shadow:
    """A traced float64 copy of a model, used for one pruning event: ``with Shadow(model, example) as shadow``.

    `example` is any valid input, a tensor [B, ...] for each argument of the model. Raises ValueError for a model that
    cannot be traced or cannot be pruned exactly: layers other than Conv2d, Linear, Embedding and BatchNorm that hold
    parameters, an embedding that is added to another layer (its width is never pruned), grouped convolutions that are
    not depthwise, parameters shared between layers, layers coupled in part only (concatenated, then added to another).
    """

    groups: tuple[CoupledLayers, ...]
    example: tuple[Tensor, ...]
    """One sample as the shadow reads it."""

    def __init__(self, model: nn.Module, example: Sequence[Tensor]) -> None:
        refuse_unsupported(model)
        # In evaluation mode, because the one sample of the trace has no variance to normalise by.
        self.model = copy.deepcopy(model).to("cpu", torch.float64).eval()
        self.model.requires_grad_(True)  # a frozen first layer would be left out of the trace, and so unpruned
        self.example = tuple(_as_shadow(tensor.detach()[:1]) for tensor in example)
        self._graph = tp.DependencyGraph()
        try:
            with torch.enable_grad(), seeded(0, "trace"):
                # Left alone, Torch-Pruning tries two ways of calling and reports only the second's failure.
                self._graph.build_dependency(self.model, self.example, forward_fn=_call)
                raw_groups = list(self._graph.get_all_groups(root_module_types=[nn.Conv2d, nn.Linear]))
        except Exception as error:  # a user's model may break Torch-Pruning in any way
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"cannot prune the model: Torch-Pruning cannot trace it ({reason})") from error
        self._names = {module: name for name, module in modules_by_name(self.model).items()}
        self._group_of = {group.names[0]: (group, raw) for group, raw in self._coupled_layers(raw_groups)}
        self.groups = tuple(group for group, _ in self._group_of.values())

    def __enter__(self) -> "Shadow":
        return self

    def __exit__(self, *_exception: object) -> None:
        # Torch-Pruning's graph is cyclic: it would keep twice the model's memory until Python's next full collection.
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            tensor.data = torch.empty(0, dtype=tensor.dtype)

    def _coupled_layers(self, raw_groups: Sequence[Any]) -> Iterator[tuple[CoupledLayers, Any]]:
        """Yield every group of the model with Torch-Pruning's own object for it."""
        for raw in raw_groups:
            # A group begins with the layer that it was asked for, and with all of that layer's channels.
            width: int = len(raw[0].idxs)
            names: list[str] = []
            reaches_output = False
            for dep, indices in raw:
                # Whether the group has this layer's outputs; of the layers that read them it has the inputs.
                node, produces = dep.target, self._graph.is_out_channel_pruning_fn(dep.handler)
                # Known from the graph, or nothing reads the output of this layer.
                reaches_output |= node.type == tp.ops.OPTYPE.OUTPUT or (produces and not node.outputs)
                if isinstance(node.module, nn.Embedding):
                    raise ValueError(f"cannot prune {self._names[node.module]!r}: an embedding is added to a layer")
                if produces and isinstance(node.module, PrunableLayer):
                    name = self._names[node.module]
                    # Part of a concatenation is coupled: channel i here is another one there.
                    if sorted(indices) != list(range(width)) or len(node.module.weight) != width:
                        raise ValueError(
                            f"cannot prune {name!r}: it is coupled with a part of another layer, or traced so"
                        )
                    names.append(name)
            yield CoupledLayers(tuple(names), width, reaches_output), raw

    def importance(self, group: CoupledLayers, kind: Importance) -> Tensor:
        """Return the importance of each channel of the group, [width]; the lowest are to be removed.

        "filter": L1 norm of the filter's own weights (Li et al., ICLR 2017), summed over coupled layers. "group":
        Torch-Pruning's mean L1 norm over all weights of the channel, including its BatchNorm weight and the next
        layer's input weights.
        """
        if kind == "group":
            score = tp.importance.GroupMagnitudeImportance(p=1, normalizer=None)
            return cast(Tensor, score(self._group_of[group.names[0]][1]))
        weights = [cast(Tensor, self.model.get_submodule(name).weight) for name in group.names]
        return torch.stack([w.detach().abs().flatten(1).sum(dim=1) for w in weights]).sum(dim=0)

    def remove(self, removed: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """Remove channels, given by the name of a group's first layer, and return the remaining entries of each tensor.

        The result maps the name of every parameter and buffer that shrinks to an int64 tensor of its new shape: the
        positions, in the flattened old tensor, of the entries that survive. Call it once, after `importance`.
        """
        tensors = dict([*self.model.named_parameters(), *self.model.named_buffers()])
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        output_shape = self._output_shape()
        with torch.no_grad():
            # From here on an entry's value is its own position; Torch-Pruning picks entries and computes nothing.
            for tensor in tensors.values():
                tensor.copy_(torch.arange(tensor.numel()).view_as(tensor))
            for name, channels in removed.items():  # groups do not overlap, so their order does not matter
                layer = self.model.get_submodule(name)
                prune_outputs = self._graph.get_pruner_of_module(layer).prune_out_channels
                self._graph.get_pruning_group(layer, prune_outputs, list(channels)).prune()
        assert self._output_shape() == output_shape, "pruning changed the shape of the model's output"
        # Fetched again: pruning has replaced the parameters in `tensors`.
        left = [*self.model.named_parameters(), *self.model.named_buffers()]
        return {name: tensor.detach().long() for name, tensor in left if tensor.shape != shapes[name]}

    def copy_widths(self, model: nn.Module) -> None:
        """Set the widths of the modules of `model` to the shadow's."""
        for module, pruned in zip(model.modules(), self.model.modules(), strict=True):
            for attribute in WIDTH_ATTRIBUTES:
                if hasattr(pruned, attribute):
                    setattr(module, attribute, getattr(pruned, attribute))

    def _output_shape(self) -> torch.Size:
        """Return the shape of the shadow's output; a wrongly wired model fails here, before the real one is changed."""
        with torch.no_grad(), seeded(0, "trace"):
            return cast(Tensor, self.model(*self.example)).shape


def refuse_unsupported(model: nn.Module) -> None:
    """Raise ValueError, naming the layer, unless pruning the model equals masking it (see `Shadow`)."""
    # Pruning gives each layer a new parameter of its own: the layers would share no longer.
    if len(list(model.named_parameters(remove_duplicate=False))) != len(list(model.parameters())):
        raise ValueError("cannot prune a model whose layers share parameters")
    for name, module in modules_by_name(model).items():
        if isinstance(module, nn.Conv2d) and not _is_plain_or_depthwise(module):
            raise ValueError(f"cannot prune {name!r}: a grouped convolution must be depthwise")
        holds_parameters = next(module.parameters(recurse=False), None) is not None
        if holds_parameters and not isinstance(module, PrunableLayer | nn.BatchNorm1d | nn.BatchNorm2d | nn.Embedding):
            raise ValueError(
                f"cannot prune {name or 'the model'!r} ({type(module).__name__}): only Conv2d, Linear, "
                "Embedding and BatchNorm may hold parameters; norms across channels differ from their mask form"
            )


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Return `named_modules`, typed, which torch leaves open; the model itself is ''."""
    return dict(cast(Any, model).named_modules())


def _call(model: nn.Module, example: Sequence[Tensor]) -> Tensor:
    return cast(Tensor, model(*example))


def _as_shadow(tensor: Tensor) -> Tensor:
    """Return a model's input for the float64 shadow; indices stay integers."""
    return tensor.to("cpu", torch.float64 if tensor.is_floating_point() else tensor.dtype)


def _is_plain_or_depthwise(conv: nn.Conv2d) -> bool:
    return conv.groups == 1 or conv.groups == conv.in_channels == conv.out_channels
