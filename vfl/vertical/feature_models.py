"""Feature models, built by name. `docs/extending.md` is their contract."""

from typing import Protocol

from torch import nn

from models.features import ModelSpec
from vfl.components import FEATURE_MODELS


class FeatureModelFactory(Protocol):
    """Makes a model: a sample's tensors, each [B, ...], -> embeddings [B, D]."""

    def __call__(self, spec: ModelSpec, /) -> nn.Module:
        """Return a freshly initialized model, drawn from torch's global generator.

        Raises ValueError for features that it cannot read and settings that it does not know.
        """
        ...


def build_feature_model(kind: str, spec: ModelSpec) -> nn.Module:
    """Return a freshly initialized feature model of the given kind: [B, ...] -> [B, D].

    Raises ValueError for an unknown kind, and as the model for what it cannot be built from.
    """
    return FEATURE_MODELS.load(kind)(spec)
