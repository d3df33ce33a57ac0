"""VGG feature models (Simonyan & Zisserman, ICLR 2015, configurations A and D) for images of any size."""

from models.convolution import ConvolutionalFeatures
from models.features import ModelSpec

VGG_BLOCKS: dict[int, tuple[tuple[int, ...], ...]] = {
    11: ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    16: ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
}
"""Channels of the convolutions of each block, by depth (convolutions plus the paper's three linear layers)."""


def vgg11(spec: ModelSpec) -> ConvolutionalFeatures:
    """VGG of depth 11 whose three linear layers are replaced by one, `embedding`: [B, C, H, W] -> [B, D]."""
    return ConvolutionalFeatures(VGG_BLOCKS[11], spec)


def vgg16(spec: ModelSpec) -> ConvolutionalFeatures:
    """VGG of depth 16, as `vgg11`."""
    return ConvolutionalFeatures(VGG_BLOCKS[16], spec)
