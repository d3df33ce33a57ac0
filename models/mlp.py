"""Multilayer perceptrons: the head model, a classifier, and a feature model for images or tables without structure.

Shapes: B samples, C channels, H x W pixels, D the embedding's width.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from vfl.models.features import ModelSpec, scaled_width

FEATURE_MLP_HIDDEN = (256, 128)
"""Hidden widths of `FeatureMLP` at width 1."""


class MLP(nn.Module):
    """Linear layers with ReLU between them: [B, in_features], or images of as many values, -> [B, out_features].

    `hidden` holds the widths of the hidden layers; without any it is logistic regression. With `linear_path` the output
    of one linear layer is added to theirs. Raises ValueError for a size below 1.
    """

    linear: nn.Linear | None

    def __init__(
        self, in_features: int, hidden: Sequence[int], out_features: int, *, linear_path: bool = False
    ) -> None:
        super().__init__()
        if min(in_features, out_features, *hidden) < 1:
            raise ValueError(f"MLP: every size must be at least 1, got {[in_features, *hidden, out_features]}")
        self.hidden = hidden_layers(in_features, hidden, batch_norm=False)
        self.output = nn.Linear(hidden[-1] if hidden else in_features, out_features)
        self.linear = nn.Linear(in_features, out_features, bias=False) if linear_path else None

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores [B, out_features] of the features [B, ...]."""
        return with_linear_path(self.output(self.hidden(features.flatten(1))), self.linear, features.flatten(1))


PLACEHOLDER = "placeholder"
"""Name of the weights that replace missing features."""


class PlaceholderMLP(MLP):
    """A perceptron with a learned value, initially 0, in place of each feature that is missing.

    NaN marks missing features, also in an exported model.
    """

    def __init__(
        self, in_features: int, hidden: Sequence[int], out_features: int, *, linear_path: bool = False
    ) -> None:
        super().__init__(in_features, hidden, out_features, linear_path=linear_path)
        self.placeholder = nn.Parameter(torch.zeros(in_features))  # its name is PLACEHOLDER

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores [B, out_features] of the features [B, in_features]."""
        # Not a product with a mask: NaN times 0 is NaN. The gradient at what is missing is 0.
        return super().forward(torch.where(features.isnan(), self.placeholder, features))


class MemberHeads(nn.Module):
    """Heads side by side, each on its part of every embedding: [B, P] -> [B, members, C]."""

    def __init__(self, heads: Sequence[nn.Module], widths: Sequence[int]) -> None:
        """Take a head for each member, and the widths of the embeddings, multiples of their number."""
        super().__init__()
        self.members = nn.ModuleList(heads)
        self.widths = [width // len(heads) for width in widths for _ in heads]

    def forward(self, representation: Tensor) -> Tensor:
        """Return each member's scores [B, members, C] of the embeddings [B, P]."""
        parts, count = representation.split(self.widths, dim=1), len(self.members)
        own = [torch.cat(parts[place::count], dim=1) for place in range(count)]
        return torch.stack([head(part) for head, part in zip(self.members, own, strict=True)], dim=1)


def has_placeholders(head: nn.Module) -> bool:
    """Return whether a head replaces missing embeddings by learned values."""
    return any(isinstance(module, PlaceholderMLP) for module in head.modules())


def placeholders_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return those of a head's weights by name that replace missing embeddings."""
    return {name: each for name, each in weights.items() if name.rpartition(".")[2] == PLACEHOLDER}


class FeatureMLP(nn.Module):
    """Flattened features of any kind through hidden layers to the embedding: float [B, ...] -> [B, D].

    Hidden widths are `FEATURE_MLP_HIDDEN` times `width`, each Linear, BatchNorm1d if `batch_norm`, ReLU, Dropout.
    Raises ValueError for a size below 1 or a width that is not positive.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        hidden = [scaled_width(features, spec.width) for features in FEATURE_MLP_HIDDEN]
        self.hidden = hidden_layers(math.prod(spec.features.shape), hidden, spec.batch_norm, spec.dropout)
        self.embedding = nn.Linear(hidden[-1], spec.embedding_size)
        self.linear = linear_path(spec, math.prod(spec.features.shape))

    def forward(self, features: Tensor) -> Tensor:
        """Return the embeddings [B, D] of the features [B, ...]."""
        inputs = features.flatten(1)
        return with_linear_path(self.embedding(self.hidden(inputs)), self.linear, inputs)


def linear_path(spec: ModelSpec, inputs: int) -> nn.Linear | None:
    """Return the layer that adds a linear part to an embedding, if the specification has one.

    It starts at 0, so that weight decay shrinks an owner's linear part towards none: the wide part beside a deep one of
    Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016.
    """
    if not spec.linear_path:
        return None
    layer = nn.Linear(inputs, spec.embedding_size, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def with_linear_path(output: Tensor, linear: nn.Linear | None, inputs: Tensor) -> Tensor:
    """Return an output [B, O] of hidden layers, with that of a linear layer for the inputs [B, ...] added, if any."""
    return output if linear is None else output + linear(inputs)


def hidden_layers(in_features: int, hidden: Sequence[int], batch_norm: bool, dropout: float = 0.0) -> nn.Sequential:
    """Return Linear, BatchNorm1d if `batch_norm`, ReLU, and Dropout above 0 for each hidden width."""
    if in_features < 1:
        raise ValueError(f"features: every size must be at least 1, got {in_features} values")
    layers: list[nn.Module] = []
    for out_features in hidden:
        norm = [nn.BatchNorm1d(out_features)] if batch_norm else []
        drop = [nn.Dropout(dropout)] if dropout else []
        layers += [nn.Linear(in_features, out_features, bias=not batch_norm), *norm, nn.ReLU(), *drop]
        in_features = out_features
    return nn.Sequential(*layers)
