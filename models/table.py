"""A feature model for tables: numbers and embeddings of categories through a multilayer perceptron.

Shapes: B samples, W numbers, K columns of categories, D the embedding's width.
"""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from vfl.models.features import ModelSpec, TableFeatures, scaled_width
from vfl.models.mlp import FEATURE_MLP_HIDDEN, FeatureMLP, hidden_layers, linear_path, with_linear_path

CATEGORY_SIZE = 8
"""Width of the learned embedding of a category."""


class TableMLP(nn.Module):
    """Prepared rows through hidden layers to the embedding: [B, W + K] -> [B, D].

    The last K columns hold categories as whole numbers: the codes of column k are 0 to ``category_sizes[k]`` - 1. All
    columns' embeddings are rows of one `categories` table; they are inputs of the first hidden layer, and so never
    pruned. Hidden widths are `FEATURE_MLP_HIDDEN` times `width`, each Linear, BatchNorm1d if `batch_norm`, ReLU and
    Dropout.

    A number with T bins is its position p among the quantiles of the training rows, 0 to T; the hidden layers read T
    values of it, clamp(p - t, 0, 1) for t = 0 .. T - 1: the piecewise linear encoding of Gorishniy et al., NeurIPS
    2022, equation 1. Raises ValueError for features of another kind, or rows with both forms of the numbers.
    """

    first_code: Tensor
    """int64 [K], row of each column's code 0."""
    bins: tuple[Tensor, Tensor] | None
    """Index of the number of each encoded value, int64, and start of its bin, float32; None for standardised
    numbers."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        features = spec.features
        if not isinstance(features, TableFeatures):
            raise ValueError(f"this model reads tables, not {features}; choose another model")
        if features.both:
            raise ValueError("data.numbers: both needs models.members of at least 2, which read one form each")
        (columns,) = features.expect("table", 1)
        category_sizes = features.category_sizes
        numbers = columns - len(category_sizes)
        self.numbers = numbers
        starts = torch.tensor([0, *category_sizes]).cumsum(0)  # [K + 1]: each column's first row, then how many in all
        # Without columns of categories none: an empty constant, or a view of a larger one, cannot be exported.
        self.register_buffer("first_code", starts[:-1].clone() if category_sizes else None, persistent=False)
        self.categories = nn.Embedding(int(starts[-1]), CATEGORY_SIZE) if category_sizes else None
        bins = torch.tensor(features.number_bins, dtype=torch.int64)
        if bins.numel() not in (0, numbers):
            raise ValueError(f"number_bins: expected one for each of {numbers} numbers, got {bins.numel()}")
        starts = [torch.arange(count, dtype=torch.float32) for count in features.number_bins]
        # In a tuple and no buffers: pruning traces a copy whose parameters and buffers hold other values.
        self.bins = (torch.arange(numbers).repeat_interleave(bins), torch.cat(starts)) if starts else None
        inputs = sum(features.number_bins) if starts else numbers
        hidden = [scaled_width(base, spec.width) for base in FEATURE_MLP_HIDDEN]
        width = inputs + CATEGORY_SIZE * len(category_sizes)
        self.hidden = hidden_layers(width, hidden, spec.batch_norm, spec.dropout)
        self.embedding = nn.Linear(hidden[-1], spec.embedding_size)
        self.linear = linear_path(spec, width)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the embeddings [B, D] of prepared rows [B, W + K]."""
        numbers, codes = rows[:, : self.numbers], rows[:, self.numbers :]
        return self.embed(numbers if self.bins is None else self.encode(numbers), codes)

    def embed(self, encoded: Tensor, codes: Tensor) -> Tensor:
        """Return the embeddings [B, D] of encoded numbers and codes [B, K]."""
        inputs = encoded
        if self.categories is not None:
            rows = codes.long() + self.first_code  # float32 holds codes exactly up to 2^24
            inputs = torch.cat([encoded, self.categories(rows).flatten(1)], dim=1)
        return with_linear_path(self.embedding(self.hidden(inputs)), self.linear, inputs)

    def encode(self, numbers: Tensor) -> Tensor:
        """Return the encoding of numbers [B, W] for the hidden layers."""
        if self.bins is None:
            return numbers
        number, start = (each.to(numbers.device) for each in self.bins)
        return (numbers[:, number] - start).clamp(0, 1)


class MemberModels(nn.Module):
    """Perceptrons side by side on the same rows, each with its part of the embedding: [B, W + K] -> [B, D].

    Of rows with both forms of the numbers, [B, 2 W + K], the first, third, ... member reads the standardised ones, the
    others the positions.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        features = spec.features
        self.numbers: int | None = None
        """W, if rows have both forms."""
        kinds = [features]
        if isinstance(features, TableFeatures) and features.both:
            numbers, codes = len(features.number_bins), len(features.category_sizes)
            self.numbers = numbers
            one = replace(features, shape=(numbers + codes,), both=False)
            kinds = [replace(one, number_bins=()), one]
        own = replace(spec, embedding_size=spec.embedding_size // spec.members, members=1)
        self.members = nn.ModuleList(
            mlp(replace(own, features=kinds[member % len(kinds)])) for member in range(spec.members)
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Return the embeddings [B, D] of prepared rows."""
        if self.numbers is None:
            return torch.cat([member(rows) for member in self.members], dim=1)
        both, codes = (rows[:, : self.numbers], rows[:, self.numbers : 2 * self.numbers]), rows[:, 2 * self.numbers :]
        members = [cast(TableMLP, member) for member in self.members]
        # All members that read one form encode it alike, so the first does it for the others.
        encoded = [member.encode(numbers) for member, numbers in zip(members, both, strict=False)]
        embeddings = [member.embed(encoded[place % 2], codes) for place, member in enumerate(members)]
        return torch.cat(embeddings, dim=1)


def mlp(spec: ModelSpec) -> nn.Module:
    """Return the perceptron for the features: a table's with its categories, or one for any flattened features."""
    if spec.members > 1:
        return MemberModels(spec)
    return TableMLP(spec) if isinstance(spec.features, TableFeatures) else FeatureMLP(spec)
