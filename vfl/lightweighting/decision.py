"""From costs and measured rates to ratios: the least lightweighting with which a goal is met.

Pure functions: what they return follows from their arguments alone. Seconds, bytes and multiply-accumulates are those
of a round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from types import MappingProxyType
from typing import NamedTuple

from vfl.lightweighting.forecast import BETAS, Cost, Forecast
from vfl.lightweighting.schedule import Ratios, Spent, overlapped

ROUNDS_LOOKED_AT = 3
"""A rate is the median of its last three rounds, of two the faster: one odd round is not heard, a change of two is."""
LATE = 1.05
"""The slack of a deadline, as seconds are measured; a budget has none, or the whole run would pass it."""
WORTH = 0.1
"""Ratios change for a sum that is smaller by this much, not for less."""

ByParty = Mapping[str, Ratios]
Weigh = Callable[[Ratios], float]
NOTHING: ByParty = MappingProxyType({})


class Rates(NamedTuple):
    """What a party's machine and link were measured to take."""

    mac_s: float
    downlink_byte_s: float
    uplink_byte_s: float
    latency_s: float
    ahead: int = 0

    def seconds(self, cost: Cost) -> float:
        """Return what a round of this cost takes."""
        return overlapped(
            self.ahead,
            self.mac_s * cost.macs,
            self.downlink_byte_s * cost.downlink_bytes,
            self.uplink_byte_s * cost.uplink_bytes,
            self.latency_s,
        )


class Choices(NamedTuple):
    """Ratios that a party may be given, ascending: none that un-prunes, spares nothing or passes a bound."""

    alphas: Sequence[float]
    betas: Sequence[float]

    @property
    def least(self) -> Ratios:
        """The weakest lightweighting."""
        return Ratios(self.alphas[0], self.betas[0])

    @property
    def most(self) -> Ratios:
        """The strongest lightweighting."""
        return Ratios(self.alphas[-1], self.betas[-1])

    def nearest(self, ratios: Ratios) -> Ratios:
        """Return the weakest ones from some ratios on, or the strongest."""
        return Ratios(at_least(ratios.alpha, self.alphas), at_least(ratios.beta, self.betas))


@dataclass(frozen=True)
class Goal:
    """Amounts that are not to pass a limit: each party's seconds, or what all spend together."""

    limit: float
    amounts: Callable[[ByParty], Mapping[str, float]]
    """Of ratios; by party, or under one name."""
    slack: float = 1.0
    """Present ratios stay as long as no amount is above this multiple of the limit."""

    def missed(self, ratios: ByParty, slack: float = 1.0) -> set[str]:
        """Return the names of the amounts above ``slack`` times the limit."""
        return {name for name, amount in self.amounts(ratios).items() if amount > slack * self.limit}

    def possible(self, choices: Mapping[str, Choices]) -> "Goal":
        """Return the goal with the least limit that can be kept: no party need be faster than one that misses it."""
        # The strongest ratios of all at once give the least amounts there are: a party's frames burden the others too.
        # But where a pruning costs more than it spares, as it may in a last round, no pruning does.
        most = self.amounts({name: each.most for name, each in choices.items()})
        wide = self.amounts({name: Ratios(each.least.alpha, each.most.beta) for name, each in choices.items()})
        return replace(self, limit=max([self.limit, *(min(amount, wide[name]) for name, amount in most.items())]))


def rates_of(rounds: Sequence[Spent]) -> Rates:
    """Return a party's rates from its rounds so far, at least one.

    Time does not fall quite as multiply-accumulates do: only rounds of the present width tell seconds per one. What
    pruning itself takes is on no link: rounds that did not prune tell of those, if there are any.
    """
    same_width = [each for each in rounds if each.alpha == rounds[-1].alpha]
    reached = (0.0, *(each.alpha for each in rounds))
    # A round whose alpha is not that of the one before has pruned.
    steady = [each for before, each in zip(reached, rounds, strict=False) if each.alpha == before] or rounds
    return Rates(
        _recent([each.compute_s / max(1, each.macs) for each in same_width]),
        _recent([each.downlink_s / max(1, each.downlink_bytes) for each in steady]),
        _recent([each.uplink_s / max(1, each.uplink_bytes) for each in steady]),
        _recent([each.latency_s for each in steady]),
        rounds[-1].ahead,
    )


