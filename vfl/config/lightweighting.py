"""Settings of pruning and sparsification: ``lightweighting``."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from vfl.config.components import CONTROLLERS
from vfl.config.schedules import Schedule, named_parties, schedule_of, value_at, values_of
from vfl.config.settings import (
    AS_CHOICE,
    OWN,
    SHARED,
    AboveZero,
    Component,
    Positive,
    RatioSchedule,
    ResolutionSchedule,
    Section,
    component_of,
)

MOST_SIZES = 16
"""Most resolutions below 1 of a party: its costs at each are counted before training."""


class PruningConfig(Section):
    """Choice of the filters to prune."""

    importance: Literal["filter", "group"] = "filter"
    """L1 norm of the filter's own weights, or of all weights that go with it."""
    round_to: Positive | None = None
    """Kept widths become multiples of this (8 or 16 suit CPUs)."""
    refit: bool = False
    """Fit the layers behind a pruning to their former outputs."""


class LightweightingConfig(Section):
    """Ratios of pruning and sparsification: a number, {round: value}, or {party: either}."""

    alpha: Annotated[RatioSchedule, OWN] = 0.0
    """Removed share of every prunable layer's filters."""
    beta: Annotated[RatioSchedule, OWN] = 0.0
    """Share of the embedding's entries that is not sent."""
    resolution: Annotated[ResolutionSchedule, OWN] = 1.0
    """Images only: share of their sides in a round, {0: 0.5, 18: 1}. The last round must have 1."""
    controller: Annotated[Component, AS_CHOICE, component_of(CONTROLLERS), OWN] = Component(kind="fixed")
    """deadline: the smallest ratios that keep seconds_per_exchange; or of an installed package, {kind: NAME, ...} with
    settings of its own."""
    seconds_per_exchange: Annotated[Literal["auto"] | AboveZero | None, OWN] = None
    """Goal of deadline. auto: 1.2 times those of the median party without lightweighting."""
    alpha_max: Annotated[RatioSchedule, OWN] = 0.7
    """Largest alpha of a controller."""
    beta_max: Annotated[RatioSchedule, OWN] = 0.9
    """Largest beta of a controller."""
    error_feedback: Annotated[bool, SHARED] = False
    """Send sparsified differences from an estimate per sample (EF21)."""
    pruning: Annotated[PruningConfig, OWN] = PruningConfig()

    @model_validator(mode="after")
    def _goal(self) -> Self:
        if self.controller.kind == "deadline" and self.seconds_per_exchange is None:
            raise ValueError("seconds_per_exchange: controller deadline needs a number above 0, or auto")
        return self

    @property
    def measures(self) -> bool:
        """Return whether a controller chooses the ratios from measurements and costs."""
        return self.controller.kind != "fixed"

    @property
    def options(self) -> dict[str, Any]:
        """Settings of another package's controller."""
        return self.controller.options

    def most_alpha(self, party: str) -> Schedule:
        """Return the largest alpha that a party may be assigned, over the rounds."""
        return schedule_of(self.alpha_max if self.measures else self.alpha, party)

    def resolution_of(self, party: str) -> Schedule:
        """Return the share of an image's sides with which a party trains, over the rounds."""
        by_party = named_parties(self.resolution)
        return self.resolution if by_party is None else by_party.get(party, 1.0)  # pyright: ignore[reportReturnType]  # not by party, so a Schedule

    def sizes_of(self, party: str) -> list[float]:
        """Return the resolutions below 1 that a party ever has, ascending."""
        return sorted({each for each in values_of(self.resolution_of(party)) if each < 1})

    def check_resolution(self, parties: Sequence[str], rounds: int) -> None:
        """Raise ValueError, naming the fix, for resolutions with which the run cannot end or be controlled."""
        for party in parties:
            if (last := value_at(self.resolution_of(party), rounds - 1)) < 1:
                raise ValueError(
                    f"lightweighting.resolution: {last:g} for {party} in the last of {rounds} rounds; end with "
                    "{ROUND: 1.0} before it: the finished model has one size, the whole"
                )
            if len(self.sizes_of(party)) > MOST_SIZES:
                raise ValueError(f"lightweighting.resolution: more than {MOST_SIZES} values for {party}; name fewer")
            if self.measures and self.sizes_of(party):
                raise ValueError(
                    f"lightweighting.resolution: controller {self.controller} measures images of one size; set "
                    "lightweighting.controller=fixed, or leave one of them out"
                )

    def check_bounds(self, parties: Sequence[str]) -> None:
        """Raise ValueError, naming the field, if an upper bound lies below its lower bound."""
        for ratio in ("alpha", "beta") if self.measures else ():
            for party in parties:
                least, most = (schedule_of(getattr(self, f"{ratio}{end}"), party) for end in ("", "_max"))
                # Bounds are steps over the rounds: they can only cross where one of them begins anew.
                for start in sorted({0}.union(*(each for each in (least, most) if isinstance(each, dict)))):
                    if (bound := value_at(most, start)) < (reached := value_at(least, start)):
                        raise ValueError(
                            f"lightweighting.{ratio}_max: {bound:g} for {party} is below lightweighting.{ratio}, the "
                            f"least, which is {reached:g} from {{{start}: ...}} on; raise it"
                        )

    def ignored(self) -> Mapping[str, str]:
        """Return the settings of other controllers."""
        unused = [] if self.measures else ["seconds_per_exchange", "alpha_max", "beta_max"]
        return dict.fromkeys(unused, "lightweighting.controller is fixed")
