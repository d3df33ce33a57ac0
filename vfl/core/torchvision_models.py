"""Feature models of torchvision by name: ``kind: torchvision, options: {name: resnet18}``.

Any classification model, built without weights, whose last layer gives the embedding instead of the classes.
"""
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# torchvision ships no stubs, and its signatures are partly untyped.

import copy
from inspect import signature

import torch
from torch import nn

from vfl.base.errors import ConfigError, nearest_name, one_line, with_type
from vfl.models.features import ModelSpec

OPTIONS = "models.feature.options"
OWN_SETTINGS = {"weights": "models.feature.weights", "num_classes": "models.feature.embedding_size"}
"""The product's own settings by the argument of torchvision that they replace."""
PLAIN = {name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")}
"""Arguments without which a model would return more than its embedding, or warn."""
SIDES = (32, 48, 64, 75, 96, 128, 160, 192, 224, 256, 299, 384)
"""Sides of images that are tried for the line about one that is too small."""


def torchvision_model(spec: ModelSpec) -> nn.Module:
    """Return a model of torchvision: images [B, C, H, W] -> embeddings [B, D].

    ``options``: ``name``, and further arguments of torchvision's function. Raises ConfigError, one line, for another
    name, arguments that it does not take, and images that the model cannot read.
    """
    shape = spec.features.expect("images", 3)
    from torchvision import models as vision  # takes a second

    names = vision.list_models(module=vision)
    arguments = dict(spec.options)
    name = arguments.pop("name", None)
    if name not in names:
        what = "name is missing, as in {name: resnet18}" if name is None else f"unknown model {name!r}"
        raise ConfigError(f"{OPTIONS}: {what}{'' if name is None else nearest_name(str(name), names)}")
    for argument, setting in OWN_SETTINGS.items():
        if argument in arguments:
            raise ConfigError(f"{OPTIONS}: {argument} is no option; set {setting} (nothing is ever downloaded)")
    try:
        model = vision.get_model(
            name, weights=None, **{"num_classes": spec.embedding_size, **PLAIN.get(name, {}), **arguments}
        )
    except Exception as error:  # torchvision checks its arguments by whatever fails
        raise ConfigError(f"{OPTIONS}: {name} cannot be built ({with_type(error)})") from None
    taken = signature(type(model)).parameters  # some take any further ones, and ignore them
    if ignored := sorted(arguments.keys() - {each.name for each in taken.values() if each.kind != each.VAR_KEYWORD}):
        raise ConfigError(f"{OPTIONS}: {name} has no {ignored[0]!r}{nearest_name(ignored[0], [*taken])}")
    _check_images(name, model, shape)
    return model


def _check_images(name: str, model: nn.Module, shape: tuple[int, ...]) -> None:
    """Raise ConfigError, with a size that fits, for images that a model cannot read."""
    error = _failure(model, shape)
    if error is None:
        return
    channels, rows, columns = shape
    size = f"{channels} x {rows} x {columns}"
    without_values = copy.deepcopy(model).to("meta")  # only shapes are computed
    if channels != 3 and _failure(without_values, (3, rows, columns)) is None:
        raise ConfigError(f"{OPTIONS}: {name} reads images of 3 channels, not {size}; choose another model")
    fitting = next((side for side in SIDES if _failure(without_values, (3, side, side)) is None), None)
    fix = "" if fitting is None else f" but, for example, 3 x {fitting} x {fitting}"
    why = f"cannot read images of {size}{fix} ({one_line(error)})"
    raise ConfigError(f"{OPTIONS}: {name} {why}; choose other images or another model")


def _failure(model: nn.Module, shape: tuple[int, ...]) -> Exception | None:
    """Return what an image of some shape raises; None if the model reads it."""
    device = next(model.parameters()).device
    model.eval()
    try:
        with torch.no_grad():
            model(torch.zeros(1, *shape, device=device))
    except Exception as error:
        return error
    finally:
        model.train()
    return None
