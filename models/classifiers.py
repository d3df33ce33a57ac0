"""The classifiers that a horizontal experiment can name: one model for all clients, from samples to logits."""

import difflib
from collections.abc import Callable
from typing import cast

from torch import nn

from models.char_lstm import EveryCharLSTM, NextCharLSTM
from models.convolution import ConvolutionalFeatures, plain_convolution
from models.features import Features, ModelSpec
from models.mlp import MLP
from models.pooled_cnn import lenet, mcmahan_cnn, six_layer_cnn, tsfl_cnn
from models.resnet import Norm, ResNet18, group_norm
from models.vgg import VGG_BLOCKS

MLP_HIDDEN = (400,)
"""Hidden nodes of `mlp` (FedLGA, section V-A)."""

ImageShape = tuple[int, int, int]
"""Channels, height and width."""


def _logistic(input_shape: ImageShape, classes: int) -> nn.Module:
    channels, height, width = input_shape
    return MLP(channels * height * width, (), classes)


def _mlp(input_shape: ImageShape, classes: int) -> nn.Module:
    channels, height, width = input_shape
    return MLP(channels * height * width, MLP_HIDDEN, classes)


def _vgg11(batch_norm: bool) -> Callable[[ImageShape, int], nn.Module]:
    """Of VGG's three linear layers one is left, as is usual for 32 pixels: its embedding is the logits."""

    def build(input_shape: ImageShape, classes: int) -> nn.Module:
        spec = ModelSpec(Features("images", input_shape), classes, batch_norm=batch_norm)
        return ConvolutionalFeatures(VGG_BLOCKS[11], spec, plain_convolution)

    return build


def _resnet18(norm: Norm) -> Callable[[ImageShape, int], nn.Module]:
    return lambda input_shape, classes: ResNet18(input_shape[0], classes, norm)


IMAGE_CLASSIFIERS: dict[str, Callable[[ImageShape, int], nn.Module]] = {
    "logistic": _logistic,
    "mlp": _mlp,
    "lenet": lenet,
    "cnn_tsfl": tsfl_cnn,
    "cnn_six_layer": six_layer_cnn,
    "cnn_mcmahan": mcmahan_cnn,
    "vgg11": _vgg11(batch_norm=False),
    "vgg11_bn": _vgg11(batch_norm=True),
    "resnet18": _resnet18(nn.BatchNorm2d),
    "resnet18_gn": _resnet18(group_norm),
}
"""(input shape, classes) -> model [B, C, H, W] -> [B, classes]."""

TEXT_CLASSIFIERS = ("char_lstm",)


def build_classifier(
    kind: str, *, input_shape: tuple[int, ...], classes: int, label_shape: tuple[int, ...] = ()
) -> nn.Module:
    """A freshly initialized classifier whose output cross_entropy takes beside the labels.

    input_shape: of one sample, (C, H, W) of images or (T,) of text. classes: of text, the size of the vocabulary.
    label_shape: of one sample's label, () for a class, (T,) for text with a label per character: then logits are
    [B, classes, T] instead of [B, classes].

    Its weights are drawn from torch's global generator. Raises ValueError for an unknown kind, a kind that does not
    fit the samples, images too small for it, or a size below 1.
    """
    kinds = (*IMAGE_CLASSIFIERS, *TEXT_CLASSIFIERS)
    if kind not in kinds:
        near = difflib.get_close_matches(kind, kinds, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"classifier kind: there is no {kind!r}{hint}; choose one of {', '.join(kinds)}")
    if min(*input_shape, classes) < 1:
        raise ValueError(f"classifier: every size must be at least 1, got {[*input_shape, classes]}")
    fitting = tuple(IMAGE_CLASSIFIERS) if len(input_shape) == 3 else TEXT_CLASSIFIERS
    if kind not in fitting:
        raise ValueError(
            f"classifier kind: {kind!r} does not fit samples of shape {list(input_shape)}; choose one of "
            f"{', '.join(fitting)}"
        )
    if kind in TEXT_CLASSIFIERS:
        return EveryCharLSTM(classes) if label_shape else NextCharLSTM(classes)
    return IMAGE_CLASSIFIERS[kind](cast(ImageShape, input_shape), classes)
