"""What the control parts of messages say: one frozen type for each, checked completely when it is read.

Known keys only, every value of its type and within its range, finite, of bounded size and depth. What a value may be in
this round of this experiment is checked by the side that asked (``vfl/vertical/reports.py``).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vfl.lightweighting.forecast import Curve
from vfl.wire.messages import Buffer, Message, MessageError, Part, PartKind, control

MAX_LAYERS = 256
"""Prunable layers that a party may describe: they are drawn."""
MAX_RATIOS = 256
"""Ratios that may be asked about at once."""
_SHOWN = 60
"""Characters of a peer's own text in an error."""

Ratio = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Width = Annotated[int, Field(ge=1, lt=2**31)]
Measure = Annotated[float, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
LayerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]{1,200}$")]
MetricTag = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")]
Widths = Annotated[dict[LayerName, Width], Field(max_length=MAX_LAYERS)]
Seconds = Annotated[str, Field(pattern=r"^[0-9]\.[0-9]{6}e[+-][0-9]{2}$")]
"""Of fixed width: bytes must not depend on speed."""

EvaluatedModel = Literal["finished", "running", "pruned"]
"""Of a party. finished: its weights with statistics estimated under them; running: with the training's own; pruned:
finished, but first pruned to the round's alpha."""


class Control(BaseModel):
    """A control part."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def of(cls, message: Message) -> Self:
        """Read a message's only control part. Raises MessageError for a message without one, or as ``from_json``."""
        return cls.from_json(message.only(PartKind.CONTROL))

    @classmethod
    def from_json(cls, payload: Buffer) -> Self:
        """Read what ``part`` has written. Raises MessageError, one line that names the key, for anything else."""
        try:
            return cls.model_validate_json(bytes(payload))
        except ValidationError as error:
            # Without the input: an error shows nothing that a peer wrote but the key, and that cut short.
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            key = ".".join(map(str, first["loc"]))[:_SHOWN]
            text = re.sub(r"\s+", " ", first["msg"])
            raise MessageError(f"{cls.__name__}: {f'{key!r}: ' if key else ''}{text}") from None

    def part(self) -> Part:
        """Return the control part; floats keep all their bits."""
        # Without None: what is not in use costs no bytes.
        return control(self.model_dump(exclude_none=True))


class RoundStart(Control):
    """START_ROUND: what a party is assigned for the round."""

    alpha: Ratio
    beta: Ratio
    head_digest: Sha256 | None = None
    """With head_sync replay: of theta_0, which comes along."""
    tested: Annotated[dict[MetricTag, float], Field(max_length=1)] | None = None
    """What the rounds before have reached, where ``evaluation.tell_parties``: the metric and its value."""


class SampleRange(Control):
    """EVALUATE: the test samples ``start`` to ``stop``, by one of the party's models."""

    start: Count
    stop: Count
    model: EvaluatedModel = "finished"


class Report(Control):
    """REPORT: what a party is after a round, what the round cost it, and the errors that lightweighting made."""

    alpha: Ratio
    """The largest reached so far."""
    beta: Ratio
    macs_per_sample: Count
    parameters: Count
    train_macs: Count
    unpruned_train_macs: Count
    train_time_s: Seconds
    omega: Measure
    """Mean over the round's exchanges."""
    psi: Measure
    head_drift: Measure | None = None
    """With head_sync replay: largest difference of the party's replica to theta_0 at the start of the round."""

    @property
    def elapsed_s(self) -> float:
        """The party's training time in this round."""
        return float(self.train_time_s)


class Description(Control):
    """DESCRIPTION: digests of a party's weights, and the widths of its prunable layers, now and as built."""

    weights_digest: Sha256
    finished_digest: Sha256
    """With the statistics that evaluation uses in place of the training's."""
    evaluation_macs: Count
    """Multiply-accumulates spent on looking since round 0."""
    widths: Widths
    original_widths: Widths

    @model_validator(mode="after")
    def _of_one_model(self) -> Self:
        if self.widths.keys() != self.original_widths.keys():
            raise ValueError("widths: of other layers than original_widths")
        if any(self.widths[name] > width for name, width in self.original_widths.items()):
            raise ValueError("widths: above original_widths")
        return self


class AskedRatios(Control):
    """PRICES: ratios alpha, ascending."""

    alphas: Annotated[tuple[Ratio, ...], Field(max_length=MAX_RATIOS)]


class Prices(Control):
    """PRICED: what the party's model would cost at each of the ratios, none of which un-prunes it."""

    macs_per_sample: Annotated[tuple[Count, ...], Field(max_length=MAX_RATIOS)]
    parameters: Annotated[tuple[Count, ...], Field(max_length=MAX_RATIOS)]

    @classmethod
    def restored(cls, saved: Mapping[str, Sequence[int]]) -> Self:
        """Return prices as a checkpoint has them: checked when they came."""
        return cls.model_construct(
            macs_per_sample=tuple(saved["macs_per_sample"]), parameters=tuple(saved["parameters"])
        )

    def curve(self, alphas: Sequence[float]) -> Curve:
        """Return the costs by the ratios that were asked for. Raises MessageError for other than one each."""
        if not len(alphas) == len(self.macs_per_sample) == len(self.parameters):
            raise MessageError(f"Prices: {len(self.macs_per_sample)} of {len(alphas)} ratios")
        if sorted(self.macs_per_sample, reverse=True) != [*self.macs_per_sample]:
            raise MessageError("Prices: 'macs_per_sample': rise with alpha")
        return Curve(*(dict(zip(alphas, each, strict=True)) for each in (self.macs_per_sample, self.parameters)))


def fixed_seconds(seconds: float) -> Seconds:
    """Return seconds as they travel."""
    return f"{seconds:.6e}"
