"""Images split by grid: every party holds its own block of the same images' pixels. The digits need no files."""
# pyright: reportUnknownMemberType=false
# torch's own signatures are partly untyped.

import warnings
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vfl.base.errors import ConfigError
from vfl.base.random import generator
from vfl.data.files import LabelData, PartyData
from vfl.data.samples import Labels, Samples, check_finite
from vfl.data.source import NewSamples, Preparation, Split
from vfl.data.sources.pooled import PooledSource, Pools, in_memory
from vfl.models.features import Features
from vfl.runs.checkpoint import State

MIN_STD = 1e-6
"""Smallest standard deviation of a channel that is scaled; other channels count as constant and are only centred."""


class ImageGrid(PooledSource):
    """An origin's images, whole or cut by `data.partition` into blocks, one party each, in row-major order."""

    def split(self) -> Split:
        """Cut all images into the parties' blocks."""
        data = self.load()
        train, test = self._cut(data.train), self._cut(data.test)
        return Split(
            tuple(PartyData(*part) for part in zip(self.parties, train, test, strict=True)),
            LabelData(data.classes, _labels_of(data.train), _labels_of(data.test)),
        )

    def prepare(self, train: Samples) -> Preparation:
        """Measure mean and standard deviation of every channel."""
        return Standardisation(train)

    def check(self, samples: Samples) -> None:
        """Raise ValueError for anything but images."""
        check_images(samples)

    def read_samples(self, given: Path | NDArray[Any], trained: Samples, classes: int) -> NewSamples:
        """Read whole images of a ``.npz`` file or of an array, as `read_images`."""
        grid = self.data.partition
        channels, height, width = trained.features.shape[1:]
        whole = read_images(given, (channels, height * grid.rows, width * grid.columns), classes)
        return NewSamples(whole, tuple(self._cut(whole)))

    def _cut(self, samples: Samples) -> list[Samples]:
        return grid_partition(samples, self.data.partition.rows, self.data.partition.columns)


class Standardisation(Preparation):
    """Subtracts the mean of the training images and divides by their standard deviation, per channel, in float32.

    Both are one party's own: they come only from its training features, never from another party or test samples.
    Raises ValueError if there is nothing to measure.
    """

    def __init__(self, train: Samples) -> None:
        if train.features.dim() != 4 or train.features.numel() == 0:
            raise ValueError(f"standardise: needs training images [N, C, H, W], got {list(train.features.shape)}")
        # In float64 (one channel at a time, for memory) sums of uint8 are exact: the same for any number of threads.
        measured = [torch.var_mean(each.to(torch.float64), correction=0) for each in train.features.unbind(1)]
        super().__init__(Features("images", tuple(train.features.shape[1:])))
        self.mean_C = torch.stack([mean for _, mean in measured])
        std_C = torch.stack([variance for variance, _ in measured]).sqrt()
        self.std_C = torch.where(std_C < MIN_STD, torch.ones_like(std_C), std_C)

    def apply(self, samples: Samples) -> Samples:
        """Return images standardised, float32. Raises ValueError for another number of channels."""
        if samples.features.dim() != 4 or samples.features.shape[1] != len(self.mean_C):
            raise ValueError(
                f"standardise: needs images of {len(self.mean_C)} channels, got {list(samples.features.shape)}"
            )
        return replace(samples, features=self.module()(samples.features))

    def module(self) -> nn.Module:
        """Return the same transformation as a layer for images [B, C, H, W] of any type."""
        return StandardisationLayer(self.mean_C, self.std_C)

    def state_dict(self) -> State:
        """Return mean and standard deviation, float64 [C]."""
        return {"mean_C": self.mean_C, "std_C": self.std_C}

    def load_state_dict(self, state: State) -> None:
        """Restore mean and standard deviation."""
        self.mean_C, self.std_C = state["mean_C"], state["std_C"]


