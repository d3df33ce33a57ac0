"""Values over the rounds, against a table that is filled round by round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from vfl.config.schedules import (
    falls,
    named_parties,
    parse_party_schedule,
    parse_ratio_schedule,
    parse_schedule,
    schedule_of,
    value_at,
)

LAST_ROUND = 30
ratios = st.floats(0, 1, exclude_max=True)
schedules = ratios | st.dictionaries(st.integers(0, LAST_ROUND), ratios, min_size=1, max_size=5)


def table(schedule: float | dict[int, float]) -> list[float]:
    """Value of every round: 0, until a round that is named says otherwise."""
    current, values = 0.0, list[float]()
    for round_index in range(LAST_ROUND + 5):
        if not isinstance(schedule, dict):
            current = schedule
        elif round_index in schedule:
            current = schedule[round_index]
        values.append(current)
    return values


@given(schedules)
def test_value_at_equals_a_table_filled_round_by_round(schedule):
    assert [value_at(schedule, round_index) for round_index in range(LAST_ROUND + 5)] == table(schedule)


@given(schedules)
def test_falls_names_the_first_round_whose_value_is_below_the_one_before(schedule):
    values = table(schedule)
    first = min(schedule) if isinstance(schedule, dict) else 0
    lower = [r for r in range(first + 1, len(values)) if values[r] < values[r - 1]]
    expected = (lower[0], values[lower[0] - 1], values[lower[0]]) if lower else None
    assert falls(schedule) == expected


@given(schedules)
def test_a_valid_schedule_is_taken_as_it_is_whatever_its_rounds_are_written_as(schedule):
    assert parse_ratio_schedule(schedule) == schedule
    if isinstance(schedule, dict):
        written = {str(round_index): str(ratio) for round_index, ratio in schedule.items()}
        assert parse_ratio_schedule(written) == schedule


@given(st.dictionaries(st.sampled_from(["party_1", "party_2", "anna"]), schedules, min_size=1))
def test_parties_have_their_own_schedule_and_the_others_none(by_party):
    parsed = parse_party_schedule(by_party)
    assert named_parties(parsed) == by_party
    for party in ("party_1", "party_2", "anna", "nobody"):
        assert schedule_of(parsed, party) == by_party.get(party, 0.0)


@given(schedules)
def test_one_schedule_holds_for_every_party(schedule):
    parsed = parse_party_schedule(schedule)
    assert named_parties(parsed) is None
    assert schedule_of(parsed, "party_1") == schedule_of(parsed, "anyone") == schedule


def test_text_that_is_a_number_is_one():
    assert parse_schedule("1e-3") == 0.001
    assert parse_schedule({"0": "1e-3", 5: 1}) == {0: 0.001, 5: 1.0}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.0, ("1.0 is outside [0", "1.0")),
        (-0.1, ("-0.1 is outside [0", "-0.1")),
        (float("nan"), ("nan is outside [0", "outside")),
        ({"party_1": {3: 1.5}}, ("1.5 is outside [0", "1.5")),
        ("many", ("", "'many'")),
        (True, ("True is not a number; give a number or {round", "True")),
        ({}, ("is an empty mapping; give a number or {round", "mapping")),
        ({-1: 0.2}, ("", "round")),
        ({0.5: 0.2}, ("", "0.5")),
        ({True: 0.2}, ("", "True")),
        ({"party_1": {"party_2": 0.2}}, ("", "'party_2'")),
        ({0: 0.2, "party_1": 0.4}, ("mixes rounds and party names; use {party", "value")),
    ],
)
def test_what_is_no_ratio_schedule_is_refused_with_the_reason(value, message):
    with refused(*message):
        parse_party_schedule(value)
