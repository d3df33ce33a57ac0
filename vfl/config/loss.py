"""The loss that a training minimises: ``training.loss``."""

from typing import Literal, Self

from pydantic import model_validator

from vfl.config.settings import AboveZero, NotNegative, Section, Share

KINDS = {
    "classification": ("cross_entropy", "focal"),
    "regression": ("squared", "absolute", "huber", "pinball"),
}
"""Losses of each task; the first is trained with if none is named."""
PARAMETERS = {"gamma": "focal", "delta": "huber", "quantile": "pinball"}
"""Loss to which a parameter belongs."""


class LossConfig(Section):
    """Loss that the training minimises, the label owner's choice; each member has its own."""

    kind: Literal["cross_entropy", "focal", "squared", "absolute", "huber", "pinball"] | None = None
    """null: cross_entropy of classes, squared error of amounts. focal: cross_entropy times (1 - p)^gamma, p the
    probability of the true class. absolute: for the median. huber: half the squared error up to delta, then straight.
    pinball: for a quantile. Sources: docs/data.md."""
    gamma: NotNegative | None = None
    """focal only; null is 2. With 0 it is cross_entropy, bit for bit."""
    delta: AboveZero | None = None
    """huber only, in standard deviations of the training labels; null is 1."""
    quantile: Share | None = None
    """pinball only, which needs it: the share of labels that are to be at or below the predicted value."""

    @model_validator(mode="before")
    @classmethod
    def _not_a_name(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f"is a section; write training.loss.kind={value}")
        return value

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        for name, kind in PARAMETERS.items():
            if getattr(self, name) is not None and self.kind != kind:
                raise ValueError(f"{name}: belongs to kind {kind}, and kind is {self.kind or 'null'}; leave it out")
        if self.kind == "pinball" and self.quantile is None:
            raise ValueError("quantile: kind pinball needs one, as 0.9")
        return self

    def check(self, task: str) -> None:
        """Raise ValueError for a loss of another task."""
        if self.kind is not None and self.kind not in KINDS[task]:
            raise ValueError(f"training.loss.kind: {self.kind} is none of task {task}: {', '.join(KINDS[task])}")