def seconds_of(
    forecast: Forecast, rates: Mapping[str, Rates], ratios: ByParty, before: ByParty = NOTHING
) -> dict[str, float]:
    """Return the seconds of every party that has rates; with those of a pruning after ratios ``before``, if given."""
    betas = {name: each.beta for name, each in ratios.items()}
    costs = {name: forecast.cost(name, ratios[name], betas, before.get(name)) for name in rates}
    return {name: each.seconds(costs[name]) for name, each in rates.items()}


def least_pairs(
    forecast: Forecast,
    rates: Mapping[str, Rates],
    limit_s: float,
    choices: Mapping[str, Choices],
    weigh: Weigh,
    before: ByParty = NOTHING,
) -> dict[str, Ratios]:
    """Return the ratios of smallest weight in sum with which no party takes longer than a limit that can be kept.

    What a party sends may come down to all others. So for every beta that all have at least, each party's best pair is
    sought, and of these the best is taken; without forwarded embeddings that is the best of all there are. A pruning
    after ratios ``before`` counts, if they are given.
    """
    # 1.0, beyond all that are allowed: each party's strongest. With it every party finds a pair, as the limit can be
    # kept by these (`Goal.possible`): `min` is never of nothing.
    found = (_best_pairs(forecast, rates, limit_s, choices, common, weigh, before) for common in (*BETAS, 1.0))
    return min((pairs for pairs in found if pairs), key=lambda pairs: sum(map(weigh, pairs.values())))


def _best_pairs(
    forecast: Forecast,
    rates: Mapping[str, Rates],
    limit_s: float,
    choices: Mapping[str, Choices],
    common: float,
    weigh: Weigh,
    before: ByParty,
) -> dict[str, Ratios]:
    """Return each party's pair of smallest weight with a beta of at least ``common``; none where one finds none.

    A party without rates gets its weakest ratios.
    """
    betas = {name: at_least(common, each.betas) for name, each in choices.items()}
    pairs = {name: each.least._replace(beta=betas[name]) for name, each in choices.items()}
    for name, rate in rates.items():
        every = (Ratios(alpha, beta) for alpha in choices[name].alphas for beta in choices[name].betas)
        kept = (each for each in every if each.beta >= betas[name])
        kept = (each for each in kept if rate.seconds(forecast.cost(name, each, betas, before.get(name))) <= limit_s)
        if (best := min(kept, key=weigh, default=None)) is None:
            return {}
        pairs[name] = best
    return pairs


def least_level(goal: Goal, levels: Sequence[Ratios], choices: Mapping[str, Choices]) -> dict[str, Ratios]:
    """Return the weakest of some ratios, the same for all parties as far as they may, with which a goal is met."""
    every = [{name: each.nearest(level) for name, each in choices.items()} for level in levels]
    return next((ratios for ratios in every if not goal.missed(ratios)), every[-1])


def settled(goal: Goal, wanted: ByParty, present: ByParty, weigh: Weigh) -> dict[str, Ratios]:
    """Return ``wanted``, but the present ratios, of all or some, where a change is not worth it: noise moves none."""
    late = bool(goal.missed(present, goal.slack))

    def worth_it(before: ByParty, after: ByParty) -> bool:
        gain = sum(map(weigh, before.values())) - sum(map(weigh, after.values()))
        # Ratios are decimals: without the last bits of floats 0.95 is more than 0.85 by 0.1, not by 0.0999....
        return round(gain, 9) >= WORTH

    # First all parties together, then one by one: many small gains may be worth it in sum.
    if not late and not worth_it(present, wanted):
        return dict(present)
    chosen = dict(wanted)
    # One party after another, each judged with what was decided for those before: those that are harmless alone may
    # together miss the goal, or give up a sum that is worth it. What still changes is to be worth it, too.
    for name in wanted:
        unchanged = chosen | {name: present[name]}
        small = not worth_it({name: present[name]}, {name: wanted[name]}) and not worth_it(unchanged, wanted)
        if small and (late or worth_it(present, unchanged)) and not goal.missed(unchanged, goal.slack):
            chosen = unchanged
    return chosen


def at_least(ratio: float, allowed: Sequence[float]) -> float:
    """Return the smallest allowed ratio from ``ratio`` on, the largest where none is."""
    return next((each for each in allowed if each >= ratio), allowed[-1])


def _recent(values: Sequence[float]) -> float:
    return median_low(values[-ROUNDS_LOOKED_AT:])
