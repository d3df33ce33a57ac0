"""Settings of what a training minimises, and how: the loss and the optimizer."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vfl.config.schedules import value_at
from vfl.config.settings import (
    AS_CHOICE,
    KIND,
    AboveZero,
    Count,
    Fraction,
    NotNegative,
    Number,
    OneKind,
    Positive,
    RateSchedule,
    Section,
    Share,
    UsedWith,
)

RISE = 0.3
"""Share of all exchanges during which the rate of one_cycle rises, unless warm_up is given."""


class Steps(OneKind):
    """A rate as it is given by round."""

    kind: Literal["steps"] = "steps"


class Course(OneKind):
    """A rate that ends at 0."""

    kind: Literal["cosine", "one_cycle"]
    rounds: Positive | None = None
    """Rounds after which it is 0; null: training.rounds."""


class OptimizerConfig(Section):
    """The same optimizer at the server and at the parties, or at all clients."""

    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    """adamw: weight decay apart from the gradient. Clients take sgd only."""
    learning_rate: RateSchedule = 0.05
    """0 is the first round."""
    schedule: Annotated[Steps | Course, KIND, AS_CHOICE] = Steps()
    """``steps``: as given by round. ``cosine``: falls to 0. ``one_cycle``: rises, then falls to 0; {kind: cosine,
    rounds: 30} after these, not training.rounds. Not of clients."""
    warm_up: Count | None = None
    """Exchanges during which the rate rises; null: 30 % for one_cycle, else none."""
    momentum: Annotated[Fraction, UsedWith("kind", "sgd")] = 0.9
    """sgd only."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.0
    """Factor of the weights that is added to their gradient (adamw: apart from it)."""
    nesterov: Annotated[bool, UsedWith("kind", "sgd")] = False
    """sgd only."""
    clip_gradient: AboveZero | None = None
    """Longest gradient of a model. Not of clients."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        return self

    @model_validator(mode="after")
    def _named_needs_number(self) -> Self:
        if isinstance(self.schedule, Course) and isinstance(self.learning_rate, dict):
            raise ValueError(f"learning_rate: schedule {self.schedule.kind} needs a number, its largest rate")
        return self

    def with_rounds(self, rounds: int) -> Self:
        """Return the settings with the rounds of a named schedule, which are those of the training if not given."""
        if isinstance(self.schedule, Steps) or self.schedule.rounds is not None:
            return self
        return self.model_copy(update={"schedule": self.schedule.model_copy(update={"rounds": rounds})})

    def rates_of(self, round_index: int, steps: int) -> list[float]:
        """Return the learning rate of each exchange of a round."""
        return [self.rate_at(round_index, exchange, steps) for exchange in range(steps)]

    def rate_at(self, round_index: int, exchange: int, steps: int) -> float:
        """Return the learning rate of an exchange, of ``steps`` in a round."""
        rate, done = value_at(self.learning_rate, round_index), round_index * steps + exchange
        kind, total = self.schedule.kind, steps * ((isinstance(self.schedule, Course) and self.schedule.rounds) or 1)
        rise = self.warm_up if self.warm_up is not None else round(RISE * total) * (kind == "one_cycle")
        if done < rise:
            return rate * (done + 1) / rise
        if kind == "steps":
            return rate
        left = max(0.0, (total - done) / max(1, total - rise))
        return rate * (left if kind == "one_cycle" else (1 - math.cos(math.pi * left)) / 2)

    @property
    def plain(self) -> bool:
        """Return whether a step is exactly the learning rate times the gradient."""
        return self.momentum == 0 and self.weight_decay == 0


class PlainLoss(OneKind):
    """A loss without settings."""

    kind: Literal["cross_entropy", "squared", "absolute"]


class FocalLoss(OneKind):
    """Cross-entropy that weighs samples by how wrong they are."""

    kind: Literal["focal"]
    gamma: NotNegative = 2.0


class HuberLoss(OneKind):
    """Squared near the label, absolute beyond."""

    kind: Literal["huber"]
    delta: AboveZero = 1.0
    """In standard deviations of the training labels."""


class PinballLoss(OneKind):
    """A quantile's."""

    kind: Literal["pinball"]
    quantile: Share
    """Share of labels at or below the prediction."""


LossConfig = Annotated[PlainLoss | FocalLoss | HuberLoss | PinballLoss, KIND, AS_CHOICE]
LOSSES = {
    "classification": ("cross_entropy", "focal"),
    "regression": ("squared", "absolute", "huber", "pinball"),
}
"""Losses of each task; the first is trained with if none is named."""
