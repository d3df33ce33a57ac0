"""The samples that one holder (the complete data set, or one party) has: ids, features, perhaps labels and owners.

Labels that the server holds are `Labels`.
"""
# pyright: reportUnknownMemberType=false
# torch's own signatures are partly untyped.

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROWS_AT_ONCE = 1 << 12
"""Rows looked at or prepared at once: their intermediate values stay in the cache."""


@dataclass(frozen=True, eq=False)
class Samples:
    """N samples in a fixed order. Row i of every tensor is the same sample.

    Raises ValueError if shapes, dtypes or lengths do not fit, or an id occurs twice.
    """

    ids: Tensor
    """int64 [N], unique: identifies a sample among the parties."""

    features: Tensor
    """[N, ...], of the type and shape that the source gives."""

    labels: Tensor | None = None
    """int64 [N], class indices, or float [N], amounts; None for a party that holds features only. Text: the next
    character, int64 [N], or the one after each character, int64 [N, T]."""

    more: tuple[Tensor, ...] = ()
    """Further tensors [N, ...] of the same samples, such as a table's categories beside its numbers."""

    present: Tensor | None = None
    """bool [N]: True if the holder has a row for the sample; without one its features mean nothing. None: all
    present."""

    def __post_init__(self) -> None:
        check_ids(self.ids)
        if self.present is not None:
            check_present("samples.present", self.present, (len(self.ids),))
        for tensor in self.inputs:
            if tensor.dim() < 2 or len(tensor) != len(self.ids):
                shape = list(tensor.shape)
                raise ValueError(
                    f"samples.features: expected [N, ...] of {len(self)} rows, one for each id, got {shape}"
                )
        if self.labels is not None:
            # Text may have a label per character, of the features' own shape; all else has one per sample.
            of_text = self.labels.dtype == self.features.dtype == torch.int64
            if not (of_text and self.labels.shape == self.features.shape):
                check_labels("samples.labels", self.labels, len(self.ids))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Arguments of the model: all tensors of features."""
        return (self.features, *self.more)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Tensor) -> "Samples":
        """Return copies of the given rows (int64 [M], no row twice), in the order given."""
        labels, present = (None if each is None else each[rows] for each in (self.labels, self.present))
        more = tuple(tensor[rows] for tensor in self.more)
        return Samples(self.ids[rows], self.features[rows], labels, more, present)

    def held_rows(self, rows: Tensor | None = None) -> Tensor:
        """Return those of the given rows (int64 [M], None: all) that the holder has, in their order."""
        rows = torch.arange(len(self)) if rows is None else rows
        return rows if self.present is None else rows[self.present[rows]]

    def held(self) -> "Samples":
        """Return the samples for which the holder has a row."""
        return self if self.present is None else self.take(self.held_rows())

    def is_finite(self) -> bool:
        """Return whether all features are finite; some rows at a time are looked at, as each entry needs memory."""
        for tensor in self.inputs:
            for rows in torch.split(tensor, ROWS_AT_ONCE) if tensor.is_floating_point() else ():
                if not bool(rows.isfinite().all()):
                    return False
        return True

    def ids_digest(self) -> str:
        """Return `ids_digest` of the ids."""
        return ids_digest(self.ids)


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of N samples. Raises ValueError if shapes, dtypes or lengths do not fit, or an id occurs twice."""

    ids: Tensor
    """int64 [N]"""
    values: Tensor
    """int64 [N], class indices; or float32 or float64 [N], amounts"""
    present: Tensor | None = None
    """bool [N, K]: True if the party, in the parties' order, has a row for the sample; None: all have all."""
    keys: tuple[Sequence[str], ...] = ()
    """Keys of a table's test samples, as in `NewSamples`; never part of a file of labels."""
    weights: Tensor | None = None
    """float64 [N], above 0: weight of each sample in loss, metrics and statistics; None: all are alike."""

    def __post_init__(self) -> None:
        check_ids(self.ids)
        check_labels("labels", self.values, len(self.ids))
        if self.present is not None:  # of any K: how many parties there are is not known here
            check_present("present", self.present, (len(self.ids), *self.present.shape[1:2]))
        if self.weights is not None:
            check_weights(self.weights, len(self.ids))

    def take(self, order: Tensor) -> "Labels":
        """Return the given rows (int64 [M], no row twice), in the order given; without keys."""
        present, weights = (None if each is None else each[order] for each in (self.present, self.weights))
        return Labels(self.ids[order], self.values[order], present, weights=weights)


