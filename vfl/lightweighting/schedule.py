"""Values that change over the rounds: alpha, beta and the learning rate.

A schedule is a number, or ``{round: value}``: each value holds from its round on, until the next. Before the
first named round a ratio is 0. A party schedule is one schedule for all, or ``{party: schedule}``, where
parties that are not named are not lightweighted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast, runtime_checkable

from vfl.errors import ConfigError
from vfl.registry import nearest

if TYPE_CHECKING:  # which itself needs ratios
    from vfl.lightweighting.forecast import Spent

Schedule = float | dict[int, float]
PartySchedule = Schedule | dict[str, Schedule]


class Ratios(NamedTuple):
    """What a party is spared in a round."""

    alpha: float = 0.0
    beta: float = 0.0
    reason: str = ""
    """Why, where they follow from what was measured."""
    exchange_s: float | None = None
    """Seconds that an exchange is expected to take with them."""


Reports = Sequence[Mapping[str, "Spent"]]
"""Of every round so far: what it cost each party that was there, and how long it took."""
Assign = Callable[[int, Reports], Mapping[str, Ratios]]
"""Chooses the ratios of a round, by party; a party that is not named is not lightweighted."""


@runtime_checkable
class Lightweighted(Protocol):
    """What trains with ratios that another may choose in place of the schedules."""

    assign: Assign


def scheduled(alpha: PartySchedule, beta: PartySchedule, parties: Iterable[str]) -> Assign:
    """Return what chooses the ratios that the configuration has for each round."""
    schedules = {party: (schedule_of(alpha, party), schedule_of(beta, party)) for party in parties}
    return lambda round_index, _: {
        party: Ratios(value_at(alpha, round_index), value_at(beta, round_index))
        for party, (alpha, beta) in schedules.items()
    }


def chosen_ratios(what: str, given: Any, parties: Sequence[str]) -> dict[str, Ratios]:
    """Return the ratios by party that a user's function has returned, each as `Ratios` or (alpha, beta).

    Raises ConfigError, one line that begins with ``what``, for anything else.
    """
    try:
        ratios = {party: Ratios(float(a), float(b), str((*why, "")[0])) for party, (a, b, *why) in given.items()}
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"{what}: must return {{party: (alpha, beta)}}, returned {given!r}") from None
    for party, each in ratios.items():
        if party not in parties:
            raise ConfigError(f"{what}: no party is called {party!r}{nearest(str(party), parties)}")
        for ratio in each[:2]:
            if not 0.0 <= ratio < 1.0:
                raise ConfigError(f"{what}: {ratio} of {party} is outside [0, 1)")
    return ratios


def value_at(schedule: Schedule, round_index: int) -> float:
    """Return the value that holds in ``round_index`` (0 before the first named round)."""
    if not isinstance(schedule, dict):
        return schedule
    begun = [start for start in schedule if start <= round_index]
    return schedule[max(begun)] if begun else 0.0


def schedule_of(schedule: PartySchedule, party: str) -> Schedule:
    """Return ``party``'s own schedule; 0 for a party that a per-party mapping does not name."""
    by_party = named_parties(schedule)
    if by_party is None:
        return schedule  # pyright: ignore[reportReturnType]  # not by party, so a Schedule
    return by_party.get(party, 0.0)


def named_parties(schedule: PartySchedule) -> Mapping[str, Schedule] | None:
    """Return the mapping by party name, or None where one schedule holds for all parties."""
    if isinstance(schedule, dict) and any(isinstance(key, str) for key in schedule):
        return schedule  # pyright: ignore[reportReturnType]  # parse_party_schedule never mixes key types
    return None


def values_of(schedule: Schedule) -> list[float]:
    """Return all values that a schedule ever has."""
    return list(schedule.values()) if isinstance(schedule, dict) else [schedule]


def largest(schedule: Schedule) -> float:
    """Return the largest value that a schedule ever has."""
    return max(values_of(schedule))


def falls(schedule: Schedule) -> tuple[int, float, float] | None:
    """Return (round, value before, value) at the first fall of a schedule, None if it never falls."""
    if not isinstance(schedule, dict):
        return None
    steps = ((current, schedule[previous], schedule[current]) for previous, current in pairwise(sorted(schedule)))
    return next((step for step in steps if step[2] < step[1]), None)


def parse_schedule(value: object) -> Schedule:
    """Check what a user wrote for a number over the rounds. Raises ValueError with the fix."""
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value)
        if not items:
            raise ValueError("is an empty mapping; give a number or {round: value}")
        _check_blanks(items)
        return {_round(key): _number(item) for key, item in items.items()}
    return _number(value)


def parse_ratio_schedule(value: object) -> Schedule:
    """Like ``parse_schedule``, for ratios: every value must lie in [0, 1)."""
    schedule = parse_schedule(value)
    for ratio in values_of(schedule):
        if not 0.0 <= ratio < 1.0:
            raise ValueError(f"{ratio} is outside [0, 1): it is the removed fraction, 0 removes nothing")
    return schedule


def parse_party_schedule(value: object) -> PartySchedule:
    """Check a ratio schedule, for all parties or by party name. Raises ValueError with the fix."""
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value)
        _check_blanks(items)
        # Keys of JSON, which configurations are between processes, are always text: digits are rounds, not names.
        names = [key for key in items if isinstance(key, str) and not key.isdigit()]
        if names and len(names) < len(items):
            raise ValueError("mixes rounds and party names; use {party: {round: value}}")
        if names:
            return {str(name): parse_ratio_schedule(schedule) for name, schedule in items.items()}
    return parse_ratio_schedule(cast(object, value))


def _check_blanks(items: Mapping[object, object]) -> None:
    """Raise ValueError for a key without a value: YAML reads 0:0.2 as one number, of base 60."""
    if None in items.values():
        raise ValueError("names a round or party without a value; write a blank after each colon: {0: 0.2, 4: 0.4}")


def _round(key: object) -> int:
    if isinstance(key, str) and key.isdigit():
        return int(key)
    if isinstance(key, bool) or not isinstance(key, int) or key < 0:
        raise ValueError(f"{key!r} is not a round; rounds are 0, 1, 2, ...")
    return key


def _number(value: object) -> float:
    # YAML 1.1 reads 1e-3 as text, so text that is a number is one.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{value!r} is not a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number; give a number or {{round: value}}")
    return float(value)
