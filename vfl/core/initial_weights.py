"""Weights with which an owner's feature model begins (``models.feature.weights``), and those that stay (``freeze``).

The file is never fetched.

Safetensors, or a state dict that PyTorch reads without unpickling code. What the file lacks, and what only it has, is
reported; the layer that gives the embedding may be another one, as in a model that was trained for classes.

Frozen parameters get no gradient, so that the optimizer keeps no state of them and their layers do no backward work,
but for passing a gradient on to trained layers before them. Batch normalizations keep their statistics, in evaluation
too. Pruned with the rest, frozen layers lose channels and stay frozen.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch's and safetensors' own signatures are partly untyped.

import hashlib
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vfl.base.errors import ConfigError, nearest_name, one_line
from vfl.base.modules import modules_by_name

SHOWN = 3
"""Most names that a line shows."""


def load_weights(model: nn.Module, path: Path, party: str, embedding_size: int) -> str:
    """Load a file's weights into a party's model, and return the file's sha256.

    Warns of tensors that the file or the model lacks. Raises ConfigError, one line, for a file that cannot be read,
    holds anything but finite tensors by name, or fits another model; the model then is as it was.
    """
    what = f"models: {party}'s weights {path}"
    saved = _read(path, what)
    own = cast(dict[str, Tensor], model.state_dict())
    last = _last_layer(model, embedding_size)
    shared = [name for name in own if name in saved]
    replaced = [name for name in shared if name in last and saved[name].shape != own[name].shape]
    loaded = [name for name in shared if name not in replaced]
    if not set(loaded) - set(last):
        other = next(iter(saved), "")
        raise ConfigError(f"{what}: no name fits the model{nearest_name(other, [*own])}; name a file of this model")
    for name in loaded:
        _check(what, name, saved[name], own[name])
    missing = [name for name in own if name not in saved and name not in last and "num_batches_tracked" not in name]
    for names, where in ((missing, "the file lacks"), ([name for name in saved if name not in own], "the model lacks")):
        if names:
            warnings.warn(f"{what}: {where} {_some(names)}", stacklevel=2)
    with torch.no_grad():
        for name in loaded:
            own[name].copy_(saved[name])
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path, what: str) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        values: object = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251 - refuses code
    except OSError as error:
        raise ConfigError(f"{what}: cannot be read ({one_line(error)})") from None
    except Exception as error:  # PyTorch's and safetensors' own, of many types and lines
        reason = f"{type(error).__name__}; save model.state_dict(), or safetensors"
        raise ConfigError(f"{what}: is no file of tensors only ({reason})") from None
    named = cast(dict[Any, Any], values) if isinstance(values, Mapping) else {}
    if not named or not all(isinstance(key, str) and isinstance(value, Tensor) for key, value in named.items()):
        keys = f" but {_some([str(key) for key in named])}" if named else ""
        raise ConfigError(f"{what}: holds no tensors by name{keys}; save model.state_dict()")
    return named


def _last_layer(model: nn.Module, embedding_size: int) -> list[str]:
    """Return the names of the parameters of the last layer that gives as many values as the embedding has."""
    named = modules_by_name(model)
    wide = [name for name, each in named.items() if _outputs(each) == embedding_size]
    return [f"{wide[-1]}.{name}".removeprefix(".") for name, _ in named[wide[-1]].named_parameters()] if wide else []


def _outputs(layer: nn.Module) -> int | None:
    weight = getattr(layer, "weight", None)
    return weight.shape[0] if isinstance(weight, Tensor) and weight.dim() > 1 else None


def _check(what: str, name: str, saved: Tensor, own: Tensor) -> None:
    if saved.shape != own.shape:
        raise ConfigError(f"{what}: {name} is {list(saved.shape)} there and {list(own.shape)} in the model")
    if saved.is_floating_point() != own.is_floating_point() or saved.is_quantized or saved.layout != torch.strided:
        raise ConfigError(f"{what}: {name} is {saved.dtype} there and {own.dtype} in the model")
    if saved.is_floating_point() and not bool(saved.float().isfinite().all()):
        raise ConfigError(f"{what}: {name} has values that are not finite")


def _some(names: Collection[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join([*names][:SHOWN]) + more


class StillNorm:
    """Mixed into a batch normalization: it normalises with its running statistics in training, too."""

    def train(self, mode: bool = True) -> Any:
        """Stay in evaluation mode."""
        return cast(Any, super()).train(False)


@cache
def _still(norm: type) -> type:
    return type(f"Still{norm.__name__}", (StillNorm, norm), {})


def freeze(model: nn.Module, prefixes: Sequence[str], party: str) -> None:
    """Freeze the parameters and batch normalizations whose dotted names begin with a prefix, part by part.

    Raises ConfigError, one line, for a prefix that matches nothing, and if nothing would be trained.
    """
    modules, parameters = modules_by_name(model), dict(model.named_parameters())
    for prefix in prefixes:
        below = {name for name in (*modules, *parameters) if f"{name}.".startswith(f"{prefix}.")}
        if not below or not prefix:
            known = nearest_name(prefix, [name for name in modules if name.count(".") < 2 and name])
            raise ConfigError(f"models: {party}'s freeze: {prefix!r} is no part of the model{known}")
        for name in below & parameters.keys():
            parameters[name].requires_grad_(False)
        for name in below & modules.keys():
            layer = modules[name]
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(layer, StillNorm):  # pyright: ignore[reportPrivateUsage]  # the class of all of them
                layer.__class__ = _still(type(layer))
                layer.eval()
    if prefixes and not any(each.requires_grad for each in parameters.values()):
        raise ConfigError(f"models: {party}'s freeze: leaves nothing to train; freeze fewer parts")
