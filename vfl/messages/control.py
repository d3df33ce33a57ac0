"""Content of the control parts of messages: one frozen type for each, checked completely when it is read.

Known keys only; every value of its type and within its range, finite, of bounded size and depth. The side that asked
checks whether a value is possible in this round of this experiment (``vfl/core/costs/reports.py``).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vfl.messages.messages import Buffer, Message, MessageError, Part, PartKind, control

MAX_LAYERS = 1024
"""Most prunable layers that a party may describe, as they are drawn."""
MAX_RATIOS = 256
"""Most ratios that may be asked about at once."""
MAX_RESOLUTIONS = 16
"""Most resolutions below 1 that may be asked about at once, each at all ratios."""
MAX_LOCAL_ROUNDS = 1000
"""Most rounds that one order lets a party train alone."""
MAX_COLUMNS = 100_000
"""Most columns of a party."""
MOST_DRAWS = 8
"""Most permutations of a column."""
MOST_STEPS = 256
"""Most points of a path from an owner's reference to a sample."""
MOST_POINTS = 4096
"""Most points of paths in an order, all its samples' together: a party embeds some times as many."""
_SHOWN = 60
"""Most characters of a peer's own text in an error."""

Ratio = Annotated[float, Field(ge=0, lt=1)]
Resolution = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
MacsByRatio = Annotated[tuple[Count, ...], Field(max_length=MAX_RATIOS)]
Width = Annotated[int, Field(ge=1, lt=2**31)]
Measure = Annotated[float, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
LayerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,200}$")]
MetricTag = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")]
Widths = Annotated[dict[LayerName, Width], Field(max_length=MAX_LAYERS)]
Seconds = Annotated[str, Field(pattern=r"^[0-9]\.[0-9]{6}e[+-][0-9]{2}$")]
"""Seconds as text of fixed width, so that bytes do not depend on speed."""

EvaluatedModel = Literal["finished", "pruned"]
"""One of a party's models. finished: its weights with statistics estimated under them; pruned: the
same, but first pruned to the round's alpha."""


class Control(BaseModel):
    """A control part."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def of(cls, message: Message) -> Self:
        """Read a message's only control part. Raises MessageError if it has none, or as ``from_json``."""
        return cls.from_json(message.only(PartKind.CONTROL))

    @classmethod
    def from_json(cls, payload: Buffer) -> Self:
        """Read the result of ``part``. Raises MessageError, one line that names the key, for anything else."""
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
    """START_ROUND: a party's assignment for the round."""

    alpha: Ratio
    beta: Ratio
    resolution: Resolution | None = None
    """Share of the sides of the party's images; None: whole ones."""
    head_digest: Sha256 | None = None
    """Digest of theta_0, which is in the message; head_sync replay only."""
    tested: Annotated[dict[MetricTag, float], Field(max_length=1)] | None = None
    """Last test result, the metric and its value, with ``evaluation.tell_parties``."""


class Permuted(Control):
    """A permutation of the values of one of the party's columns among its test samples."""

    column: Annotated[int, Field(ge=0, lt=MAX_COLUMNS)]
    """Number of the column, of those that COUNTED tells."""
    draw: Annotated[int, Field(ge=0, lt=MOST_DRAWS)]


class SampleRange(Control):
    """EVALUATE: the test samples ``start`` to ``stop``, by one of the party's models."""

    start: Count
    stop: Count
    model: EvaluatedModel = "finished"
    permuted: Permuted | None = None
    """Column that the party permutes first; with the finished model only."""


class ColumnCount(Control):
    """COUNTED: the number of a party's columns."""

    columns: Annotated[int, Field(ge=0, le=MAX_COLUMNS)]


class ColumnImportance(Control):
    """IMPORTANCE: results of a party's columns, in their order."""

    lost: Annotated[tuple[float, ...], Field(max_length=MAX_COLUMNS)]
    """Loss in the metric of the test when a column is permuted, mean over the draws."""


Tells = Literal["nothing", "itself", "ranks", "amounts"]
"""What an owner discloses of its columns' reasons. nothing: it computes none; itself: it keeps them; ranks: columns'
names and places; amounts: the names and what each moved."""


class ReasonsOffer(Control):
    """OFFERED: what a party discloses, and of ``ranks`` and ``amounts`` the names of its columns."""

    tells: Tells
    columns: Annotated[tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=MAX_COLUMNS)] = ()


class Explained(Control):
    """EXPLAIN, ATTRIBUTE: samples ``start`` to ``stop``, those that the party has, and the points of each path."""

    start: Count
    stop: Count
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)]
    gained: Annotated[tuple[float, ...], Field(max_length=MOST_POINTS)] | None = None
    """ATTRIBUTE: of each of the party's samples the score minus the one with the reference in its place."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not 0 < (self.stop - self.start) * self.steps <= MOST_POINTS:
            raise ValueError(
                f"stop: expected 1 to {MOST_POINTS // self.steps} samples of {self.steps} steps after start"
            )
        return self


class Completeness(Control):
    """ATTRIBUTED: of each sample what its columns moved together, minus what they should have."""

    errors: Annotated[tuple[float, ...], Field(max_length=MOST_POINTS)]


class RoundReport(Control):
    """REPORT: a party's model after a round, the round's costs, and the errors due to lightweighting."""

    alpha: Ratio
    """Largest alpha reached so far."""
    beta: Ratio
    resolution: Resolution | None = None
    """Share of the sides of the images; None: whole ones."""
    macs_per_sample: Count
    parameters: Count
    train_macs: Count
    unpruned_train_macs: Count
    refit_macs: Count | None = None
    """Multiply-accumulates of refitting a pruned model, which come on top of train_macs; None: it was not refitted."""
    skipped_macs: Count | None = None
    """Multiply-accumulates of backward passes that frozen layers saved: train_macs is without them; None: 0."""
    unpruned_skipped_macs: Count | None = None
    """The same of unpruned_train_macs."""
    train_time_s: Seconds
    omega: Measure
    """Mean over the round's exchanges."""
    psi: Measure
    head_drift: Measure | None = None
    """Largest difference of the party's replica from theta_0 at the start of the round; head_sync replay only."""
    own_loss: Measure | None = None
    """Mean loss of the party's own classifier, in a round that it trained alone."""

    @property
    def elapsed_s(self) -> float:
        """Return the party's training time in this round."""
        return float(self.train_time_s)


