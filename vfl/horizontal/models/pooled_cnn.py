"""The small classifiers of federated learning's papers: 5x5 convolutions with pooling, then linear layers.

Shapes: B samples, C channels, H x W pixels, L classes.
"""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from vfl.models.convolution import ConvolutionalFeatures, convolutional_classifier
from vfl.models.features import ClassifierSpec
from vfl.models.mlp import MLP

KERNEL = 5


class PooledCNN(nn.Module):
    """5x5 convolutions, each with ReLU and a 2x2 max-pool, then an MLP: [B, C, H, W] -> logits [B, L].

    `channels` and `paddings` (rows, columns) have an entry per convolution, `hidden` one per hidden linear layer.
    Raises ValueError, naming the argument, for images too small for the convolutions.
    """

    def __init__(
        self, spec: ClassifierSpec, channels: Sequence[int], paddings: Sequence[tuple[int, int]], hidden: Sequence[int]
    ) -> None:
        super().__init__()
        in_channels, *sides = spec.image_shape
        layers: list[nn.Module] = []
        for out_channels, padding in zip(channels, paddings, strict=True):
            layers += [nn.Conv2d(in_channels, out_channels, KERNEL, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
            in_channels = out_channels
            sides = [(side + 2 * each - KERNEL + 1) // 2 for side, each in zip(sides, padding, strict=True)]
            if min(sides) < 1:
                raise ValueError(
                    f"input_shape: images of {' x '.join(map(str, spec.image_shape[1:]))} pixels are too small for "
                    f"{len(channels)} convolutions of {KERNEL} x {KERNEL} with pooling; use larger images"
                )
        self.features = nn.Sequential(*layers)
        self.classifier = MLP(in_channels * math.prod(sides), hidden, spec.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, L] of the images [B, C, H, W]."""
        return self.classifier(self.features(images).flatten(1))


def lenet(spec: ClassifierSpec) -> PooledCNN:
    """Return LeNet-5 (LeCun et al. 1998), with ReLU and max-pooling as today: 6 and 16 channels, 120 and 84 hidden.

    Images of less than 32 pixels are padded to 32, as MNIST's are there.
    """
    _, height, width = spec.image_shape
    padding = (max(0, (33 - height) // 2), max(0, (33 - width) // 2))  # half of what is missing to 32, rounded up
    return PooledCNN(spec, (6, 16), (padding, (0, 0)), (120, 84))


def tsfl_cnn(spec: ClassifierSpec) -> PooledCNN:
    """Return the T-SFL paper's CNN for MNIST (section 5.1): 10 and 20 channels, then linear, 320 x 10 on 28 pixels.

    The paper speaks of two linear layers but gives one size, 320 x 10: one layer is built.
    """
    return PooledCNN(spec, (10, 20), ((0, 0), (0, 0)), ())


def mcmahan_cnn(spec: ClassifierSpec) -> PooledCNN:
    """Return the CNN of McMahan et al. 2017 (arXiv 1602.05629), section 3: 32 and 64 channels, 512 hidden."""
    return PooledCNN(spec, (32, 64), ((2, 2), (2, 2)), (512,))


def six_layer_cnn(spec: ClassifierSpec) -> ConvolutionalFeatures:
    """Return the T-SFL paper's CNN for Fashion-MNIST (section 5.1): six 3x3 convolutions with ReLU and 2x2 pooling.

    28 pixels can be halved four times, not six: a pool is left out once a side is 1 pixel. The channels are a choice.
    """
    return convolutional_classifier(((32,), (32,), (64,), (64,), (128,), (128,)), spec, batch_norm=False)
