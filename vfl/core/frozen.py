"""Parts of a feature model that training leaves as they are: ``models.feature.freeze``.

Their parameters get no gradient, so that the optimizer keeps no state of them and their layers do no backward work, but
for passing a gradient on to trained layers before them. Batch normalizations keep their statistics, in evaluation too.
Pruned with the rest, they lose channels and stay frozen.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch's own signatures are partly untyped.

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from torch import nn

from vfl.base.errors import ConfigError, nearest_name
from vfl.base.modules import modules_by_name


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
