"""Halves of two models for split learning, in PyTorch alone, so that they are the same beside any framework.

`light` has little computation and a wide cut, as the benchmark of that name; `example` has the layers of NVFlare's own
example of split learning, without its dropout, on images of 16 pixels. Shapes: [B, 3, 16, 16] -> [B, WIDTHS[kind]].
"""

from torch import nn

WIDTHS = {"light": 4096, "example": 1024}
HIDDEN: dict[str, list[int]] = {"light": [], "example": [512, 512]}
"""Widths of the hidden layers of the labels' half."""
CLASSES = 10


def image_half(kind: str) -> nn.Sequential:
    """Return the half of the owner of the images."""
    if kind == "light":
        return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(192, WIDTHS[kind]), nn.ReLU())
    layers: list[nn.Module] = []
    channels = 3
    for block in ((32, 64), (128, 128), (256, 256)):
        for width in block:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten())


def label_half(kind: str) -> nn.Sequential:
    """Return the half of the owner of the labels."""
    layers: list[nn.Module] = []
    width = WIDTHS[kind]
    for hidden in HIDDEN[kind]:
        layers += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))