class LocalRounds(Control):
    """TRAIN_ALONE: a party's assignments for rounds without exchanges, from the message's round on."""

    rounds: Annotated[tuple[RoundStart, ...], Field(min_length=1, max_length=MAX_LOCAL_ROUNDS)]


class LocalReports(Control):
    """LEARNED: a report of each of these rounds."""

    reports: Annotated[tuple[RoundReport, ...], Field(min_length=1, max_length=MAX_LOCAL_ROUNDS)]


class Description(Control):
    """DESCRIPTION: digests of a party's weights, and the widths of its prunable layers, now and as built."""

    weights_digest: Sha256
    finished_digest: Sha256
    """Digest with the statistics that evaluation uses in place of the training's."""
    evaluation_macs: Count
    """Multiply-accumulates of evaluation since round 0."""
    widths: Widths
    original_widths: Widths
    weights_file: Sha256 | None = None
    """Digest of the file whose weights the model began with; None if it began with none."""
    whole_macs: Annotated[dict[LayerName, Count], Field(max_length=MAX_LAYERS)] | None = None
    """Multiply-accumulates of the layers that stay whole beside others that are pruned."""
    unpruned_macs: Count | None = None
    """Those of the model as built; beside whole_macs."""

    @model_validator(mode="after")
    def _of_one_model(self) -> Self:
        if self.widths.keys() != self.original_widths.keys():
            raise ValueError("widths: of other layers than original_widths")
        if any(self.widths[name] > width for name, width in self.original_widths.items()):
            raise ValueError("widths: above original_widths")
        return self

    def whole(self) -> dict[str, Any]:
        """Return the layers that stay whole and their share of the multiply-accumulates; empty if there are none."""
        if not self.whole_macs:
            return {}
        share = sum(self.whole_macs.values()) / max(1, self.unpruned_macs or 0)
        return {"whole": {"layers": list(self.whole_macs), "macs": min(1.0, share)}}


class AskedRatios(Control):
    """MODEL_COSTS: ratios alpha, ascending, and the resolutions below 1 at which they are asked about as well."""

    alphas: Annotated[tuple[Ratio, ...], Field(max_length=MAX_RATIOS)]
    resolutions: Annotated[tuple[Resolution, ...], Field(max_length=MAX_RESOLUTIONS)] | None = None


class Prices(Control):
    """PRICED: the costs of the party's model at each of the ratios; none of them un-prunes it."""

    macs_per_sample: MacsByRatio
    parameters: Annotated[tuple[Count, ...], Field(max_length=MAX_RATIOS)]
    smaller: Annotated[tuple[MacsByRatio, ...], Field(max_length=MAX_RESOLUTIONS)] | None = None
    """``macs_per_sample`` at each of the resolutions below 1."""
    skipped: Annotated[tuple[MacsByRatio, ...], Field(max_length=1 + MAX_RESOLUTIONS)] | None = None
    """Those of a sample's backward pass that frozen layers save, of whole images, then at each of the resolutions;
    None: 0."""

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Self:
        """Return prices from a checkpoint, which were checked on arrival."""
        return cls.model_construct(
            macs_per_sample=tuple(saved["macs_per_sample"]),
            parameters=tuple(saved["parameters"]),
            smaller=saved.get("smaller"),
            skipped=saved.get("skipped"),
        )

    def check(self, alphas: Sequence[float], resolutions: Sequence[float] = ()) -> None:
        """Raise MessageError unless there is one for each ratio asked about, and none rises with alpha."""
        if len(self.smaller or ()) != len(resolutions):
            raise MessageError(f"Prices: {len(self.smaller or ())} of {len(resolutions)} resolutions")
        for macs in (self.macs_per_sample, *(self.smaller or ())):
            if not len(alphas) == len(macs) == len(self.parameters):
                raise MessageError(f"Prices: {len(macs)} of {len(alphas)} ratios")
            if sorted(macs, reverse=True) != [*macs]:
                raise MessageError("Prices: 'macs_per_sample': rise with alpha")
        if self.skipped is None:
            return
        if len(self.skipped) != 1 + len(resolutions) or any(len(each) != len(alphas) for each in self.skipped):
            raise MessageError("Prices: 'skipped': not one for each ratio and resolution")
        for macs, skipped in zip((self.macs_per_sample, *(self.smaller or ())), self.skipped, strict=True):
            if any(less > 2 * all_of for less, all_of in zip(skipped, macs, strict=True)):
                raise MessageError("Prices: 'skipped': more than a backward pass, which counts as two forward ones")


def fixed_seconds(seconds: float) -> Seconds:
    """Return seconds in the form in which they travel."""
    return f"{seconds:.6e}"
