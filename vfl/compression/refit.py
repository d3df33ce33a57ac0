"""Refitting of the layers that read pruned channels, so that a pruning costs less accuracy.

What a layer has lost is predicted from what it still reads, by least squares over a sample of the owner's own rows, and
added to its weights: its outputs stay as near to those of the whole layer as they can (He, Zhang & Sun, "Channel
Pruning for Accelerating Very Deep Neural Networks", ICCV 2017, equation 3, here for all layers from one forward pass
and with a ridge). Nothing travels.

With inputs x of the whole layer y = W x + b, kept ones K and removed ones R, the new weights are
W'_K = W_K + D^T, where D minimizes the mean of |x_K D - x_R W_R^T|^2 + ridge * |D|^2 over the sample. The ridge pulls
D, not W', to 0: where the removed channels were 0 everywhere the weights stay as they are, bit for bit.

Shapes: N patches (an output pixel's inputs; a sample, for a linear layer), I inputs of an output (channels x kernel), O
outputs; K, R of the I.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's own signatures of split, pad and cholesky are partly untyped.

from collections.abc import Callable, Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vfl.base.modules import modules_by_name
from vfl.base.random import generator
from vfl.compression.dependency import PrunableLayer

RIDGE = 1e-3
"""Ridge, relative to the mean of the kept inputs' squares."""
PIXELS = 64
"""Most output pixels of a sample that are read, the same of all samples; neighbours add little."""
VALUES_AT_ONCE = 1 << 24
"""Values of patches that are in memory at once."""


