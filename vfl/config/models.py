"""Settings of the models: ``models``."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from vfl.config.components import FEATURE_MODELS
from vfl.config.own_models import beside, check_noted, check_own, note_own
from vfl.config.registry import is_own
from vfl.config.settings import OWN, REPLAYED, Fraction, Number, Positive, Section


def _known_kind(kind: str) -> str:
    return check_own(kind) if is_own(kind) else FEATURE_MODELS.check(kind)


class FeatureModelConfig(Section):
    """A party's feature model."""

    kind: Annotated[str, AfterValidator(_known_kind)] = "vgg16"
    """vgg16, vgg11, cnn, mlp, torchvision with options: {name: resnet18}, my_models.py:Net (relative to the YAML file),
    package.module:Net, or of an installed package. ``given``: an object, by `vfl.fit`. ``own``: another owner's, who
    names it there."""
    embedding_size: Positive = 128
    """Width of the embedding."""
    width: Annotated[Number, Field(gt=0, le=1000)] = 1.0
    """Multiplier of the layers' widths."""
    batch_norm: bool = True
    """BatchNorm after every convolution or hidden layer."""
    dropout: Fraction = 0.0
    """mlp only: probability of leaving out a hidden unit."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of a model that is not built in."""

    weights: Path | None = None
    """File of weights to begin with: safetensors or a state dict."""
    freeze: tuple[str, ...] = ()
    """Parts that are not trained: [features.0, features.1]."""

    def ignored(self) -> Mapping[str, str]:
        """Return why settings have no effect on this kind of model."""
        if self.kind == "torchvision" or is_own(self.kind):
            return dict.fromkeys(("width", "dropout"), f"{self.kind} takes its options")
        if self.kind not in FEATURE_MODELS.built_in:
            return {}
        unused = ("options",) if self.kind == "mlp" else ("options", "dropout")
        return dict.fromkeys(unused, f"{self.kind} has none")


class HeadConfig(Section):
    """The head model: a multilayer perceptron over the concatenated embeddings."""

    hidden: tuple[Positive, ...] = (256, 128)
    """Widths of the hidden layers; [] is a linear classifier."""


class ModelsConfig(Section):
    """The split model."""

    feature: Annotated[FeatureModelConfig, OWN] = FeatureModelConfig()
    """Feature model of every party that ``parties`` does not name."""
    parties: Annotated[dict[str, FeatureModelConfig], OWN] = Field(default={})
    """Feature models of single parties; each replaces ``feature`` completely."""
    head: Annotated[HeadConfig, REPLAYED] = HeadConfig()
    members: Annotated[Positive, REPLAYED] = 1
    """mlp only: models side by side; a prediction is their mean (docs/data.md)."""
    linear_path: Annotated[bool, REPLAYED] = False
    """mlp only: a linear path beside the hidden layers (docs/data.md)."""

    def with_whole_paths(self) -> "ModelsConfig":
        """Return the same with absolute paths of files that owners bring."""
        return self._each(
            lambda each: {
                "kind": beside(Path().absolute(), each.kind),
                "weights": each.weights and each.weights.absolute(),
            }
        )

    def without_weights(self) -> "ModelsConfig":
        """Return the same for models whose weights a checkpoint has: files that they began with may be gone."""
        return self._each(lambda _: {"weights": None})

    @property
    def begins_with_weights(self) -> bool:
        """A model begins with the weights of a file."""
        return any(each.weights is not None for each in self._features().values())

    def _each(self, update: Callable[[FeatureModelConfig], dict[str, object]]) -> "ModelsConfig":
        feature, *parties = (each.model_copy(update=update(each)) for each in self._features().values())
        return self.model_copy(update={"feature": feature, "parties": dict(zip(self.parties, parties, strict=True))})

    def note_own(self) -> None:
        """Note code that these settings name as the user's own: they are of no run's folder."""
        for each in self._features().values():
            if is_own(each.kind):
                note_own(each.kind, each.options)

    def check_noted(self) -> None:
        """Raise ConfigError for code that no configuration of this user has named."""
        for each in self._features().values():
            if is_own(each.kind):
                check_noted(each.kind, each.options)

    def _features(self) -> dict[str, FeatureModelConfig]:
        return {"feature": self.feature, **{f"parties.{name}": each for name, each in self.parties.items()}}

    @model_validator(mode="after")
    def _of_perceptrons(self) -> Self:
        if self.members == 1 and not self.linear_path:
            return self
        for field, each in self._features().items():
            if each.kind != "mlp":
                what = f"members: {self.members}" if self.members > 1 else "linear_path: true"
                raise ValueError(f"{what} needs feature models of kind mlp; {field} is {each.kind}")
            if each.embedding_size % self.members:
                raise ValueError(
                    f"members: each of {self.members} gets as many numbers of an embedding; "
                    f"{field}.embedding_size is {each.embedding_size}"
                )
        return self
