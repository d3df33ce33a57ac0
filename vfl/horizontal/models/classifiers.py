"""Classifiers made of whole feature models or layers; each is a function of a `ClassifierSpec`.

Shapes: B samples, C channels, H x W pixels, L classes.
"""

import math

from torch import Tensor, nn

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


EMBEDDING = 8
"""Width of a character's embedding (McMahan et al. 2017, section 3)."""
HIDDEN = 128
"""Nodes of the one LSTM layer (FedMom, section 5)."""


class NextCharLSTM(nn.Module):
    """Reads a sequence and predicts the character after it: int64 [B, T] -> logits [B, V]."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, batch_first=True)
        self.output = nn.Linear(HIDDEN, vocabulary)

    def forward(self, characters_BT: Tensor) -> Tensor:
        """Return the logits [B, V] of the character after the last one."""
        return self.output(self.states(characters_BT)[:, -1])

    def states(self, characters_BT: Tensor) -> Tensor:
        """Return the LSTM's state [B, T, H] after each character, starting from zero."""
        states_BTH, _ = self.lstm(self.embedding(characters_BT))
        return states_BTH


class EveryCharLSTM(NextCharLSTM):
    """The same model with a prediction after every character: int64 [B, T] -> logits [B, V, T], as cross_entropy
    takes."""

    def forward(self, characters_BT: Tensor) -> Tensor:
        """Return the logits [B, V, T] of the character after each one."""
        return self.output(self.states(characters_BT)).transpose(1, 2)


def char_lstm(spec: ClassifierSpec) -> NextCharLSTM:
    """Return the model with a prediction per character of a label. Raises ValueError unless samples are text."""
    if len(spec.input_shape) != 1:
        raise ValueError(f"classifier: char_lstm reads text, not samples of shape {list(spec.input_shape)}")
    return EveryCharLSTM(spec.classes) if spec.label_shape else NextCharLSTM(spec.classes)
