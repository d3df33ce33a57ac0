"""A feature model with little computation, whose embedding is half zeros: nearly all time is the exchange's."""

from torch import Tensor, nn

from vfl.models.features import ModelSpec

LIGHT = "light"
"""Name of the model in the processes of the workbench."""
LIGHT_WIDTH = 4096
"""Width of its embedding."""


class LightModel(nn.Module):
    """One linear layer with ReLU: [B, 3, 16, 16] -> [B, 4096], in 786,432 multiply-accumulates a sample."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        channels, height, width = spec.features.expect("images", 3)
        self.pool = nn.AvgPool2d(2)
        self.linear = nn.Linear(channels * (height // 2) * (width // 2), spec.embedding_size)

    def forward(self, images: Tensor) -> Tensor:
        """Return the embeddings of images."""
        return self.linear(self.pool(images).flatten(1)).relu()
