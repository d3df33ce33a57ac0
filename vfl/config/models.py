"""Settings of the models: ``models``."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from vfl.config.agreement import OWN, REPLAYED
from vfl.config.components import CLASSIFIERS, FEATURE_MODELS
from vfl.config.settings import Fraction, Number, Positive, Section, name_in


class FeatureModelConfig(Section):
    """A party's feature model."""

    kind: Annotated[str, name_in(FEATURE_MODELS)] = "vgg16"
    """vgg16, vgg11, cnn, mlp, torchvision (any of its classification models, by options: {name: resnet18}), given (as
    an object, by `vfl.fit`), or a model of an installed package (docs/extending.md)."""
    embedding_size: Positive = 128
    """Width d_k of the embedding; never pruned."""
    width: Annotated[Number, Field(gt=0, le=1000)] = 1.0
    """Multiplier of the layers' widths."""
    batch_norm: bool = True
    """Normalise by batch after every convolution or hidden layer."""
    dropout: Fraction = 0.0
    """mlp only: probability with which a training pass leaves out a hidden unit."""
    options: dict[str, Any] = Field(default={})
    """torchvision: name, and further arguments of its function. Otherwise settings of a model of another package, which
    checks them."""

    def ignored(self) -> Mapping[str, str]:
        """Return why settings have no effect on this kind of model."""
        if self.kind not in FEATURE_MODELS.built_in:
            return {}
        unused = ["width", "dropout"] if self.kind == "torchvision" else ["options"]
        unused += [] if self.kind in ("mlp", "torchvision") else ["dropout"]
        return dict.fromkeys(unused, f"{self.kind} has none")


class HeadConfig(Section):
    """The head model: a multilayer perceptron over the concatenated embeddings."""

    hidden: tuple[Positive, ...] = (256, 128)
    """Widths of the hidden layers; two of them make the paper's 3-layer head, [] a linear classifier."""


class ClassifierConfig(Section):
    """The whole model of horizontal learning."""

    kind: Annotated[str, name_in(CLASSIFIERS)] = "mlp"
    """logistic, mlp (one hidden layer of 400), lenet, cnn_tsfl, cnn_six_layer, cnn_mcmahan, vgg11, vgg11_bn, resnet18,
    resnet18_gn, char_lstm (docs/horizontal.md), or one of an installed package (docs/extending.md)."""


class ModelsConfig(Section):
    """The split model of vertical learning, the whole one of horizontal learning."""

    feature: Annotated[FeatureModelConfig, OWN] = FeatureModelConfig()
    """Feature model of every party that ``parties`` does not name."""
    parties: Annotated[dict[str, FeatureModelConfig], OWN] = Field(default={})
    """Feature models of single parties; each replaces ``feature`` completely."""
    head: Annotated[HeadConfig, REPLAYED] = HeadConfig()
    members: Annotated[Positive, REPLAYED] = 1
    """Feature models of kind mlp, and heads, that are trained side by side on the same batches, each with its part of
    the embeddings; predictions are the means of theirs (docs/data.md)."""
    classifier: Annotated[ClassifierConfig, OWN] = ClassifierConfig()

    @model_validator(mode="after")
    def _of_members(self) -> Self:
        features = {"feature": self.feature, **{f"parties.{name}": each for name, each in self.parties.items()}}
        for field, each in features.items():
            if self.members > 1 and each.kind != "mlp":
                raise ValueError(f"members: {self.members} needs feature models of kind mlp; {field} is {each.kind}")
            if each.embedding_size % self.members:
                raise ValueError(
                    f"members: each of {self.members} gets as many numbers of an embedding; "
                    f"{field}.embedding_size is {each.embedding_size}"
                )
        return self