class StandardisationLayer(nn.Module):
    """`Standardisation.apply` as a layer, for raw images [B, C, H, W] of any type."""

    def __init__(self, mean_C: Tensor, std_C: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean_C.float().view(-1, 1, 1))
        self.register_buffer("std", std_C.float().view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return standardised images, float32."""
        standardised = images.to(torch.float32, copy=True)  # changed in place, for memory
        return standardised.sub_(self.get_buffer("mean")).div_(self.get_buffer("std"))


def check_images(samples: Samples) -> None:
    """Raise ValueError for anything but images uint8 or float32 [N, C, H, W], finite."""
    if samples.features.dim() != 4 or samples.features.dtype not in (torch.uint8, torch.float32):
        shape = list(samples.features.shape)
        raise ValueError(f"features: expected uint8 or float32 [N, C, H, W], got {samples.features.dtype} {shape}")
    check_finite(samples)


def grid_partition(samples: Samples, rows: int, columns: int) -> list[Samples]:
    """Cut every image into rows x columns equal blocks, one per party, in row-major order.

    A part has the same ids in the same order, features [N, C, H / rows, W / columns] and no labels. It shares no memory
    with its source or the other parts, so that a party holds only its own features. Raises ValueError for anything but
    images, or if the grid does not divide them.
    """
    if samples.features.dim() != 4:
        raise ValueError("data.partition: text cannot be cut into blocks; use a data.dataset.kind with images")
    height, width = samples.features.shape[-2:]
    if height % rows or width % columns:
        raise ValueError(
            f"data.partition: a grid of {rows} x {columns} blocks does not divide images of {height} x {width} pixels; "
            f"rows can be {_divisors(height)} and columns {_divisors(width)}"
        )
    # clone, not contiguous(): the latter hands out the source itself when a block is the whole image.
    return [
        Samples(samples.ids.clone(), block.clone(memory_format=torch.contiguous_format))
        for band in samples.features.chunk(rows, dim=2)
        for block in band.chunk(columns, dim=3)
    ]


def read_images(given: Path | NDArray[Any], shape: tuple[int, ...], classes: int) -> Samples:
    """Read whole images from an array, or from a ``.npz`` file: ``images`` and if known ``labels`` and ``ids``.

    Raises ConfigError for a file without images uint8 [N, C, H, W], with those of another shape than ``shape``
    [C, H, W], or with invalid labels.
    """
    arrays = _tensors_of(given)
    where = f"{given} " if isinstance(given, Path) else ""
    images = arrays.get("images")
    if images is None or images.dtype != torch.uint8 or tuple(images.shape[1:]) != shape:
        got = "no images" if images is None else f"{images.dtype} {list(images.shape)}"
        wanted = f"images uint8 [N, {', '.join(map(str, shape))}]"
        raise ConfigError(f"--data: {where}needs {wanted}, got {got}")
    if len(images) == 0:
        raise ConfigError(f"--data: {where}holds no image")
    labels = arrays.get("labels")
    if labels is not None and not bool(((labels >= 0) & (labels < classes)).all()):
        raise ConfigError(f"--data: labels must be 0 to {classes - 1}")
    ids = arrays.get("ids", torch.arange(len(images)))
    return Samples(ids.long(), images, None if labels is None else labels.long())


def _tensors_of(given: Path | NDArray[Any]) -> dict[str, Tensor]:
    try:
        if not isinstance(given, Path):
            return {"images": torch.from_numpy(np.array(given, order="C"))}
        with np.load(given, allow_pickle=False) as file:
            return {name: torch.from_numpy(file[name]) for name in file.files if name in ("images", "labels", "ids")}
    except OSError as error:
        raise ConfigError(f"--data: {given} cannot be read ({error.strerror or error})") from None
    except (ValueError, TypeError, EOFError, BadZipFile):  # not this kind of file; NumPy's own message advises pickle
        why = f"{given} is not a .npz file, as numpy.savez(FILE, images=...) writes"
        why = why if isinstance(given, Path) else "is no array of numbers"
        raise ConfigError(f"--data: {why}") from None


def _labels_of(samples: Samples) -> Labels:
    assert samples.labels is not None
    return Labels(samples.ids, samples.labels)


def _divisors(size: int) -> str:
    return ", ".join(str(parts) for parts in range(1, size + 1) if size % parts == 0)


DIGITS_TEST_SAMPLES = 397
"""Test samples among the 1,797 digits: the same for every seed, so that no run trains on another's test images."""


def load_digits(root: Path | None, image_size: int | None) -> Pools:
    """Return the digits with one channel, 32 pixels wide unless image_size is given.

    The split is a plain shuffle, so digits of one writer are on both sides.
    """
    if root is not None:
        warnings.warn("data.dataset.root is ignored: the digits are part of scikit-learn", stacklevel=3)
    rows = _read_rows()  # [1797, 65]: 64 levels from 0 to 16, then the label
    levels = torch.from_numpy(rows[:, :-1]).reshape(-1, 1, 8, 8)
    images = (levels * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(rows[:, -1]).to(torch.int64)
    order = torch.randperm(len(labels), generator=generator(0, "digits_split"))
    test, train = order[:DIGITS_TEST_SAMPLES], order[DIGITS_TEST_SAMPLES:]
    return Pools(
        train=in_memory(images[train], labels[train], image_size or 32),
        test=in_memory(images[test], labels[test], image_size or 32),
        classes=tuple("0123456789"),
    )


def _read_rows() -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Read scikit-learn's file as its ``load_digits`` does, without the second that its import takes."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    return np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")


digits = partial(ImageGrid, pools=load_digits)
