"""The decision is a pure function of costs, rates and a goal: checked against all that could be chosen."""

from fractions import Fraction
from functools import partial
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfl.core.costs.controllers import Choices, Goal, Rates, least_pairs, rates_of, seconds_of, settle_ratios
from vfl.core.costs.forecast import Forecast, Ratios
from vfl.core.costs.ledger import Spent, Workload

NAMES = ("a", "b", "c")
ALPHAS, BETAS = (0.0, 0.3, 0.6), (0.0, 0.25, 0.5, 0.75)


def weigh(ratios: Ratios) -> float:
    return ratios.alpha + ratios.beta


def forecast_of(sizes: dict[str, tuple[int, int]], *, forwarded: bool) -> Forecast:
    macs = {name: {alpha: int(most * (1 - alpha) ** 2) + 1 for alpha in ALPHAS} for name, (most, _) in sizes.items()}
    frame = lambda name, beta: int(sizes[name][1] * (1 - beta)) + 10  # noqa: E731 - a small function of two
    return Forecast(Workload(2, 1), dict.fromkeys(NAMES, 4.0), macs, {}, frame, lambda name: 7, forwarded, 100)


rate = st.floats(0, 1e-3)
settings_of_three = st.fixed_dictionaries(
    {name: st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)) for name in NAMES}
)
rates_of_three = st.fixed_dictionaries(
    {name: st.builds(Rates, rate, rate, rate, rate, st.integers(0, 2)) for name in NAMES}
)
choices_of_three = st.fixed_dictionaries(
    {
        name: st.builds(
            Choices,
            st.sampled_from([ALPHAS, ALPHAS[:1], ALPHAS[1:]]),
            st.sampled_from([BETAS, BETAS[1:], BETAS[:2]]),
        )
        for name in NAMES
    }
)


@given(settings_of_three, rates_of_three, choices_of_three, st.floats(0, 1e4), st.booleans())
def test_everybody_keeps_what_can_be_kept_within_the_bounds(sizes, rates, choices, limit_s, forwarded):
    forecast = forecast_of(sizes, forwarded=forwarded)
    goal = Goal(limit_s, partial(seconds_of, forecast, rates)).possible(choices)
    chosen = least_pairs(forecast, rates, goal.limit, choices)
    assert not goal.missed(chosen, slack=1.0)
    for name, ratios in chosen.items():
        assert ratios.alpha in choices[name].alphas
        assert ratios.beta in choices[name].betas


@given(settings_of_three, rates_of_three, choices_of_three, st.floats(0, 1e4))
def test_where_nobody_depends_on_others_each_pair_is_the_best_of_all(sizes, rates, choices, limit_s):
    forecast = forecast_of(sizes, forwarded=False)
    goal = Goal(limit_s, partial(seconds_of, forecast, rates)).possible(choices)
    chosen = least_pairs(forecast, rates, goal.limit, choices)
    for name in NAMES:
        pairs = [Ratios(*pair) for pair in product(choices[name].alphas, choices[name].betas)]
        within = [pair for pair in pairs if rates[name].seconds(forecast.cost(name, pair, {})) <= goal.limit]
        assert chosen[name] == min(within, key=weigh)


@given(settings_of_three, rates_of_three, choices_of_three, st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)))
def test_a_later_deadline_never_asks_for_more_where_nobody_depends_on_others(sizes, rates, choices, limits):
    forecast = forecast_of(sizes, forwarded=False)
    goal = Goal(0.0, partial(seconds_of, forecast, rates)).possible(choices)
    early, late = (least_pairs(forecast, rates, max(goal.limit, limit), choices) for limit in sorted(limits))
    assert all(weigh(late[name]) <= weigh(early[name]) for name in NAMES)


@given(settings_of_three, rates_of_three, choices_of_three, st.floats(0, 1e4), st.booleans(), st.data())
def test_what_is_settled_stays_settled_and_near_the_goal(sizes, rates, choices, limit_s, forwarded, data):
    forecast = forecast_of(sizes, forwarded=forwarded)
    goal = Goal(limit_s, partial(seconds_of, forecast, rates)).possible(choices)
    wanted = least_pairs(forecast, rates, goal.limit, choices)
    present = {
        name: Ratios(data.draw(st.sampled_from(each.alphas)), data.draw(st.sampled_from(each.betas)))
        for name, each in choices.items()
    }
    chosen = settle_ratios(goal, wanted, present)
    assert not goal.missed(chosen)
    assert settle_ratios(goal, wanted, chosen) == chosen
    for name in NAMES:
        assert chosen[name] in (wanted[name], present[name])
    assert exact(chosen) - exact(wanted) < Fraction(1, 10)
    assert chosen == present or exact(present) - exact(chosen) >= Fraction(1, 10) or goal.missed(present)


def exact(ratios: dict[str, Ratios]) -> Fraction:
    """Return the sum that is compared, as written in decimals."""
    each_sum = (Fraction(str(each.alpha)) + Fraction(str(each.beta)) for each in ratios.values())
    return sum(each_sum, start=Fraction(0))


twentieths = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), min_size=1, max_size=6)


