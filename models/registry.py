"""The feature models that a configuration can name."""

from functools import partial
from typing import Protocol

from torch import nn

from models.cnn import SmallCNN
from models.mlp import FeatureMLP
from models.vgg import VGG


class FeatureModelFactory(Protocol):
    """Builds a model [B, in_channels, *image_size] -> [B, embedding_size] whose last Linear is `embedding`."""

    def __call__(
        self,
        *,
        in_channels: int,
        image_size: tuple[int, int],
        embedding_size: int,
        width: float = 1.0,
        batch_norm: bool = True,
    ) -> nn.Module:
        """A freshly initialized model; see `build_feature_model`."""
        ...


FEATURE_MODELS: dict[str, FeatureModelFactory] = {
    "vgg16": partial(VGG, 16),
    "vgg11": partial(VGG, 11),
    "cnn": SmallCNN,
    "mlp": FeatureMLP,
}


def build_feature_model(
    kind: str,
    *,
    in_channels: int,
    image_size: tuple[int, int],
    embedding_size: int,
    width: float = 1.0,
    batch_norm: bool = True,
) -> nn.Module:
    """A freshly initialized feature model of the given kind: [B, C, H, W] -> [B, embedding_size].

    Its weights are drawn from torch's global generator. Raises ValueError for an unknown kind, a size below 1 or
    a width that is not positive.
    """
    if kind not in FEATURE_MODELS:
        raise ValueError(f"feature model kind: expected one of {', '.join(FEATURE_MODELS)}, got {kind!r}")
    return FEATURE_MODELS[kind](
        in_channels=in_channels,
        image_size=image_size,
        embedding_size=embedding_size,
        width=width,
        batch_norm=batch_norm,
    )
