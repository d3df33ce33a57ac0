"""What a party's features are, and from what its feature model is built."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Features:
    """What one sample holds, as a model reads it. A kind of several tensors adds fields of its own."""

    kind: str
    """images, text, or a name of the source's own: models say which they read."""
    shape: tuple[int, ...]
    """Of one sample: channels, height and width of an image, characters of a text."""

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
    """Different codes of each column of categories."""


@dataclass(frozen=True)
class ModelSpec:
    """Everything that a feature model is built from. Raises ValueError for an embedding of no width."""

    features: Features
    embedding_size: int
    """Width D of the embedding."""
    width: float = 1.0
    """Multiplier of the layers' widths."""
    batch_norm: bool = True
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The model's own settings, which it checks itself."""

    def __post_init__(self) -> None:
        if self.embedding_size < 1:
            raise ValueError(f"embedding_size: expected at least 1, got {self.embedding_size}")
