"""Settings of what travels: ``wire``."""

from typing import Annotated, Any, Literal

from pydantic import Field

from vfl.agreement import SHARED
from vfl.components import COMPRESSORS
from vfl.settings import Section, name_in


class WireConfig(Section):
    """How tensors travel."""

    values: Annotated[Literal["float32", "float16", "bfloat16"], SHARED] = "float32"
    compressor: Annotated[str, name_in(COMPRESSORS), SHARED] = "magnitude"
    """How embeddings become frames. magnitude: lightweighting.beta's small entries are left out; or a compressor of an
    installed package (docs/extending.md)."""
    options: Annotated[dict[str, Any], SHARED] = Field(default={})
    """Settings of a compressor of another package, which checks them."""
