"""Settings of the optimizer."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vfl.config.settings import Fraction, Number, RateSchedule, Section, UsedWith


class OptimizerConfig(Section):
    """The same optimizer at the server and at the parties, or at all clients."""

    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    """adam: weight decay is part of the gradient (Kingma and Ba 2015); adamw: apart from it (Loshchilov and Hutter
    2019). Horizontal clients take sgd only."""
    learning_rate: RateSchedule = 0.05
    """A number, or {round: value} from round 0 on."""
    momentum: Annotated[Fraction, UsedWith("kind", "sgd")] = 0.9
    """sgd only."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.0
    """Factor of the weights that is added to their gradient; for adamw, subtracted from the weights, times the learning
    rate."""
    nesterov: Annotated[bool, UsedWith("kind", "sgd")] = False
    """sgd only."""
    betas: Annotated[tuple[Fraction, Fraction], UsedWith("kind", "adam", "adamw")] = (0.9, 0.999)
    """adam and adamw only: decay rates of the means of gradients and of their squares."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        return self

    @property
    def plain(self) -> bool:
        """Return whether a step is exactly the learning rate times the gradient."""
        return self.momentum == 0 and self.weight_decay == 0
