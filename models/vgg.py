"""VGG feature models (Simonyan & Zisserman, ICLR 2015, configurations A and D) for images of any size."""

from models.convolution import ConvolutionalFeatures

VGG_BLOCKS: dict[int, tuple[tuple[int, ...], ...]] = {
    11: ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    16: ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
}
"""Channels of the convolutions of each block, by depth (convolutions plus the paper's three linear layers)."""


class VGG(ConvolutionalFeatures):
    """VGG of depth 11 or 16 whose three linear layers are replaced by one, `embedding`.

    [B, C, H, W] -> [B, D]. See `ConvolutionalFeatures` for the arguments. Raises ValueError for another depth.
    """

    def __init__(
        self,
        depth: int,
        in_channels: int,
        image_size: tuple[int, int],
        embedding_size: int,
        width: float = 1.0,
        batch_norm: bool = True,
    ) -> None:
        if depth not in VGG_BLOCKS:
            raise ValueError(f"depth: expected one of {sorted(VGG_BLOCKS)}, got {depth}")
        super().__init__(VGG_BLOCKS[depth], in_channels, image_size, embedding_size, width, batch_norm)