@given(twentieths)
def test_whether_a_change_is_worth_it_is_decided_by_exact_sums(pairs):
    """All is in time, so only sums decide: 2 of 20 are worth a change, in sum; integers are the oracle."""
    present = {str(number): Ratios(beta=now / 20) for number, (now, _) in enumerate(pairs)}
    wanted = {str(number): Ratios(beta=then / 20) for number, (_, then) in enumerate(pairs)}
    chosen = settle_ratios(Goal(1.0, lambda _: {}), wanted, present)
    total = {id(each): sum(round(20 * pair.beta) for pair in each.values()) for each in (present, wanted, chosen)}
    if total[id(present)] - total[id(wanted)] < 2:
        assert chosen == present
    else:
        assert total[id(chosen)] - total[id(wanted)] < 2
        assert total[id(present)] - total[id(chosen)] >= 2


@pytest.mark.parametrize("then", [0.85, 0.9])
def test_four_parties_do_not_keep_what_none_of_them_needs(then: float):
    present, wanted = ({name: Ratios(beta=beta) for name in "abcd"} for beta in (0.95, then))
    chosen = settle_ratios(Goal(1.0, lambda _: {}), wanted, present)
    assert [each.beta for each in chosen.values()] == ([then] * 4 if then == 0.85 else [0.95, then, then, then])


def test_nothing_moves_where_one_could_have_less_only_if_another_had_more():
    """The goal is passed by what noise may do: sought anew it is another way to spend as much."""
    present = {"a": Ratios(0.0, 0.25), "b": Ratios(0.3, 0.75)}
    wanted = {"a": Ratios(), "b": Ratios(0.6, 0.75)}
    amounts = lambda ratios: {"a": 0.5, "b": 1.035 - ratios["b"].alpha / 10}  # noqa: E731 - a small function
    assert settle_ratios(Goal(1.0, amounts), wanted, present) == present
    assert settle_ratios(Goal(0.95, amounts), wanted, present)["b"] == wanted["b"]


def test_nobody_need_be_faster_than_who_cannot_keep_the_deadline():
    """b cannot, so a may take as long as b does then, and is not lightweighted."""
    forecast = forecast_of({"a": (1000, 0), "b": (1000, 0)}, forwarded=False)
    rates = {"a": Rates(1.0, 0.0, 0.0, 0.0), "b": Rates(10.0, 0.0, 0.0, 0.0)}
    choices = {name: Choices(ALPHAS, BETAS) for name in rates}
    goal = Goal(1.0, partial(seconds_of, forecast, rates)).possible(choices)
    assert least_pairs(forecast, rates, goal.limit, choices) == {"a": Ratios(), "b": Ratios(0.6, 0.0)}


def test_a_slow_downlink_is_spared_by_the_others():
    forecast = forecast_of({"a": (10, 1000), "b": (10, 1000)}, forwarded=True)
    rates = {"a": Rates(0.0, 0.0, 0.0, 0.0), "b": Rates(0.0, 1.0, 0.0, 0.0)}
    choices = {name: Choices(ALPHAS, BETAS) for name in rates}
    limit_s = rates["b"].seconds(forecast.cost("b", Ratios(), {"a": 0.5}))
    assert least_pairs(forecast, rates, limit_s, choices)["a"].beta == 0.5


def rounds(*downlink_s: float, alpha: float = 0.0) -> list[Spent]:
    return [Spent(alpha, 0.0, 10, 100, 100, 1.0, each, 1.0, 0.0) for each in downlink_s]


@pytest.mark.parametrize(
    ("seconds", "heard"), [((1.0,), 1.0), ((1.0, 1.0, 9.0), 1.0), ((1.0, 1.0, 9.0, 9.0), 9.0), ((9.0, 1.0, 1.0), 1.0)]
)
def test_one_odd_round_is_not_heard_and_a_change_is_after_two(seconds, heard):
    assert rates_of(rounds(*seconds)).downlink_byte_s == heard / 100


def test_seconds_per_multiply_accumulate_are_those_of_the_present_width():
    wide = [Spent(0.0, 0.0, 1000, 1, 1, 1.0, 0.0, 0.0, 0.0)] * 5
    narrow = Spent(0.5, 0.0, 250, 1, 1, 0.5, 0.0, 0.0, 0.0)
    assert rates_of([*wide, narrow]).mac_s == 0.5 / 250


def test_a_round_that_a_party_trains_alone_has_no_link():
    alone = [Spent(0.0, 0.0, 10, 0, 40, 1.0, 0.0, 0.0, 0.0)] * 3
    assert rates_of([*alone, *rounds(2.0)]).downlink_byte_s == rates_of(rounds(2.0)).downlink_byte_s
    assert rates_of(alone).mac_s == 0.1


@given(st.lists(st.sampled_from([1.0, 2.0]), min_size=1, max_size=4), st.floats(1.0, 100.0))
def test_what_pruning_takes_is_on_no_link(downlink_s, pruning_s):
    """Nor is it where two rounds in succession prune, whose median would be that of the pruning."""
    before, pruned = rounds(*downlink_s), [*rounds(pruning_s, alpha=0.3), *rounds(pruning_s, alpha=0.5)]
    assert rates_of([*before, *pruned]).downlink_byte_s == rates_of(before).downlink_byte_s
