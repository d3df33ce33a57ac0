"""A budget of seconds on exact clocks: kept wherever the strongest ratios could keep it."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from vfl.config import parse_config
from vfl.lightweighting.controllers import ControllerContext, build_controller, present_of
from vfl.lightweighting.decision import Rates
from vfl.lightweighting.forecast import ALPHAS, BETAS, Cost, Forecast, Workload
from vfl.lightweighting.schedule import Ratios, Spent

NAMES = ("party_1", "party_2", "party_3")
FREE = dict.fromkeys(NAMES, Ratios())
MOST = dict.fromkeys(NAMES, Ratios(ALPHAS[-1], BETAS[-1]))


def forecast_of(work: Workload, *, forwarded: bool) -> Forecast:
    macs = {alpha: int(10_000 * (1 - alpha) ** 2) for alpha in ALPHAS}
    frame = lambda _, beta: int(20_000 * (1 - beta)) + 10  # noqa: E731 - a small function of two
    return Forecast(
        work, dict.fromkeys(NAMES, 4.0), dict.fromkeys(NAMES, macs), {}, frame, lambda _: 70, forwarded, head_bytes=100
    )


def controller(forecast: Forecast, rounds: int, seconds: float):
    dataset = {"kind": "digits"}
    bounds = {"alpha_max": ALPHAS[-1], "beta_max": BETAS[-1]}
    section = {"controller": "budget", "budget": {"seconds": seconds}} | bounds
    config = parse_config({"name": "exact", "data": {"dataset": dataset}, "lightweighting": section})
    return build_controller(ControllerContext(config.lightweighting, NAMES, rounds, lambda: forecast))


def spent(rates: Rates, ratios: Ratios, cost: Cost) -> Spent:
    seconds = rates.mac_s * cost.macs, rates.downlink_byte_s * cost.downlink_bytes
    uplink_s = rates.uplink_byte_s * cost.uplink_bytes
    return Spent(ratios.alpha, ratios.beta, *cost, *seconds, uplink_s, rates.latency_s, rates.ahead)


def round_of(forecast: Forecast, rates: dict[str, Rates], ratios, before) -> dict[str, Spent]:
    costs = forecast.round(ratios, before)
    return {name: spent(each, ratios[name], costs[name]) for name, each in rates.items()}


def slowest(spent_by_party: dict[str, Spent]) -> float:
    return max(each.seconds for each in spent_by_party.values())


speeds = st.fixed_dictionaries({name: st.tuples(st.integers(1, 9), st.integers(0, 9)) for name in NAMES})
works = st.builds(Workload, st.integers(1, 4), st.integers(1, 2), st.integers(0, 1))
EVEN = dict.fromkeys(NAMES, (9, 1))


@settings(max_examples=20)  # each is a whole run, with a search in every round
@example(EVEN, Workload(1, 1), 4, 0.2, False)
@given(speeds, works, st.integers(2, 8), st.floats(0, 1), st.booleans())
def test_a_budget_of_seconds_is_not_passed_where_it_can_be_kept(speeds, work, rounds, share, forwarded):
    """From the least that surely suffices, a free round and then the strongest ratios, to a run without any."""
    forecast = forecast_of(work, forwarded=forwarded)
    rates = {
        name: Rates(macs * 1e-6, link * 1e-7, link * 1e-6, 1e-3, work.ahead) for name, (macs, link) in speeds.items()
    }
    free, least = (slowest(round_of(forecast, rates, each, FREE)) for each in (FREE, MOST))
    budget = free + (rounds - 1) * (least + share * max(0.0, free - least))
    assign = controller(forecast, rounds, budget)
    history: list[dict[str, Spent]] = []
    for round_index in range(rounds):
        ratios = assign(round_index, history)
        before = {name: present_of([each[name] for each in history]) for name in NAMES}
        history.append(round_of(forecast, rates, ratios, before))
    assert sum(map(slowest, history)) <= budget * (1 + 1e-9)
