"""Batch normalization of few channels in channels_last, which pruned convolutions leave.

PyTorch's CPU kernels go through such a tensor pixel by pixel, a pixel's C channels in vectors of 16 or 32, the
last one partly filled and handled slowly: 26 channels take longer than 64. Here K neighbouring pixels are read as
one of K * C channels, which fills the vectors, and the K statistics of a channel are then put together.

Shapes: B samples, C channels, H x W pixels, N = B * H * W.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from vfl.models.kernels import PIXELS, is_narrow


class NarrowBatchNorm2d(nn.BatchNorm2d):
    """Batch normalization in the faster of two forms for its channels (CPU, channels_last, training).

    Parameters and buffers are the same, and up to rounding values, gradients and running statistics, as of
    ``nn.BatchNorm2d`` with its default arguments.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize [B, C, H, W] over B, H and W."""
        if not (self.training and is_narrow(input)):
            return super().forward(input)
        output, mean_C, variance_C = _NarrowBatchNorm.apply(input, self.weight, self.bias, self.eps)
        samples = input.numel() // input.shape[1]
        # As in PyTorch: the batch's own variance normalizes, the unbiased estimate is remembered.
        unbiased_C = variance_C * (samples / (samples - 1))
        assert self.momentum is not None, "the default"
        with torch.no_grad():
            self.get_buffer("running_mean").lerp_(mean_C, self.momentum)
            self.get_buffer("running_var").lerp_(unbiased_C, self.momentum)
            self.get_buffer("num_batches_tracked").add_(1)
        return output


class _NarrowBatchNorm(torch.autograd.Function):
    """Ioffe & Szegedy 2015, Algorithm 1, and its gradients; the statistics have none."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight_C: Tensor, bias_C: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = _wide(images)
        # In the place of running statistics, which would be moved. The batch's statistics have their dtype: float32,
        # also for bfloat16 images, whose own would lose the variance's digits.
        unused = [weight_C.new_empty(wide.shape[1]) for _ in range(2)]
        mean, variance = (s.view(PIXELS, -1) for s in torch.batch_norm_update_stats(wide, *unused, momentum=0.0))
        mean_C = mean.mean(dim=0)
        variance_C = variance.mean(dim=0) + mean.var(dim=0, correction=0)  # within and between the K groups
        # In evaluation mode with these as running statistics: the K groups are normalized alike, by all pixels'.
        wide_CK = (s.repeat(PIXELS) for s in (mean_C, variance_C, weight_C, bias_C))
        output = functional.batch_norm(wide, *wide_CK, training=False, eps=eps)
        ctx.save_for_backward(images, weight_C, mean_C, torch.rsqrt(variance_C + eps))
        ctx.mark_non_differentiable(mean_C, variance_C)
        return _narrow(output, images), mean_C, variance_C

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub names no arguments
        images, weight_C, mean_C, scale_C = ctx.saved_tensors
        grad_output = grad_output.contiguous(memory_format=torch.channels_last)
        wide, grad = _wide(images), _wide(grad_output)
        # PyTorch's own sums over the rows, without its gradient of the input.
        _, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, wide, None, None, None, *(s.repeat(PIXELS) for s in (mean_C, scale_C)), True, 0.0, [False, True, True]
        )
        grad_weight_C, grad_bias_C = (s.view(PIXELS, -1).sum(dim=0) for s in (grad_weight, grad_bias))
        # weight * scale * (grad - mean(grad) - normalized * mean(grad * normalized)), as a map of `grad` and `wide`
        samples = images.numel() // len(mean_C)
        of_grad_C = weight_C * scale_C
        of_wide_C = -of_grad_C * scale_C * grad_weight_C / samples
        constant_C = -of_grad_C * grad_bias_C / samples - of_wide_C * mean_C
        constant, of_wide, of_grad = (s.repeat(PIXELS) for s in (constant_C, of_wide_C, of_grad_C))
        if images.dtype != constant.dtype:
            # Half precision: a normalization with these numbers maps `wide` with float32 coefficients, of which rounded
            # ones would lose what little is left where a channel's mean is large beside its deviation.
            zero, one = torch.zeros_like(constant), torch.ones_like(constant)
            moved = functional.batch_norm(wide, zero, one, of_wide, constant, eps=0)
            grad_input = moved.addcmul_(grad, of_grad.to(grad.dtype))
        else:
            grad_input = torch.addcmul(constant, wide, of_wide).addcmul_(grad, of_grad)
        return _narrow(grad_input, images), grad_weight_C, grad_bias_C, None


def _wide(images: Tensor) -> Tensor:
    """Return channels_last [B, C, H, W] as [N / K, K * C], without a copy."""
    return images.permute(0, 2, 3, 1).view(-1, PIXELS * images.shape[1])


def _narrow(wide: Tensor, like: Tensor) -> Tensor:
    """Return the inverse of `_wide`, for a tensor of `like`'s shape."""
    batch, channels, height, width = like.shape
    return wide.view(batch, height, width, channels).permute(0, 3, 1, 2)
