"""Smaller images of an owner in a training's first rounds: ``lightweighting.resolution``.

A side of S pixels becomes round(S * resolution), at least 1, each pixel the mean of the area that it covers. A party
resizes its prepared images once, when a round begins with another resolution, and keeps them beside the whole ones.
Shifted views (``augmentation.py``) are made of the resized images, by the stated number of their pixels.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vfl.config import ConfigError, ExperimentConfig
from vfl.core.feature_models import check_embedding
from vfl.data.samples import ROWS_AT_ONCE, Samples
from vfl.data.source import Prepared

FIELD = "lightweighting.resolution"


def sides_at(sides: Iterable[int], resolution: float) -> tuple[int, ...]:
    """Return the sides in pixels of an image with this share of ``sides``."""
    return tuple(max(1, round(side * resolution)) for side in sides)


def resized_images(images: Tensor, resolution: float) -> Tensor:
    """Return images [N, C, H, W] with this share of their sides, by area averaging."""
    sides = sides_at(images.shape[2:], resolution)
    resized = images.new_empty(*images.shape[:2], *sides)
    parts = (torch.split(each, ROWS_AT_ONCE) for each in (images, resized))
    for rows, into in zip(*parts, strict=True):
        into.copy_(F.interpolate(rows, size=sides, mode="area"))
    return resized


def resized(owner: str, data: Prepared, samples: Samples, resolution: float) -> Samples:
    """Return some of an owner's samples with smaller images. Raises ConfigError, one line, if they are no images."""
    if data.preparation.features.kind != "images" or samples.features.dim() != 4:
        raise ConfigError(f"{FIELD}: only images have one, {owner} has {data.preparation.features}; leave it out")
    return replace(samples, features=resized_images(samples.features, resolution))


def check_sizes(config: ExperimentConfig, owner: str, data: Prepared, model: nn.Module, width: int) -> None:
    """Raise ConfigError, one line, unless a party's model embeds its images at every resolution of its schedule."""
    for resolution in config.lightweighting.sizes_of(owner):
        example = resized(owner, data, data.train.take(torch.tensor([0])), resolution)
        try:
            check_embedding(model, example.inputs, width)
        except ValueError as error:
            sides = " x ".join(map(str, example.features.shape[2:]))
            raise ConfigError(
                f"{FIELD}: {resolution:g} leaves {owner} images of {sides} pixels, which its model cannot read "
                f"({error}); take a model that can, such as cnn, or leave it out"
            ) from None
