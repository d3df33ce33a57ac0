"""Controllers, which choose the ratios: by the configuration's schedules, a deadline, or a package's rule.

A controller is a function of the round and of the costs and seconds of all rounds so far. It keeps no state, so a
resumed run decides as the first one did.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median_low

from vfl.config.components import CONTROLLERS
from vfl.config.lightweighting import LightweightingConfig
from vfl.config.schedules import schedule_of, value_at
from vfl.core.costs.decision import (
    LATE,
    ByParty,
    Choices,
    Goal,
    Rates,
    least_pairs,
    rates_of,
    seconds_of,
    settled,
)
from vfl.core.costs.forecast import ALPHAS, BETAS, Forecast
from vfl.core.costs.schedule import Assign, Ratios, Reports, Spent, chosen_ratios, scheduled

AUTO = 1.2
"""Factor of the deadline ``auto``: times the seconds of the median party (the faster of two) without lightweighting."""


@dataclass(frozen=True)
class ControllerContext:
    """A controller's inputs: settings, parties and forecast."""

    config: LightweightingConfig
    parties: Sequence[str]
    rounds: int
    """Number of rounds of the whole run."""
    forecast: Callable[[], Forecast]
    """Returns the cost forecast; the first call in a run asks the parties for their models' costs."""

    def choices(self, round_index: int, present: ByParty) -> dict[str, Choices]:
        """Return each party's allowed ratios in a round."""
        return {party: self._choices(party, round_index, present[party].alpha) for party in self.parties}

    def weigh(self, ratios: Ratios) -> float:
        """Return a party's part of the weighted sum in Corollary 1's convergence bound."""
        return self.config.alpha_weight * ratios.alpha + ratios.beta

    def _choices(self, party: str, round_index: int, reached: float) -> Choices:
        config, macs = self.config, self.forecast().macs[party]
        schedules = (config.alpha, config.beta, config.alpha_max, config.beta_max)
        alpha, beta, alpha_max, beta_max = (value_at(schedule_of(each, party), round_index) for each in schedules)
        alphas = [max(alpha, reached)]  # what is pruned stays pruned, also where the schedule would allow less
        for each in ALPHAS:
            # Narrow layers round two ratios to one width: the larger would cost a pruning and spare nothing.
            if alphas[-1] < each <= alpha_max and macs[each] < macs[alphas[-1]]:
                alphas.append(each)
        return Choices(alphas, [beta, *(each for each in BETAS if beta < each <= beta_max)])


def build_controller(given: ControllerContext) -> Assign:
    """Return the configured controller; results of another package's are checked in every round.

    Raises ValueError, one line, for a controller that cannot be used, and later for anything but ratios of parties.
    """
    name = given.config.controller
    assign: Assign = CONTROLLERS.make(name, given)
    if name in CONTROLLERS.built_in:
        return assign
    what = f"controller {name!r}"
    return lambda round_index, reports: chosen_ratios(what, assign(round_index, tuple(reports)), given.parties)


def fixed(given: ControllerContext) -> Assign:
    """Assign the ratios that the configuration gives for each round."""
    return scheduled(given.config.alpha, given.config.beta, given.parties)


def deadline(given: ControllerContext) -> Assign:
    """Assign the smallest ratios with which every party keeps ``seconds_per_exchange``."""
    wanted = given.config.seconds_per_exchange

    def limit_s(forecast: Forecast, rates: Mapping[str, Rates]) -> float:
        if isinstance(wanted, float):
            return wanted * forecast.work.exchanges
        return AUTO * median_low(seconds_of(forecast, rates, dict.fromkeys(given.parties, Ratios())).values())

    return lambda round_index, reports: _in_time(given, round_index, reports, limit_s)


def _in_time(
    given: ControllerContext,
    round_index: int,
    reports: Reports,
    limit_s: Callable[[Forecast, Mapping[str, Rates]], float],
) -> dict[str, Ratios]:
    """Choose the smallest ratios with which each party takes ``limit_s`` a round at most; the weakest at first."""
    rounds = {party: [spent[party] for spent in reports if party in spent] for party in given.parties}
    rates = {party: rates_of(each) for party, each in rounds.items() if each}
    present = {party: present_of(each) for party, each in rounds.items()}
    choices = given.choices(round_index, present)
    if not rates:  # before the first round, or while no party has reported one
        return {party: each.least._replace(reason="held") for party, each in choices.items()}
    forecast = given.forecast()
    goal = Goal(limit_s(forecast, rates), partial(seconds_of, forecast, rates), LATE)
    limit = goal.possible(choices).limit
    wanted = least_pairs(forecast, rates, limit, choices, given.weigh)
    # Reason if both ratios change: the machine of a party that computes for half of its seconds, else the link.
    computing = {party for party, each in rounds.items() if each and 2 * each[-1].compute_s >= each[-1].seconds}
    chosen = _explained(goal, choices, wanted, present, given, computing)
    costs = forecast.round(chosen, present)
    predicted = {party: each.seconds(costs[party]) / forecast.work.exchanges for party, each in rates.items()}
    return {party: each._replace(exchange_s=predicted.get(party)) for party, each in chosen.items()}


def present_of(rounds: Sequence[Spent]) -> Ratios:
    """Return the ratios of a party's last round, zeros before the first."""
    return Ratios(rounds[-1].alpha, rounds[-1].beta) if rounds else Ratios()


def _explained(
    goal: Goal,
    choices: Mapping[str, Choices],
    wanted: ByParty,
    present: ByParty,
    given: ControllerContext,
    computing: Container[str],
) -> dict[str, Ratios]:
    """Keep ratios whose change is not worth it, and add each party's reason; some are mostly ``computing``."""
    unchanged = {party: each.nearest_choice(present[party]) for party, each in choices.items()}
    chosen = settled(goal.possible(choices), wanted, unchanged, given.weigh)
    # By the goal itself, not by the possible limit: a party that misses it has ratios at their bounds.
    missed = goal.missed(chosen, goal.slack)
    for party, ratios in chosen.items():
        reason = _reason(ratios, present[party], "compute" if party in computing else "link")
        chosen[party] = ratios._replace(reason="bound" if party in missed else reason)
    return chosen


def _reason(ratios: Ratios, present: Ratios, slower: str) -> str:
    """Return the reason of a change: ``compute``, ``link``, or of both the ``slower``; ``held`` without a change."""
    if ratios[:2] == present[:2]:
        return "held"
    if ratios.alpha != present.alpha and ratios.beta != present.beta:
        return slower
    return "compute" if ratios.alpha != present.alpha else "link"
