"""Settings of what a training minimises, and how: the loss and the optimizer."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vfl.config.schedules import value_at
from vfl.config.settings import (
    AboveZero,
    Count,
    Fraction,
    NotNegative,
    Number,
    Positive,
    RateSchedule,
    Section,
    Share,
    UsedWith,
)

RISE = 0.3
"""Share of all exchanges during which the rate of one_cycle rises, unless warm_up is given."""


class OptimizerConfig(Section):
    """The same optimizer at the server and at the parties, or at all clients."""

    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    """adamw: weight decay apart from the gradient. Clients take sgd only."""
    learning_rate: RateSchedule = 0.05
    """0 is the first round."""
    schedule: Literal["steps", "cosine", "one_cycle"] = "steps"
    """``steps``: as given by round. ``cosine``: falls to 0. ``one_cycle``: rises, then falls to 0. Not of clients."""
    warm_up: Count | None = None
    """Exchanges during which the rate rises; null: 30 % for one_cycle, else none."""
    rounds: Annotated[Positive | None, UsedWith("schedule", "cosine", "one_cycle")] = None
    """Rounds after which cosine and one_cycle are 0; null: training.rounds."""
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
        if self.schedule != "steps" and isinstance(self.learning_rate, dict):
            raise ValueError(f"learning_rate: schedule {self.schedule} needs a number, its largest rate")
        return self

    def with_rounds(self, rounds: int) -> Self:
        """Return the settings with the rounds of a named schedule, which are those of the training if not given."""
        if self.schedule == "steps" or self.rounds is not None:
            return self
        return self.model_copy(update={"rounds": rounds})

    def rates_of(self, round_index: int, steps: int) -> list[float]:
        """Return the learning rate of each exchange of a round."""
        return [self.rate_at(round_index, exchange, steps) for exchange in range(steps)]

    def rate_at(self, round_index: int, exchange: int, steps: int) -> float:
        """Return the learning rate of an exchange, of ``steps`` in a round."""
        rate, done = value_at(self.learning_rate, round_index), round_index * steps + exchange
        total = (self.rounds or 1) * steps
        rise = self.warm_up if self.warm_up is not None else round(RISE * total) * (self.schedule == "one_cycle")
        if done < rise:
            return rate * (done + 1) / rise
        if self.schedule == "steps":
            return rate
        left = max(0.0, (total - done) / max(1, total - rise))
        return rate * (left if self.schedule == "one_cycle" else (1 - math.cos(math.pi * left)) / 2)

    @property
    def plain(self) -> bool:
        """Return whether a step is exactly the learning rate times the gradient."""
        return self.momentum == 0 and self.weight_decay == 0


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
    """null: cross_entropy, or squared for amounts. Others: docs/data.md."""
    gamma: NotNegative | None = None
    """focal only; null is 2."""
    delta: AboveZero | None = None
    """huber only, in standard deviations of the training labels; null is 1."""
    quantile: Share | None = None
    """pinball only: share of labels at or below the prediction."""

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