class Refit:
    """Fitting of the layers of one pruning.

    ``embed_sample`` passes the sample through the whole model, which takes ``macs`` multiply-accumulates.
    It holds a matrix [I, I] for each layer that reads pruned channels.
    """

    def __init__(self, embed_sample: Callable[[], object], macs: int = 0) -> None:
        self._embed_sample = embed_sample
        self._products: dict[str, Tensor] = {}
        self._weights: dict[str, Tensor] = {}
        self.macs: int = macs
        """Multiply-accumulates so far."""

    def measure(self, model: nn.Module, positions: Mapping[str, Tensor]) -> None:
        """Find the new weights of the layers of a model that is about to shrink to the entries ``positions``.

        Layers with frozen weights, and those whose inputs are not finite or not to be solved for, are not refitted.
        """
        reading = {
            name: layer
            for name, layer in modules_by_name(model).items()
            if isinstance(layer, PrunableLayer) and layer.weight.requires_grad
            # Outputs are the first dimension; depthwise convolutions have one input each and lose none.
            if positions.get(f"{name}.weight", layer.weight).shape[1:] != layer.weight.shape[1:]
        }

        def hook(name: str, layer: PrunableLayer) -> RemovableHandle:
            return layer.register_forward_pre_hook(lambda _, inputs: self._read(name, layer, cast(Tensor, inputs[0])))

        hooks = [hook(name, layer) for name, layer in reading.items()]
        try:
            self._embed_sample()
        finally:
            for each in hooks:
                each.remove()
        for name in list(self._products):  # one after the other leaves: the largest have hundreds of megabytes
            self._solve(name, reading[name], self._products.pop(name), positions[f"{name}.weight"])

    def _read(self, name: str, layer: PrunableLayer, inputs: Tensor) -> None:
        """Add the products of a layer's inputs."""
        # Of all pixels, though few are chosen: as many as the input has, or fewer.
        values = layer.weight[0].numel() * inputs[0, 0].numel() if inputs.dim() == 4 else inputs[0].numel()
        for part in inputs.detach().split(max(1, VALUES_AT_ONCE // values)):
            with torch.autocast(part.device.type, enabled=False):  # in bfloat16 the sums would lose too many digits
                patches_NI = _patches(layer, part)
                product_II = patches_NI.t() @ patches_NI
            self._products[name] = self._products[name] + product_II if name in self._products else product_II
            self.macs += len(patches_NI) * product_II.numel()

    def _solve(self, name: str, layer: PrunableLayer, product_II: Tensor, positions: Tensor) -> None:
        """Set a layer's new weights from the sums of its inputs' products, the last input being 1 if it has a bias."""
        whole_OI = layer.weight.detach().flatten(1)
        entries = positions.flatten(1).to(whole_OI.device)
        outputs, kept = entries[:, 0] // whole_OI.shape[1], entries[0] % whole_OI.shape[1]
        removed = torch.ones(whole_OI.shape[1], dtype=torch.bool, device=whole_OI.device)
        removed[kept] = False
        fitted = torch.cat([kept, kept.new_tensor(range(whole_OI.shape[1], len(product_II)))])  # and the bias
        squares_FF = product_II[fitted][:, fitted].double()
        ridge_F = torch.full_like(squares_FF[0], RIDGE * squares_FF.diagonal()[: len(kept)].mean().item())
        ridge_F[len(kept) :] = 0
        if not (product_II.isfinite().all() and ridge_F[0] > 0):
            return
        lost_IO = whole_OI[outputs][:, removed].t().double()
        wanted_FO = product_II[fitted][:, : len(removed)][:, removed].double() @ lost_IO
        factor, failed = torch.linalg.cholesky_ex(squares_FF + ridge_F.diag())
        if failed:  # the inputs differ too much in size for float32's sums
            return
        more_FO = torch.cholesky_solve(wanted_FO, factor).to(whole_OI.dtype)
        self.macs += _solution_macs(layer, positions)
        weight_OK = whole_OI[outputs][:, kept] + more_FO[: len(kept)].t()
        self._weights[f"{name}.weight"] = weight_OK.view(positions.shape)
        if layer.bias is not None:
            self._weights[f"{name}.bias"] = layer.bias.detach()[outputs] + more_FO[len(kept)]

    def apply(self, model: nn.Module) -> None:
        """Give the model, which has been shrunk since, the new weights."""
        with torch.no_grad():
            for name, weight in self._weights.items():
                model.get_parameter(name).copy_(weight)
        self._weights.clear()


class RefitCount(Refit):
    """Counts what a refit to ``rows`` samples takes, from the shapes of one; ``macs`` are those of all their passes.

    No weight changes.
    """

    def __init__(self, embed_one: Callable[[], object], macs: int, rows: int) -> None:
        super().__init__(embed_one, macs)
        self._rows = rows

    def _read(self, name: str, layer: PrunableLayer, inputs: Tensor) -> None:
        self._products[name] = patches_NI = _patches(layer, inputs.detach())
        self.macs += self._rows * len(patches_NI) * patches_NI.shape[1] ** 2

    def _solve(self, name: str, layer: PrunableLayer, product_II: Tensor, positions: Tensor) -> None:
        self.macs += _solution_macs(layer, positions)


def _solution_macs(layer: PrunableLayer, positions: Tensor) -> int:
    """Return the multiply-accumulates of solving for a layer that keeps ``positions`` of its weights."""
    outputs, kept = positions.flatten(1).shape
    lost, fitted = layer.weight[0].numel() - kept, kept + (layer.bias is not None)
    return fitted * lost * outputs + fitted**3 // 6 + fitted**2 * outputs


def _patches(layer: PrunableLayer, inputs: Tensor) -> Tensor:
    """Return what a layer's outputs read of its inputs, [N, I], with a last column of ones if it has a bias."""
    inputs = inputs if inputs.dtype == torch.float64 else inputs.float()
    if isinstance(layer, nn.Conv2d):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        # torch's own attribute: the only place where the padding "same" is in numbers
        padded = F.pad(inputs, layer._reversed_padding_repeated_twice, mode)  # pyright: ignore[reportPrivateUsage]
        patches_BIP = F.unfold(padded, layer.kernel_size, layer.dilation, 0, layer.stride)
        pixels = patches_BIP.shape[2]
        if pixels > PIXELS:
            chosen = torch.randperm(pixels, generator=generator(0, "refit"))[:PIXELS]
            patches_BIP = patches_BIP[:, :, chosen.to(patches_BIP.device)]
        patches_NI = patches_BIP.transpose(1, 2).flatten(0, 1)
    else:
        patches_NI = inputs.flatten(0, -2)
    if layer.bias is None:
        return patches_NI
    return torch.cat([patches_NI, patches_NI.new_ones(len(patches_NI), 1)], dim=1)
