"""Convolutional feature models as lists of blocks: VGG (Simonyan & Zisserman, ICLR 2015, A and D) and a small one.

Shapes: B samples, C channels, H x W pixels, D the embedding's width.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional

from vfl.models.features import ClassifierSpec, Features, ModelSpec, scaled_width
from vfl.models.narrow_norm import NarrowBatchNorm2d
from vfl.models.small_map import SmallMapConv2d

Convolution = Callable[[int, int, bool], list[nn.Module]]
"""Function of input channels, output channels and whether to normalize, which makes a 3x3 convolution with padding 1
and its normalization, if any."""


def fast_convolution(in_channels: int, out_channels: int, batch_norm: bool) -> list[nn.Module]:
    """Return the layers whose training is fastest on the CPU, pruned or not."""
    norm = [NarrowBatchNorm2d(out_channels)] if batch_norm else []
    return [SmallMapConv2d(in_channels, out_channels, bias=not batch_norm), *norm]


def plain_convolution(in_channels: int, out_channels: int, batch_norm: bool) -> list[nn.Module]:
    """Return PyTorch's own layers, which torch.func can batch."""
    norm = [nn.BatchNorm2d(out_channels)] if batch_norm else []
    return [nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=not batch_norm), *norm]


class MaxPool(nn.MaxPool2d):
    """A 2x2 max-pool that leaves a side of one pixel as it is: images may be smaller than the model was built for."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, input: Tensor) -> Tensor:
        """Pool [B, C, H, W]."""
        return functional.max_pool2d(input, (min(2, input.shape[2]), min(2, input.shape[3])))


class ConvolutionalFeatures(nn.Module):
    """Blocks of 3x3 convolutions, then one linear map to the embedding: [B, C, H, W] -> [B, D].

    Each block of `blocks` lists the channels of its convolutions (stride 1, padding 1, ReLU). A 2x2 max-pool
    follows a block only while both sides are at least 2 pixels, so that any image size works; what is left of
    the image after the last block is averaged. Images smaller than those of `spec` are embedded as well.
    `embedding` has neither ReLU nor dropout after it: the head sees signed values. With `batch_norm` the convolutions
    have no bias, which the normalization would cancel.

    Raises ValueError for features other than images, a size below 1 or a width that is not positive.
    """

    def __init__(
        self, blocks: Sequence[Sequence[int]], spec: ModelSpec, convolution: Convolution = fast_convolution
    ) -> None:
        super().__init__()
        channels, rows, columns = spec.features.expect("images", 3)
        layers: list[nn.Module] = []
        for block in blocks:
            for out_channels in (scaled_width(c, spec.width) for c in block):
                conv, *norm = convolution(channels, out_channels, spec.batch_norm)
                _initialize(conv)
                layers += [conv, *norm, nn.ReLU()]
                channels = out_channels
            if min(rows, columns) >= 2:
                # Before the ReLU: the same values, and the ReLU has a quarter of the pixels to do.
                layers.insert(-1, MaxPool())
                rows, columns = rows // 2, columns // 2
        if (rows, columns) != (1, 1):
            layers.append(nn.AdaptiveAvgPool2d(1))
        self.features = nn.Sequential(*layers)
        # Default initialization: its scale follows the number of inputs, so embeddings keep their scale under any
        # width multiplier; VGG's fixed N(0, 0.01) was set for layers of 4096 inputs with a ReLU behind.
        self.embedding = nn.Linear(channels, spec.embedding_size)

    def forward(self, images: Tensor) -> Tensor:
        """Return the embeddings [B, D] of the images [B, C, H, W]."""
        return self.embedding(self.features(images).flatten(1))


VGG_BLOCKS: dict[int, tuple[tuple[int, ...], ...]] = {
    11: ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    16: ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
}
"""Channels of the convolutions of each block, by depth (convolutions plus the paper's three linear layers)."""


def vgg11(spec: ModelSpec) -> ConvolutionalFeatures:
    """Return VGG of depth 11 whose three linear layers are replaced by one, `embedding`: [B, C, H, W] -> [B, D]."""
    return ConvolutionalFeatures(VGG_BLOCKS[11], spec)


def vgg16(spec: ModelSpec) -> ConvolutionalFeatures:
    """Return VGG of depth 16, as `vgg11`."""
    return ConvolutionalFeatures(VGG_BLOCKS[16], spec)


def small_cnn(spec: ModelSpec) -> ConvolutionalFeatures:
    """Return three blocks of 32, 64 and 128 channels, for parties with little compute: [B, C, H, W] -> [B, D]."""
    return ConvolutionalFeatures(((32,), (64,), (128,)), spec)


def convolutional_classifier(
    blocks: Sequence[Sequence[int]], spec: ClassifierSpec, *, batch_norm: bool
) -> ConvolutionalFeatures:
    """Return blocks of layers that torch.func can batch, with the logits [B, L] as embedding."""
    features = ModelSpec(Features("images", spec.image_shape), spec.classes, batch_norm=batch_norm)
    return ConvolutionalFeatures(blocks, features, plain_convolution)


def _initialize(conv: nn.Module) -> None:
    """Initialize a convolution as in He et al. 2015 (fan out); normalizations start at weight 1 and bias 0 anyway."""
    assert isinstance(conv, nn.Conv2d)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
