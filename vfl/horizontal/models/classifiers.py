"""Classifiers made of whole feature models or layers; each is a function of a `ClassifierSpec`.

Shapes: B samples, C channels, H x W pixels, L classes.
"""

import math

from torch import nn

from vfl.horizontal.models.resnet import ResNet18, group_norm
from vfl.models.convolution import VGG_BLOCKS, ConvolutionalFeatures, convolutional_classifier
from vfl.models.features import ClassifierSpec
from vfl.models.mlp import MLP

MLP_HIDDEN = (400,)
"""Hidden nodes of `mlp` (FedLGA, section V-A)."""


def logistic(spec: ClassifierSpec) -> MLP:
    """Return a linear map of the pixels: [B, C, H, W] -> [B, L]."""
    return MLP(math.prod(spec.image_shape), (), spec.classes)


def mlp(spec: ClassifierSpec) -> MLP:
    """Return a perceptron with one hidden layer: [B, C, H, W] -> [B, L]."""
    return MLP(math.prod(spec.image_shape), MLP_HIDDEN, spec.classes)


def vgg11(spec: ClassifierSpec) -> ConvolutionalFeatures:
    """Return VGG-11 with one of its three linear layers, as is usual for 32 pixels: [B, C, H, W] -> [B, L]."""
    return convolutional_classifier(VGG_BLOCKS[11], spec, batch_norm=False)


def vgg11_bn(spec: ClassifierSpec) -> ConvolutionalFeatures:
    """Return `vgg11` with BatchNorm after every convolution."""
    return convolutional_classifier(VGG_BLOCKS[11], spec, batch_norm=True)


def resnet18(spec: ClassifierSpec) -> ResNet18:
    """Return ResNet-18 with BatchNorm: [B, C, H, W] -> [B, L]."""
    return ResNet18(spec.image_shape[0], spec.classes, nn.BatchNorm2d)


def resnet18_gn(spec: ClassifierSpec) -> ResNet18:
    """Return ResNet-18 with GroupNorm: [B, C, H, W] -> [B, L]."""
    return ResNet18(spec.image_shape[0], spec.classes, group_norm)
