"""The typed horizontal experiment: what every experiment has, the clients' model, and the section ``horizontal``."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from vfl.config.data import TABLE_KINDS
from vfl.config.settings import OWN, Section, name_in
from vfl.config.shared import Experiment
from vfl.horizontal.components import CLASSIFIERS
from vfl.horizontal.config import HorizontalConfig


class ClassifierConfig(Section):
    """The model that all clients train."""

    kind: Annotated[str, name_in(CLASSIFIERS)] = "mlp"
    """See docs/horizontal.md; or of an installed package."""


class ClientModels(Section):
    """The model."""

    classifier: ClassifierConfig = ClassifierConfig()


class HorizontalExperiment(Experiment):
    """An experiment whose clients hold samples."""

    mode: Annotated[Literal["horizontal"], OWN] = "horizontal"  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    """horizontal: clients hold samples."""
    models: ClientModels = ClientModels()  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    horizontal: HorizontalConfig = Field(default=HorizontalConfig(), validate_default=True)

    @field_validator("horizontal")
    @classmethod
    def _with_algorithm(cls, value: HorizontalConfig) -> HorizontalConfig:
        return value.resolved()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (kind := self.data.dataset.kind) in (*TABLE_KINDS, "objects"):
            raise ValueError(f"data.dataset.kind: {kind} has no whole samples; use mode=vertical")
        self.horizontal.check_optimizer(self.training.optimizer)
        return self

    def with_whole_paths(self) -> Self:
        """Return the same, also with absolute paths in the algorithm's own section."""
        own = self.horizontal.own
        paths = {name: value.absolute() for name, value in own if isinstance(value, Path)}
        update = {self.horizontal.algorithm: own.model_copy(update=paths)} if paths else {}
        return super().with_whole_paths().model_copy(update={"horizontal": self.horizontal.model_copy(update=update)})
