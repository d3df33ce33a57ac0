"""3x3 convolutions for the CPU, first of all on maps of one to four pixels, where VGG16 on a 16x16 quadrant spends
most of its time.

On so small a map every pixel reaches every other, so that the convolution is a dense map from all input pixels
to all output pixels: one matrix product, without the padding's zeros. CPU convolution kernels are made for
large maps: on 512 channels and 2x2 pixels the product takes about a tenth of the time in bfloat16.

On 4x4 pixels in bfloat16 a CPU with AMX is faster at products over the nine inputs of every output, gathered.

Larger maps go through PyTorch's kernels in channels_last, whatever layout they come in. The kernels of the other
layout reorder what they read and write into blocks of 16 channels; a pruned layer leaves the last one half empty.

Shapes: B samples, C input channels, O output channels, H x W pixels, P = H * W.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from vfl.models.kernels import convolution_form, has_amx


class SmallMapConv2d(nn.Conv2d):
    """A 3x3 convolution with padding 1, on the CPU in the form that ``kernels.py`` chooses for its shape and dtype.

    Parameters are the same, and up to rounding values and gradients, as of ``nn.Conv2d``; under autocast it computes in
    autocast's dtype.
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool) -> None:
        super().__init__(in_channels, out_channels, kernel_size=3, padding=1, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve [B, C, H, W] to [B, O, H, W]."""
        if input.device.type != "cpu":
            return super().forward(input)
        dtype = _computed_in(input)
        form = convolution_form(input.shape, dtype, amx=has_amx())
        if form == "dense":
            return _SmallMapConvolution.apply(input, self.weight, self.bias)
        input = input.contiguous(memory_format=torch.channels_last)
        if form == "own":
            return super().forward(input)
        output = GatheredConvolution.apply(input.to(dtype), self.weight.to(dtype))
        return output if self.bias is None else output + self.bias.to(dtype).view(-1, 1, 1)


class _SmallMapConvolution(torch.autograd.Function):
    """One node in the autograd graph, so that tools that trace it see a convolution."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dtype = _computed_in(images)
        batch, channels, height, width = images.shape
        # A pixel's channels side by side, which is how channels_last images lie: no copy of these.
        flat_BPC = images.to(dtype).permute(0, 2, 3, 1).reshape(batch, height * width * channels)
        matrix = _dense(weight, height, width, dtype)
        flat_BPO = flat_BPC @ matrix.t()
        if bias is not None:
            flat_BPO += bias.to(dtype).repeat(height * width)
        ctx.save_for_backward(flat_BPC, matrix)
        ctx.shape, ctx.dtypes = images.shape, (images.dtype, weight.dtype)
        ctx.weight_format = torch.channels_last if _is_channels_last(weight) else torch.contiguous_format
        return flat_BPO.view(batch, height, width, len(weight)).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub names no arguments
        flat_BPC, matrix = ctx.saved_tensors
        batch, channels, height, width = ctx.shape
        grad_BPO = grad_output.to(matrix.dtype).permute(0, 2, 3, 1).reshape(batch, len(matrix))
        grad_images = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_BPC = (grad_BPO @ matrix).view(batch, height, width, channels)
            grad_images = grad_BPC.permute(0, 3, 1, 2).to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            grad_weight = _undense(grad_BPO.t() @ flat_BPC, channels, height, width, ctx.dtypes[1], ctx.weight_format)
        if ctx.needs_input_grad[2]:
            grad_bias = grad_BPO.sum(dim=0, dtype=ctx.dtypes[1]).view(height * width, -1).sum(dim=0)
        return grad_images, grad_weight, grad_bias


class GatheredConvolution(torch.autograd.Function):
    """A convolution of [B, C, H, W] by [O, C, 3, 3] whose output and gradients are products over gathered patches."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor) -> Tensor:
        """Return [B, O, H, W]."""
        ctx.save_for_backward(images, weight)
        return _convolve(images, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub names no arguments
        """Return the gradients of images and weight, None for one that is not needed."""
        images, weight = ctx.saved_tensors
        grad_images = grad_weight = None
        if ctx.needs_input_grad[0]:
            # A convolution as well: channels change places, and the kernel is turned half round.
            grad_images = _convolve(grad_output, weight.transpose(0, 1).flip(2, 3))
        if ctx.needs_input_grad[1]:
            out_channels, channels = weight.shape[:2]
            grad_NO = grad_output.permute(0, 2, 3, 1).reshape(grad_output.numel() // out_channels, out_channels)
            grad_O33C = (grad_NO.t() @ _patches(images)).view(out_channels, 3, 3, channels)
            grad_weight = grad_O33C.permute(0, 3, 1, 2)
        return grad_images, grad_weight


def _computed_in(images: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else images.dtype


def _convolve(images: Tensor, weight: Tensor) -> Tensor:
    """Return [B, O, H, W], in channels_last, by one product over patches."""
    batch, _, height, width = images.shape
    output_NO = _patches(images) @ weight.permute(0, 2, 3, 1).flatten(1).t()
    return output_NO.view(batch, height, width, len(weight)).permute(0, 3, 1, 2)


def _patches(images: Tensor) -> Tensor:
    """Return the nine inputs of every pixel of [B, C, H, W], zeros beyond the edges: [B * H * W, 3 * 3 * C]."""
    padded_BHWC = functional.pad(images.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    windows_BHWC33 = padded_BHWC.unfold(1, 3, 1).unfold(2, 3, 1)  # views; the reshape below is the one copy
    batch, channels, height, width = images.shape
    return windows_BHWC33.permute(0, 1, 2, 4, 5, 3).reshape(batch * height * width, 9 * channels)


def _windows(height: int, width: int) -> list[tuple[int, int, slice, slice]]:
    """Return for every output pixel its row, its column, and the kernel's rows and columns over the inputs in order.

    All of them lie within the kernel, whose middle is (1, 1): the map has at most ``DENSE_SIDE`` pixels a side.
    """
    # Input i meets the kernel at i - pixel + 1, so inputs 0 to side - 1 meet 1 - pixel to side - pixel.
    rows, columns = ([slice(1 - pixel, 1 - pixel + side) for pixel in range(side)] for side in (height, width))
    return [(row, column, rows[row], columns[column]) for row in range(height) for column in range(width)]


def _dense(weight_OC33: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return the matrix [P * O, P * C] of the convolution on a map of height x width pixels."""
    out_channels, in_channels = weight_OC33.shape[:2]
    pixels = height * width
    if pixels > 1:
        # Each entry is copied several times: convert it once, and to where a row of C is contiguous.
        weight_OC33 = weight_OC33.to(dtype, memory_format=torch.channels_last)
    weight_O33C = weight_OC33.permute(0, 2, 3, 1)
    matrix = weight_OC33.new_empty(height, width, out_channels, height, width, in_channels, dtype=dtype)
    for row, column, rows, columns in _windows(height, width):
        matrix[row, column] = weight_O33C[:, rows, columns]
    return matrix.view(pixels * out_channels, pixels * in_channels)


def _undense(
    grad_matrix: Tensor, channels: int, height: int, width: int, dtype: torch.dtype, memory_format: torch.memory_format
) -> Tensor:
    """Return the gradient [O, C, 3, 3] of the weight from that of the matrix: each entry is the sum over its pixels."""
    blocks = grad_matrix.view(height, width, -1, height, width, channels)
    grad_O33C = torch.zeros(blocks.shape[2], 3, 3, channels, dtype=dtype)
    for row, column, rows, columns in _windows(height, width):
        grad_O33C[:, rows, columns] += blocks[row, column]
    return grad_O33C.permute(0, 3, 1, 2).contiguous(memory_format=memory_format)  # no copy for channels_last


def _is_channels_last(weight: Tensor) -> bool:
    return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
