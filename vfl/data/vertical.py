"""Vertical (feature) partitions: every party holds the same samples and its own block of their features."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from vfl.data.samples import Samples

MIN_STD = 1e-6
"""A channel that varies less than this is taken as constant: it is centred but not scaled."""


def grid_partition(samples: Samples, rows: int, columns: int) -> list[Samples]:
    """Cut every image into rows x columns equal blocks, one per party, in row-major order.

    A part has the same ids in the same order, features [N, C, H / rows, W / columns] and no labels. It shares no
    memory with its source or the other parts, so that a party holds only what is its own.

    Raises ValueError for text, or when the grid does not divide the image.
    """
    if samples.is_text:
        raise ValueError("data.partition: text cannot be cut into blocks; use a data.dataset.kind with images")
    height, width = samples.features.shape[-2:]
    if not (_divides(rows, height) and _divides(columns, width)):
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


def standardise(train: Samples, test: Samples) -> tuple[Samples, Samples]:
    """Return both as float32 with the mean of `train` taken off and divided by its standard deviation, per channel.

    Both are one party's own: its statistics come from its training features alone, never from another party or from
    the test samples.

    Raises ValueError for text, when there is nothing to measure, or when the channels differ.
    """
    if train.is_text:
        raise ValueError("standardise: characters are indices, not amounts; leave text as it is")
    channels = train.features.shape[1]
    if train.features.numel() == 0 or test.features.shape[1] != channels:
        raise ValueError(
            "standardise: needs training features, and test features with the same number of channels, "
            f"got {list(train.features.shape)} and {list(test.features.shape)}"
        )
    # In float64 (one channel at a time, for memory) sums of uint8 are exact: the same for any number of threads.
    measured = [
        torch.var_mean(train.features[:, channel].to(torch.float64), correction=0) for channel in range(channels)
    ]
    mean = torch.stack([mean for _, mean in measured])
    std = torch.stack([variance for variance, _ in measured]).sqrt()
    std = torch.where(std < MIN_STD, torch.ones_like(std), std)
    return _scaled(train, mean, std), _scaled(test, mean, std)


def check_aligned(digests: Mapping[str, str]) -> None:
    """Check that all parties hold the same ids in the same order, given each one's `Samples.ids_digest`.

    Raises ValueError that tells which parties agree with each other and which do not.
    """
    holders: dict[str, list[str]] = {}
    for party, digest in digests.items():
        holders.setdefault(digest, []).append(party)
    if len(holders) > 1:
        groups = " from ".join(", ".join(parties) for parties in sorted(holders.values(), key=len))
        raise ValueError(
            f"the parties are not aligned: {groups} differ in their sample ids; "
            "give every party the same samples in the same order"
        )


def _scaled(samples: Samples, mean: Tensor, std: Tensor) -> Samples:
    """Standardise features [N, C, H, W] by mean and std [C]; in place on one float32 copy, for memory."""
    features = samples.features.to(torch.float32, copy=True)
    features.sub_(_per_channel(mean, features)).div_(_per_channel(std, features))
    return replace(samples, features=features)


def _per_channel(statistic: Tensor, features: Tensor) -> Tensor:
    """Shape a statistic [C] to broadcast over features [N, C, H, W]."""
    return statistic.to(features.dtype).view(1, -1, 1, 1)


def _divides(parts: int, size: int) -> bool:
    return parts >= 1 and size % parts == 0


def _divisors(size: int) -> str:
    return ", ".join(str(parts) for parts in range(1, size + 1) if size % parts == 0)
