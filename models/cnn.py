"""A small convolutional feature model, for tests and for parties with little compute."""

from models.convolution import ConvolutionalFeatures
from models.features import ModelSpec

CNN_BLOCKS = ((32,), (64,), (128,))
"""Channels of the one convolution of each block."""


class SmallCNN(ConvolutionalFeatures):
    """Three convolution blocks of 32, 64 and 128 channels: [B, C, H, W] -> [B, D]."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(CNN_BLOCKS, spec)
