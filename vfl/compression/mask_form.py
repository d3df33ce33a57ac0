"""Trial of a pruner before training: a pruned copy of the model must equal its mask form, theta * m.

Torch-Pruning follows channels through a trace. Where the model reorders, cuts or mixes them by an operation that it
does not know, it removes other columns than those that read the channel, and often all shapes still fit. So channels of
every layer are removed once from a copy with random weights, whose output is compared with the same copy masked.
"""
# pyright: reportUnknownMemberType=false
# torch's own signatures are partly untyped.

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from vfl.base.errors import with_type
from vfl.base.random import generator, seeded
from vfl.compression.dependency import CoupledLayers, PrunableLayer, Shadow, modules_by_name

SAME = 1e-8
"""Largest difference, relative to the largest value, that is rounding in float64 and no wrong column."""
VALUES = 2048
"""Input values of a trial, which set its number of samples between the two below: VGG16's takes two images."""
FEWEST, MOST = 2, 64

Removed = Mapping[str, Sequence[int]]
"""Channels to remove, by the name of a group's first layer."""


def check_mask_form(model: nn.Module, example: Sequence[Tensor], shadow: Shadow) -> None:
    """Raise ValueError, naming the layer, unless `model` equals its mask form when channels of every layer are removed.

    `shadow` is one of the model and used up. Where an activation maps 0 to another constant, what the next layer reads
    of it counts as masked too. Neither the model nor the random state is changed.
    """
    removed = {
        group.names[0]: _trial_channels(group)
        for group in shadow.groups
        if not group.reaches_output and group.width > 1
    }
    fault = _fault(shadow, removed) if removed else None
    if fault is None:
        return
    for name, channels in removed.items():
        with Shadow(model, example) as alone:
            told = _fault(alone, {name: channels})
        if told is not None:
            raise ValueError(f"cannot prune {name!r}: {told}")
    raise ValueError(f"cannot prune {', '.join(map(repr, removed))}: together, {fault}")


def _trial_channels(group: CoupledLayers) -> list[int]:
    """Return about half of the group's channels, chosen so that no regular reordering maps them to themselves.

    Their number has no divisor in common with the width, so that neither rotations nor equal parts keep them; they have
    the first channel and not the last, so that reversing does not.
    """
    width = group.width
    count = next(each for each in range(width // 2, 0, -1) if math.gcd(each, width) == 1)
    inner = torch.randperm(max(width - 2, 0), generator=generator(0, "trial channels", owner=group.names[0])) + 1
    return sorted([0, *(int(each) for each in inner[: count - 1])])


def _fault(shadow: Shadow, removed: Removed) -> str | None:
    """Return what is wrong with a removal from the shadow, None if nothing."""
    masked = copy.deepcopy(shadow.model)
    _draw_weights(masked)
    widths = {name: len(shadow.model.get_parameter(f"{name}.weight")) for name in removed}
    try:
        kept = shadow.remove(removed)
        if greedy := [n for n in removed if len(kept[f"{n}.weight"]) != widths[n] - len(removed[n])]:
            return f"each channel of {greedy[0]!r} takes others with it"
        values = dict([*masked.named_parameters(), *masked.named_buffers()])
        with torch.no_grad():
            for name, tensor in [*shadow.model.named_parameters(), *shadow.model.named_buffers()]:
                tensor.copy_(values[name].flatten()[kept[name]] if name in kept else values[name])
        live = _mask(masked, kept)
        inputs, expected = _run_masked(masked, shadow.example, live)
        got = _run(shadow.model, inputs).nan_to_num()
    except Exception as error:  # a user's model may fail in any way
        return f"without some of its channels the model cannot run ({with_type(error)})"
    difference = float((got - expected).abs().max())
    if difference > SAME * float(expected.abs().max()):
        return f"its channels are reordered, cut or mixed on their way (the output would differ by {difference:.2g})"
    return f"with its channels {live[0]!r} would lose other inputs" if live else None


def _draw_weights(model: nn.Module) -> None:
    """Draw weights that keep the signal's scale, since a model's own may hide a wrong column, as zeros do."""
    stream = generator(0, "trial weights")
    with torch.no_grad():
        for module in model.modules():
            norm = isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
            for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if norm and name in ("weight", "running_var"):
                    tensor.uniform_(0.5, 1.5, generator=stream)
                elif isinstance(tensor, nn.Parameter) or (norm and name == "running_mean"):
                    bound = math.sqrt(6 / max(1, math.prod(tensor.shape[1:]))) if tensor.dim() > 1 else 1.0
                    tensor.uniform_(-bound, bound, generator=stream)


def _mask(model: nn.Module, kept: Mapping[str, Tensor]) -> list[str]:
    """Zero all entries that are not kept; return the list of the layers that were then seen to lose other inputs.

    Both sides are zeroed: filters, and the next layers' columns, which may read an activation that does not map 0 to 0.
    """
    live: list[str] = []
    modules, tensors = modules_by_name(model), dict([*model.named_parameters(), *model.named_buffers()])
    for name, positions in kept.items():
        alive = torch.zeros(tensors[name].shape, dtype=torch.bool)
        alive.view(-1)[positions.flatten()] = True
        with torch.no_grad():
            tensors[name].mul_(alive)
        layer, _, leaf = name.rpartition(".")
        if leaf == "weight" and isinstance(modules[layer], PrunableLayer):
            lost = ~alive.transpose(0, 1).flatten(1).any(dim=1)
            modules[layer].register_forward_pre_hook(partial(_note_live, live, layer, lost))
    return live


def _note_live(live: list[str], name: str, lost: Tensor, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
    """Note the layer if an input that pruning takes from it differs among samples: no masked channel does."""
    if not lost.any() or not arguments or arguments[0].dim() < 2:
        return
    values = arguments[0].movedim(-1 if isinstance(module, nn.Linear) else 1, 0)[lost]
    if float((values - values[:, :1]).abs().max()) > SAME * float(arguments[0].abs().max()):
        live.append(name)


def _run_masked(masked: nn.Module, example: Sequence[Tensor], live: list[str]) -> tuple[Sequence[Tensor], Tensor]:
    """Return the first of the trial inputs that the model reads with a finite output, and this output."""
    *tried, last = _trial_inputs(example)
    for inputs in tried:
        try:
            output = _run(masked, inputs)
        except Exception:  # a user's model; it may read codes, which noise is not
            output = None
        if output is not None and output.isfinite().all():
            return inputs, output
        live.clear()
    return last, _run(masked, last).nan_to_num()


def _trial_inputs(example: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Yield noise, then shares of the example's values, then the example repeated; whole numbers stay as they are."""
    largest = max(1, *(tensor[:1].numel() for tensor in example))
    samples = min(MOST, max(FEWEST, VALUES // largest))
    stream = generator(0, "trial inputs")
    repeated = [tensor[:1].expand(samples, *tensor.shape[1:]) for tensor in example]
    for draw in (torch.randn, torch.rand):
        noise = [draw(each.shape, dtype=torch.float64, generator=stream) for each in repeated]
        noise = [new if draw is torch.randn else new * old for new, old in zip(noise, repeated, strict=True)]
        yield [new if old.is_floating_point() else old.clone() for new, old in zip(noise, repeated, strict=True)]
    yield [each.clone() for each in repeated]


def _run(model: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
    with torch.no_grad(), seeded(0, "trace"):
        return cast(Tensor, model(*inputs))
