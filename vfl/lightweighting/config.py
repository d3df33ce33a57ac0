"""Settings of pruning and sparsification: ``lightweighting``."""

from typing import Annotated, Literal

from vfl.agreement import OWN, SHARED
from vfl.settings import Positive, RatioSchedule, Section


class PruningConfig(Section):
    """How filters are chosen."""

    importance: Literal["filter", "group"] = "filter"
    """filter: L1 norm of the filter's own weights (Li et al. 2016); group: of all weights that go with it."""
    round_to: Positive | None = None
    """Kept widths become multiples of this, but no layer wider than it was (8 or 16 suit the CPU's vectors); null keeps
    exact widths."""


class LightweightingConfig(Section):
    """What each party is spared: a number, {round: value}, or {party: either}."""

    alpha: Annotated[RatioSchedule, OWN] = 0.0
    """Removed share of the filters of every prunable layer, relative to the original width."""
    beta: Annotated[RatioSchedule, OWN] = 0.0
    """Share of the embedding's entries that is not sent."""
    error_feedback: Annotated[bool, SHARED] = False
    """EF21: both ends keep an estimate per sample and only sparsified differences travel."""
    pruning: Annotated[PruningConfig, OWN] = PruningConfig()
