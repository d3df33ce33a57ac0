"""Ratios of a round, and the interface of their choice from reports of earlier rounds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from vfl.base.errors import ConfigError
from vfl.base.spelling import nearest_name
from vfl.config.lightweighting import LightweightingConfig
from vfl.config.schedules import PartySchedule, schedule_of, value_at


class Ratios(NamedTuple):
    """A party's ratios in a round."""

    alpha: float = 0.0
    beta: float = 0.0
    reason: str = ""
    """Reason for a choice based on measurements."""
    exchange_s: float | None = None
    """Expected seconds of an exchange with these ratios."""
    resolution: float = 1.0
    """Share of the sides of the party's images: the owner's schedule alone, no function chooses it."""


class Spent(NamedTuple):
    """A party's costs and seconds in a round."""

    alpha: float
    beta: float
    macs: int
    downlink_bytes: int
    uplink_bytes: int
    compute_s: float
    downlink_s: float
    uplink_s: float
    latency_s: float
    ahead: int = 0
    """Exchanges by which the party ran ahead (training.staleness)."""

    @property
    def seconds(self) -> float:
        """Seconds of the round."""
        return overlapped(self.ahead, self.compute_s, self.downlink_s, self.uplink_s, self.latency_s)


def overlapped(ahead: int, compute_s: float, downlink_s: float, uplink_s: float, latency_s: float) -> float:
    """Return the seconds of a round in which each exchange overlaps with ``ahead`` others, apart from start and end.

    The serial time of an exchange is divided among the overlapping ones; but a machine, and each direction of a link,
    serves one at a time.
    """
    return max(compute_s, downlink_s, uplink_s, (compute_s + downlink_s + uplink_s + latency_s) / (1 + ahead))


Reports = Sequence[Mapping[str, Spent]]
"""Costs and seconds of every round so far, by party present."""
Assign = Callable[[int, Reports], Mapping[str, Ratios]]
"""Function that chooses the ratios of a round, by party; a party that is not named is not lightweighted."""


@runtime_checkable
class Lightweighted(Protocol):
    """A training whose ratios can be chosen by another function than the schedules."""

    assign: Assign


def scheduled(alpha: PartySchedule, beta: PartySchedule, parties: Iterable[str]) -> Assign:
    """Return the function that looks up the configured ratios for each round."""
    schedules = {party: (schedule_of(alpha, party), schedule_of(beta, party)) for party in parties}
    return lambda round_index, _: {
        party: Ratios(value_at(alpha, round_index), value_at(beta, round_index))
        for party, (alpha, beta) in schedules.items()
    }


def with_resolutions(ratios: Mapping[str, Ratios], config: LightweightingConfig, round_index: int) -> dict[str, Ratios]:
    """Return ratios with the resolutions that the configuration gives for a round."""
    return {
        party: each._replace(resolution=value_at(config.resolution_of(party), round_index))
        for party, each in ratios.items()
    }


def chosen_ratios(what: str, given: Any, parties: Sequence[str]) -> dict[str, Ratios]:
    """Return the ratios by party from a user's function, which gives each as `Ratios` or (alpha, beta).

    Raises ConfigError, one line that begins with ``what``, for anything else.
    """
    try:
        ratios = {party: Ratios(float(a), float(b), str((*why, "")[0])) for party, (a, b, *why) in given.items()}
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"{what}: must return {{party: (alpha, beta)}}, returned {given!r}") from None
    for party, each in ratios.items():
        if party not in parties:
            raise ConfigError(f"{what}: no party is called {party!r}{nearest_name(str(party), parties)}")
        for ratio in each[:2]:
            if not 0.0 <= ratio < 1.0:
                raise ConfigError(f"{what}: {ratio} of {party} is outside [0, 1)")
    return ratios
