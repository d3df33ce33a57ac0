"""Settings of what travels: ``wire``."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from vfl.agreement import SHARED
from vfl.components import COMPRESSORS
from vfl.settings import Fraction, Probability, Section, name_in

Bits = Literal[8, 4, 2]


class GradientConfig(Section):
    """How gradients come back to the parties, with training.labels=server."""

    beta: Fraction = 0.0
    """Share of a gradient's entries, those of smallest magnitude, that is not sent."""
    bits: Bits | None = None
    """Of a value, as wire.bits."""
    error_feedback: bool = False
    """The server adds what was not sent of a sample's gradient to the sample's next one."""


class WireConfig(Section):
    """How tensors travel."""

    values: Annotated[Literal["float32", "float16", "bfloat16"], SHARED] = "float32"
    compressor: Annotated[str, name_in(COMPRESSORS), SHARED] = "magnitude"
    """How embeddings become frames. magnitude: lightweighting.beta's small entries are left out; random_top_k: as many,
    but some large ones in the place of small ones (Zheng et al., 2023); or a compressor of an installed package
    (docs/extending.md)."""
    bits: Annotated[Bits | None, SHARED] = None
    """Bits of an embedding's value in training: whole numbers times a scale per 2048 entries; null: as wire.values."""
    rounding: Annotated[Literal["stochastic", "nearest", "dithered"], SHARED] = "stochastic"
    """Rounding of embeddings and gradients to bits. stochastic: exact in the mean (QSGD); nearest: smaller error;
    dithered: both, with noise that the receiver takes off again, where nothing is left out (else as stochastic)."""
    random_share: Annotated[Probability, SHARED] = 0.1
    """Mean share of the entries sent by random_top_k that are not among the largest."""
    gradients: Annotated[GradientConfig, SHARED] = GradientConfig()
    options: Annotated[dict[str, Any], SHARED] = Field(default={})
    """Settings of a compressor of another package, which checks them."""

    def ignored(self) -> Mapping[str, str]:
        """Return what belongs to other compressors, and the rounding where nothing is rounded."""
        if self.compressor not in COMPRESSORS.built_in:
            return {}
        unused = ["options"] if self.compressor == "random_top_k" else ["options", "random_share"]
        reasons = dict.fromkeys(unused, f"wire.compressor is {self.compressor}")
        rounds = self.bits is not None or self.gradients.bits is not None
        return reasons if rounds else reasons | {"rounding": "neither wire.bits nor wire.gradients.bits is given"}
