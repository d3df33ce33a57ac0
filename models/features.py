"""Features of samples, and the specifications that feature models and classifiers are built from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Features:
    """Kind and shape of one sample as a model reads it. A kind with several tensors adds its own fields."""

    kind: str
    """images, text, or a name that a source defines; models check which kinds they read."""
    shape: tuple[int, ...]
    """Shape of one sample: channels, height and width of an image, characters of a text."""

    def expect(self, kind: str, dimensions: int) -> tuple[int, ...]:
        """Return the shape. Raises ValueError for features of another kind or with other dimensions."""
        if self.kind != kind or len(self.shape) != dimensions:
            raise ValueError(f"this model reads {kind} of {dimensions} dimensions, not {self}; choose another model")
        if min(self.shape) < 1:
            raise ValueError(f"features: every size must be at least 1, got {self}")
        return self.shape

    def __str__(self) -> str:
        return f"{self.kind} {list(self.shape)}"


@dataclass(frozen=True)
class TableFeatures(Features):
    """A row of a table: ``shape`` is (numbers + columns of categories,), the categories last, as whole numbers."""

    category_sizes: tuple[int, ...] = ()
    """Number of codes of each column of categories."""
    number_bins: tuple[int, ...] = ()
    """Number of bins of each number, whose value is a position from 0 to it; empty if numbers are standardised."""
    both: bool = False
    """A row has all numbers standardised, then all of them as positions."""


@dataclass(frozen=True)
class ModelSpec:
    """Parameters of a feature model. Raises ValueError for an embedding size below 1."""

    features: Features
    embedding_size: int
    """Width D of the embedding."""
    width: float = 1.0
    """Multiplier of the layers' widths."""
    batch_norm: bool = True
    dropout: float = 0.0
    """Share of a perceptron's hidden units that a training pass leaves out."""
    members: int = 1
    """Perceptrons side by side, each with its part of the embedding."""
    linear_path: bool = False
    """A perceptron's inputs also reach its embedding through one linear layer."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The model's own settings, which it checks itself."""

    def __post_init__(self) -> None:
        if self.embedding_size < 1:
            raise ValueError(f"embedding_size: expected at least 1, got {self.embedding_size}")


@dataclass(frozen=True)
class ClassifierSpec:
    """Parameters of a classifier. Raises ValueError for a size below 1."""

    input_shape: tuple[int, ...]
    """Shape of one sample: (C, H, W) of images, (T,) of text."""
    classes: int
    """Width of the logits; for text the size of the vocabulary."""
    label_shape: tuple[int, ...] = ()
    """Shape of one sample's label: () for a class; (T,) for a label per character, whose logits are [B, classes, T]."""

    def __post_init__(self) -> None:
        if min(*self.input_shape, self.classes) < 1:
            raise ValueError(f"classifier: every size must be at least 1, got {[*self.input_shape, self.classes]}")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width. Raises ValueError for samples other than images."""
        if len(self.input_shape) != 3:
            raise ValueError(f"classifier: this one reads images, not samples of shape {list(self.input_shape)}")
        return self.input_shape


def scaled_width(channels: int, width: float) -> int:
    """Return the channels of a layer under the width multiplier: max(1, round(width * channels)).

    Raises ValueError if `width` is not a positive, finite number.
    """
    if not (width > 0 and math.isfinite(width)):
        raise ValueError(f"width: expected a positive number, got {width}")
    return max(1, round(width * channels))
