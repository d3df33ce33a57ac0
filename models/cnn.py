"""A small convolutional feature model, for tests and for parties with little compute."""

from models.convolution import ConvolutionalFeatures

CNN_BLOCKS = ((32,), (64,), (128,))
"""Channels of the one convolution of each block."""


class SmallCNN(ConvolutionalFeatures):
    """Three convolution blocks of 32, 64 and 128 channels: [B, C, H, W] -> [B, D].

    See `ConvolutionalFeatures` for the arguments.
    """

    def __init__(
        self,
        in_channels: int,
        image_size: tuple[int, int],
        embedding_size: int,
        width: float = 1.0,
        batch_norm: bool = True,
    ) -> None:
        super().__init__(CNN_BLOCKS, in_channels, image_size, embedding_size, width, batch_norm)
