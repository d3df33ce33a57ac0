"""Settings of the messages' tensors: their form (``wire``), and defences against leakage (``privacy``)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from vfl.config.components import COMPRESSORS
from vfl.config.settings import (
    AS_CHOICE,
    KIND,
    OWN,
    SHARED,
    AboveZero,
    Component,
    Fraction,
    Number,
    OneKind,
    Section,
    component_of,
)

Bits = Literal[8, 4, 2]
Step = Annotated[Number, Field(ge=0.36, le=8)]
"""Factor of the root mean square. From 0.36 on no value exceeds 127 steps, as none exceeds sqrt(2048) times the rms."""


class GradientConfig(Section):
    """Coding of the gradients that the server returns (training.labels=server)."""

    beta: Fraction = 0.0
    """Share of a gradient's smallest entries that is not sent."""
    bits: Bits | None = None
    """Bits of a gradient's value, as wire.bits."""
    step: Step | None = None
    """Step of a gradient's values, as wire.step."""
    error_feedback: bool = False
    """The server adds what it did not send to a sample's next gradient."""


class WireConfig(Section):
    """Coding of the tensors in messages."""

    values: Annotated[Literal["float32", "float16", "bfloat16"], SHARED] = "float32"
    """Type of embeddings and gradients in messages without bits or step, in evaluations always."""
    compressor: Annotated[Component, AS_CHOICE, component_of(COMPRESSORS), SHARED] = Component(kind="magnitude")
    """magnitude leaves out the smallest entries; or of an installed package, {kind: NAME, ...} with settings of its
    own."""
    bits: Annotated[Bits | None, SHARED] = None
    """Bits of an embedding's value in training; null: as wire.values."""
    step: Annotated[Step | None, SHARED] = None
    """Instead of bits: step of values relative to their root mean square. Needs wire.coding=entropy."""
    coding: Annotated[Literal["packed", "entropy"], SHARED] = "packed"
    """entropy: the same values of few bits in fewer bytes."""
    rounding: Annotated[Literal["nearest", "dithered"], SHARED] = "dithered"
    """dithered: exact in the mean; nearest: smallest error."""
    gradients: Annotated[GradientConfig, SHARED] = GradientConfig()

    @property
    def options(self) -> dict[str, Any]:
        """Settings of another package's compressor."""
        return self.compressor.options

    def ignored(self) -> Mapping[str, str]:
        """Return the settings of other compressors, and the rounding if nothing is rounded, with the reason."""
        if self.compressor.kind != "magnitude":
            return {}
        if any(each is not None for each in (self.bits, self.step, self.gradients.bits, self.gradients.step)):
            return {}
        return dict.fromkeys(("rounding", "coding"), "no bits and no step is given in wire or wire.gradients")

    @model_validator(mode="after")
    def _one_grid(self) -> Self:
        for section, name in ((self, "wire"), (self.gradients, "wire.gradients")):
            if section.step is not None and section.bits is not None:
                raise ValueError(f"{name}.step: {name}.bits is given as well; leave one of them out")
            if section.step is not None and self.coding == "packed":
                raise ValueError(f"{name}.step: needs wire.coding=entropy, its numbers have no fixed number of bits")
        return self


def is_coarse(section: WireConfig | GradientConfig) -> bool:
    """Return whether the error of random rounding exceeds the magnitude of most values."""
    return section.bits == 2 or (section.step is not None and section.step >= 2)


class MaxNormNoise(OneKind):
    """Noise that makes the rows' gradients as long as the longest."""

    kind: Literal["max_norm"]
    strength: AboveZero = 1.0
    """Factor of the noise."""


class NoisyGradients(OneKind):
    """Gaussian noise on clipped gradients."""

    kind: Literal["gaussian"]
    strength: AboveZero = 1.0
    """Standard deviation in units of ``clip``."""
    clip: AboveZero = 1.0
    """Longest gradient of a row's own loss."""


class NoisyRows(OneKind):
    """Gaussian noise on clipped embeddings."""

    kind: Literal["gaussian"]
    strength: AboveZero = 1.0
    """Standard deviation in units of ``clip``."""
    clip: AboveZero = 10.0
    """Largest length of a row's embedding."""


class Decorrelation(OneKind):
    """Embeddings whose distances say little of the inputs'."""

    kind: Literal["distance_correlation"]
    strength: AboveZero = 1.0
    """Weight beside the loss."""


class PrivacyConfig(Section):
    """Defences that each side applies to its own messages. Never a promise of safety: see `lvfl audit`."""

    gradients: Annotated[Annotated[MaxNormNoise | NoisyGradients, KIND, AS_CHOICE] | None, OWN] = None
    """The server's defence (docs/privacy.md), or {kind: gaussian, strength: 1, clip: 1}. Needs training.labels=server.
    strength: factor of max_norm's noise; gaussian's standard deviation in units of clip, the longest gradient of a
    row's own loss."""
    embeddings: Annotated[Annotated[NoisyRows | Decorrelation, KIND, AS_CHOICE] | None, OWN] = None
    """The party's defence (docs/privacy.md), or {kind: gaussian, strength: 1, clip: 10}. strength: gaussian's standard
    deviation in units of clip, the largest length of a row's embedding; distance_correlation's weight beside the
    loss."""
    noise_seed: Annotated[Annotated[int, Field(strict=True, ge=0)] | None, OWN] = None
    """null: a secret; in one process the experiment's seed."""

    record: Annotated[bool, OWN] = False
    """A party process keeps its last round's messages, personal data, for lvfl audit --processes."""

    @property
    def noisy(self) -> list[str]:
        """The quantities, gradients or embeddings, whose gaussian noise bounds what a row reveals."""
        sides = {"gradients": self.gradients, "embeddings": self.embeddings}
        return [side for side, defence in sides.items() if isinstance(defence, NoisyGradients | NoisyRows)]
