"""ResNet-18 (He et al. 2016) for small images: a 3x3 stem of stride 1 and no max-pool, as is usual for 32 pixels.

Shapes: B samples, C channels, H x W pixels, L classes.
"""

from collections.abc import Callable

from torch import Tensor, nn

STAGES = (64, 128, 256, 512)
"""Channels of the four stages of two blocks each; every stage but the first halves the map."""

GROUPS = 32
"""Groups of `group_norm`, as in Wu & He 2018."""

Norm = Callable[[int], nn.Module]


def group_norm(channels: int) -> nn.GroupNorm:
    """Return a normalization of each sample by itself, for clients whose batches differ in distribution.

    BatchNorm's statistics differ among such clients (Hsieh et al. 2020, arXiv 1910.00189).
    """
    return nn.GroupNorm(GROUPS, channels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut, which is a 1x1 convolution if the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
            norm(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            norm(out_channels),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), norm(out_channels)
            )
        self.activation = nn.ReLU()

    def forward(self, maps: Tensor) -> Tensor:
        """Return [B, in_channels, H, W] -> [B, out_channels, ceil(H / stride), ceil(W / stride)]."""
        return self.activation(self.residual(maps) + self.shortcut(maps))


class ResNet18(nn.Module):
    """ResNet-18: [B, C, H, W] -> logits [B, L]; `norm` makes the normalization for a number of channels."""

    def __init__(self, in_channels: int, classes: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        width = STAGES[0]
        self.stem = nn.Sequential(nn.Conv2d(in_channels, width, 3, padding=1, bias=False), norm(width), nn.ReLU())
        blocks: list[nn.Module] = []
        for stage, channels in enumerate(STAGES):
            blocks += [
                BasicBlock(width, channels, 1 if stage == 0 else 2, norm),
                BasicBlock(channels, channels, 1, norm),
            ]
            width = channels
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.output = nn.Linear(width, classes)
        for module in self.modules():  # He et al. 2015, as in torchvision: gradients keep their scale
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, L] of the images [B, C, H, W]."""
        return self.output(self.pool(self.blocks(self.stem(images))).flatten(1))
