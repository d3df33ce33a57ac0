"""Other views of a party's own training images: shifts, drawn anew for each row and pass over the rows.

They follow from the experiment's seed, round, pass, row and party, and need no state: every local iteration of an
exchange, a resumed run and another process of the party see the same view. Nothing about it travels.

Shapes: N training samples, n rows of a batch, C channels, H x W pixels.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vfl.base.random import generator
from vfl.config import ConfigError, ExperimentConfig
from vfl.config.schedules import Schedule, largest, value_at
from vfl.core.feature_models import check_embedding
from vfl.data.samples import ROWS_AT_ONCE, Samples
from vfl.data.source import Prepared

FIELD = "lightweighting.resolution"


def sides_at(sides: Iterable[int], resolution: float) -> tuple[int, ...]:
    """Return the sides in pixels of an image with this share of ``sides``."""
    return tuple(max(1, round(side * resolution)) for side in sides)


def resize_images(images: Tensor, resolution: float) -> Tensor:
    """Return images [N, C, H, W] with this share of their sides, by area averaging."""
    sides = sides_at(images.shape[2:], resolution)
    resized = images.new_empty(*images.shape[:2], *sides)
    parts = (torch.split(each, ROWS_AT_ONCE) for each in (images, resized))
    for rows, into in zip(*parts, strict=True):
        into.copy_(F.interpolate(rows, size=sides, mode="area"))
    return resized


def resize_samples(owner: str, data: Prepared, samples: Samples, resolution: float) -> Samples:
    """Return some of an owner's samples with smaller images. Raises ConfigError, one line, if they are no images."""
    if data.preparation.features.kind != "images" or samples.features.dim() != 4:
        raise ConfigError(f"{FIELD}: only images have one, {owner} has {data.preparation.features}; leave it out")
    return replace(samples, features=resize_images(samples.features, resolution))


def check_sizes(config: ExperimentConfig, owner: str, data: Prepared, model: nn.Module, width: int) -> None:
    """Raise ConfigError, one line, unless a party's model embeds its images at every resolution of its schedule."""
    for resolution in config.lightweighting.sizes_of(owner):
        example = resize_samples(owner, data, data.train.take(torch.tensor([0])), resolution)
        try:
            check_embedding(model, example.inputs, width)
        except ValueError as error:
            sides = " x ".join(map(str, example.features.shape[2:]))
            raise ConfigError(
                f"{FIELD}: {resolution:g} leaves {owner} images of {sides} pixels, which its model cannot read "
                f"({error}); take a model that can, such as cnn, or leave it out"
            ) from None


class ShiftedViews:
    """Images shifted by up to as many pixels each way as a schedule says."""

    def __init__(self, shift: Schedule, seed: int, owner: str, samples: int, batch_size: int) -> None:
        self.shift, self.seed, self.owner, self.samples = shift, seed, owner, samples
        self.per_pass = samples // batch_size
        self._drawn: tuple[tuple[int, int], Tensor] = ((-1, -1), torch.empty(0))

    def shifts(self, rows_n: Tensor, round_index: int, exchange: int) -> Tensor | None:
        """Return by how many pixels [n, 2] each row's image is shifted, down and right; None if none is.

        The shifts are those of the pass to which the exchange belongs.
        """
        most = int(value_at(self.shift, round_index))
        if not most:
            return None
        place = round_index, exchange // self.per_pass
        if self._drawn[0] != place:
            stream = generator(self.seed, "augmentation", round_index, f"{self.owner} pass {place[1]}")
            self._drawn = place, torch.randint(-most, most + 1, (self.samples, 2), generator=stream)
        return self._drawn[1][rows_n]

    def shown(self, inputs: tuple[Tensor, ...], rows_n: Tensor, round_index: int, exchange: int) -> tuple[Tensor, ...]:
        """Return the augmented inputs of some rows, [n, ...] each, on which the model trains."""
        shifts_n2 = self.shifts(rows_n, round_index, exchange)
        return inputs if shifts_n2 is None else (shift_images(inputs[0], shifts_n2), *inputs[1:])


def build_views(config: ExperimentConfig, owner: str, data: Prepared) -> ShiftedViews | None:
    """Return the views that a party's own settings ask for. Raises ConfigError if its features are no images."""
    shift, shape = config.data.augmentation.shift, data.train.features.shape[1:]
    if not largest(shift):
        return None
    if len(shape) != 3 or data.preparation.features.kind != "images":
        raise ConfigError(
            f"data.augmentation.shift: only images can be shifted, {owner} has {data.preparation.features}"
        )
    resolution = config.lightweighting.resolution_of(owner)
    for round_index in (None, *range(config.training.rounds)):
        sides = shape[1:] if round_index is None else sides_at(shape[1:], value_at(resolution, round_index))
        most = largest(shift) if round_index is None else value_at(shift, round_index)
        if most >= min(sides):
            when = "" if round_index is None else f", as {owner} has in round {round_index + 1} ({FIELD})"
            raise ConfigError(
                f"data.augmentation.shift: {most:g} moves images of {sides[0]} x {sides[1]} out of sight{when}"
            )
    return ShiftedViews(shift, config.seed, owner, len(data.train), config.training.batch_size)


def shift_images(images: Tensor, shifts_n2: Tensor) -> Tensor:
    """Return images [n, C, H, W], each shifted down and right; what moves in is 0."""
    if len(images) == 0:
        return images
    most = max(1, int(shifts_n2.abs().max()))
    height, width = images.shape[2:]
    windows = F.pad(images, (most,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    down_n, right_n = (most - shifts_n2.to(images.device)).unbind(1)
    rows_n = torch.arange(len(images), device=images.device)
    return torch.empty_like(images).copy_(windows[rows_n, :, down_n, right_n])  # in the images' memory format
