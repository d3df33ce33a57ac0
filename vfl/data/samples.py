"""The samples that one holder (the whole dataset, or one party) has: ids, features, perhaps labels and owners."""
# pyright: reportUnknownMemberType=false
# torch's own signatures are partly untyped.

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Samples:
    """N samples in a fixed order. Row i of every tensor is the same sample.

    Raises ValueError when shapes, dtypes or lengths do not fit, or an id occurs twice.
    """

    ids: Tensor
    """int64 [N], unique: the names by which the parties mean the same sample."""

    features: Tensor
    """Images, uint8 (0 to 255) or float32 [N, C, H, W]; or text, characters int64 [N, T]."""

    labels: Tensor | None = None
    """int64 [N], class indices; None for a party that holds features only. Of text: the character that comes next,
    int64 [N], or the one after each character, int64 [N, T]."""

    def __post_init__(self) -> None:
        check_ids(self.ids)
        images = self.features.dim() == 4 and self.features.dtype in (torch.uint8, torch.float32)
        if not (images or self.is_text):
            raise ValueError(
                "samples.features: expected uint8 or float32 [N, C, H, W] or int64 [N, T], "
                f"got {self.features.dtype} {list(self.features.shape)}"
            )
        if len(self.features) != len(self.ids):
            raise ValueError(f"samples.features: {len(self.features)} rows for {len(self.ids)} ids")
        if self.labels is not None and not self._label_per_character():
            _check_vector("labels", self.labels, len(self.ids))

    @property
    def is_text(self) -> bool:
        """Whether the features are characters."""
        return self.features.dim() == 2 and self.features.dtype == torch.int64

    def _label_per_character(self) -> bool:
        """Whether labels are int64 [N, T] like the text."""
        assert self.labels is not None
        return self.is_text and self.labels.dtype == torch.int64 and self.labels.shape == self.features.shape

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Tensor) -> "Samples":
        """Return copies of the given rows (int64 [M], no row twice), in the order given."""
        labels = None if self.labels is None else self.labels[rows]
        return Samples(self.ids[rows], self.features[rows], labels)

    def ids_digest(self) -> str:
        """Return the digest of the ids."""
        return ids_digest(self.ids)


def check_ids(ids: Tensor) -> None:
    """Refuse anything but int64 [N] without repetition. Raises ValueError."""
    _check_vector("ids", ids, ids.numel())
    if ids.unique().numel() != len(ids):
        raise ValueError("samples.ids: an id occurs twice; every sample needs an id of its own")


def ids_digest(ids: Tensor) -> str:
    """Return the sha256 (hex) of ordered ids, by which parties prove that their rows are aligned.

    It shows that two lists are equal; it does not hide them from somebody who can guess the ids.
    """
    return hashlib.sha256(ids.cpu().numpy().astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class Owners:
    """Who each of N samples comes from. Names are unique; one without a sample is possible."""

    names: tuple[str, ...]
    of_row: Tensor
    """int64 [N], index into `names`."""

    def take(self, rows: Tensor) -> "Owners":
        """Return the owners of the given rows (int64 [M]), under all the names there were."""
        return Owners(self.names, self.of_row[rows])


def _check_vector(name: str, values: Tensor, length: int) -> None:
    """Refuse anything but int64 [length]."""
    if values.dim() != 1 or values.dtype != torch.int64 or len(values) != length:
        raise ValueError(f"samples.{name}: expected int64 [{length}], got {values.dtype} {list(values.shape)}")