def check_ids(ids: Tensor) -> None:
    """Raise ValueError for anything but int64 [N] without repetition."""
    if ids.dim() != 1 or ids.dtype != torch.int64:
        raise ValueError(f"samples.ids: expected int64 [N], got {ids.dtype} {list(ids.shape)}")
    if ids.unique().numel() != len(ids):
        raise ValueError("samples.ids: an id occurs twice; every sample needs an id of its own")


def check_labels(field: str, labels: Tensor, samples: int) -> None:
    """Raise ValueError for anything but class indices int64 [samples] or amounts float32 or float64 [samples]."""
    if labels.dtype not in (torch.int64, torch.float32, torch.float64) or tuple(labels.shape) != (samples,):
        raise ValueError(
            f"{field}: expected int64 [{samples}] or a float [{samples}], got {labels.dtype} {list(labels.shape)}"
        )


def check_weights(weights: Tensor, samples: int) -> None:
    """Raise ValueError for anything but finite numbers float64 [samples] above 0."""
    if weights.dtype != torch.float64 or tuple(weights.shape) != (samples,):
        raise ValueError(f"weights: expected float64 [{samples}], got {weights.dtype} {list(weights.shape)}")
    if not bool(((weights > 0) & weights.isfinite()).all()):
        raise ValueError("weights: must be above 0 and finite; leave rows without weight out")


def check_present(field: str, present: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError for anything but a bool tensor of this shape."""
    if present.dtype != torch.bool or tuple(present.shape) != shape:
        raise ValueError(f"{field}: expected bool {list(shape)}, got {present.dtype} {list(present.shape)}")


def check_finite(samples: Samples) -> None:
    """Raise ValueError for features that are not finite."""
    if not samples.is_finite():
        raise ValueError("features are not finite: replace NaN and infinite values")


def check_aligned(digests: Mapping[str, str]) -> None:
    """Raise ValueError unless all parties hold the same ids in the same order, by each one's `Samples.ids_digest`.

    The message names the parties that agree with each other and those that do not.
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


def ids_digest(ids: Tensor) -> str:
    """Return the sha256 (hex) of ordered ids, by which parties prove that their rows are aligned.

    It shows that two lists are equal; it does not hide the ids from somebody who can guess them.
    """
    return hashlib.sha256(ids.cpu().numpy().astype("<i8").tobytes()).hexdigest()


def draw_rows(field: str, wanted: int | None, available: int, draw: torch.Generator) -> Tensor:
    """Return `wanted` of the rows 0 .. available - 1 (all for None), ascending int64, none twice.

    A larger draw contains the smaller one. Raises ValueError, naming the field, if there are too few.
    """
    if wanted is None:
        return torch.arange(available)
    if wanted > available:
        raise ValueError(f"{field}: {wanted} asked for; choose from 1 to {available}, or leave it out for all")
    return torch.randperm(available, generator=draw)[:wanted].sort().values


@dataclass(frozen=True, eq=False)
class Owners:
    """Owners of N samples. Names are unique; an owner may have no sample."""

    names: tuple[str, ...]
    of_row: Tensor
    """int64 [N], index into `names`."""

    def take(self, rows: Tensor) -> "Owners":
        """Return the owners of the given rows (int64 [M]), with all names kept."""
        return Owners(self.names, self.of_row[rows])


@dataclass(frozen=True)
class Dataset:
    """Whole training and test samples, no id in both."""

    train: Samples
    test: Samples
    classes: tuple[str, ...]
    """Names of the classes that labels index; for text, the characters."""
    owners: Owners | None = None
    """Owners of the training samples, if the data name them: LEAF's users, the speaking roles of a play."""
