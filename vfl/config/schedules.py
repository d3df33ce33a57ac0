"""Values that change over the rounds: alpha, beta and the learning rate.

A schedule is a number, or ``{round: value}``: each value holds from its round on, until the next. Before the first
named round a ratio is 0. A party schedule is one schedule for all, or ``{party: schedule}``, with ratio 0 for parties
that are not named. A resolution is 1 there.
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import cast

Schedule = float | dict[int, float]
PartySchedule = Schedule | dict[str, Schedule]


def value_at(schedule: Schedule, round_index: int) -> float:
    """Return the value in round ``round_index``, 0 before the first named round."""
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
    if isinstance(schedule, dict) and isinstance(next(iter(schedule), None), str):
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
    """Check a user's value for a number that may change over the rounds. Raises ValueError with the fix."""
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value)
        if not items:
            raise ValueError("is an empty mapping; give a number or {round: value}")
        _check_blanks(items)
        return {_round(key): _number(item) for key, item in items.items()}
    return _number(value)


def parse_ratio_schedule(value: object) -> Schedule:
    """Check a user's value for a ratio, as ``parse_schedule``: every value must lie in [0, 1)."""
    schedule = parse_schedule(value)
    for ratio in values_of(schedule):
        if not 0.0 <= ratio < 1.0:
            raise ValueError(f"{ratio} is outside [0, 1): it is the removed fraction, 0 removes nothing")
    return schedule


def parse_resolution_schedule(value: object) -> Schedule:
    """Check a user's value for a resolution, as ``parse_schedule``; 1 before the first named round."""
    schedule = parse_schedule(value)
    for resolution in values_of(schedule):
        if not 0.0 < resolution <= 1.0:
            raise ValueError(f"{resolution} is outside (0, 1]: it is the share of an image's sides, 1 leaves it whole")
    return {0: 1.0} | schedule if isinstance(schedule, dict) else schedule


def parse_party_schedule(value: object, parse: Callable[[object], Schedule] = parse_ratio_schedule) -> PartySchedule:
    """Check a schedule, of ratios or as ``parse`` does, for all parties or by party name. Raises ValueError."""
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value)
        _check_blanks(items)
        # Keys of JSON, which configurations are between processes, are always text: digits are rounds, not names.
        names = [key for key in items if isinstance(key, str) and not key.isdigit()]
        if names and len(names) < len(items):
            raise ValueError("mixes rounds and party names; use {party: {round: value}}")
        if names:
            return {str(name): parse(schedule) for name, schedule in items.items()}
    return parse(cast(object, value))


def _check_blanks(items: Mapping[object, object]) -> None:
    """Raise ValueError for a key without a value: YAML reads 0:0.2 as one number, of base 60."""
    if None in items.values():
        raise ValueError("names a round or party without a value; write a blank after each colon: {0: 0.2, 4: 0.4}")


def _round(key: object) -> int:
    if isinstance(key, str) and key.isdigit():
        return int(key)
    if isinstance(key, bool) or not isinstance(key, int) or key < 0:
        raise ValueError(f"{key!r} is not a round; write 0 for the first one, then 1, 2, ...")
    return key


LARGEST = 30
"""Power of ten that no setting exceeds: float32 reaches 10^38, which leaves room for what is computed of it."""


def _number(value: object) -> float:
    # YAML 1.1 reads 1e-3 as text, so text that is a number is one.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number; give a number or {{round: value}}")
    try:
        number = float(str(value))  # of a whole number of 400 digits, float itself is no ValueError
    except ValueError:
        raise ValueError(f"{value!r} is not a number") from None
    if 10.0**LARGEST < abs(number) < math.inf:
        raise ValueError(f"{value!r} is beyond 10^{LARGEST}")
    return number
