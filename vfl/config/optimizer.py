"""Settings of SGD."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from vfl.config.fields import Fraction, Number, RateSchedule, Section


class OptimizerConfig(Section):
    """SGD, the same settings at the server and at the parties, or at all clients."""

    learning_rate: RateSchedule = 0.05
    """A number, or {round: value} from round 0 on."""
    momentum: Fraction = 0.9
    weight_decay: Annotated[Number, Field(ge=0)] = 0.0
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        return self
