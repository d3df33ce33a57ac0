"""Functions from costs and measured rates to ratios: the weakest lightweighting that meets a goal.

Seconds, bytes and multiply-accumulates are those of a round.

Rates (seconds per multiply-accumulate, and per byte each way) are the median of the last three rounds, or the faster
of two: one odd round has no influence, a change shows after two. Compute rates use only rounds of the present width,
link rates leave out rounds with a pruning. Of the pairs that meet a party's deadline the one with the least weighted
sum is taken (Corollary 1); as the others' embeddings may be a party's bottleneck, with the smallest common beta for
which every party has such a pair. Ratios stay while no party exceeds 1.05 times the deadline and no sum smaller by 0.1
suffices. Alpha rises in steps of 0.1, each a pruning, and never falls. Choices depend on clocks, so a resumed run
repeats those in its rows (``past_ratios``) and makes the others anew.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

from vfl.config import ExperimentConfig
from vfl.core.costs.forecast import BETAS, Cost, Forecast
from vfl.core.costs.schedule import Ratios, Spent, overlapped
from vfl.runs.loop import Metrics
from vfl.runs.run_folder import Row, whole_rows

ROUNDS_LOOKED_AT = 3
"""Rounds over whose rates the median is taken, of two the faster: it ignores one odd round and follows two."""
LATE = 1.05
"""Slack of a deadline, as measured seconds vary."""
WORTH = 0.1
"""Smallest decrease of the weighted sum for which ratios change."""

ByParty = Mapping[str, Ratios]
Weigh = Callable[[Ratios], float]


class Rates(NamedTuple):
    """Seconds per unit of a party's machine and link, as measured."""

    mac_s: float
    downlink_byte_s: float
    uplink_byte_s: float
    latency_s: float
    ahead: int = 0

    def seconds(self, cost: Cost) -> float:
        """Return the seconds of a round with this cost."""
        return overlapped(
            self.ahead,
            self.mac_s * cost.macs,
            self.downlink_byte_s * cost.downlink_bytes,
            self.uplink_byte_s * cost.uplink_bytes,
            self.latency_s,
        )


class Choices(NamedTuple):
    """Ratios that a party may be given, ascending: they never un-prune, each changes the cost, all lie within the
    bounds."""

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

    def nearest_choice(self, ratios: Ratios) -> Ratios:
        """Return the weakest allowed ratios that are not below the given ones, or the strongest."""
        return Ratios(at_least(ratios.alpha, self.alphas), at_least(ratios.beta, self.betas))


@dataclass(frozen=True)
class Goal:
    """A limit on each party's seconds."""

    limit: float
    amounts: Callable[[ByParty], Mapping[str, float]]
    """Seconds for given ratios, by party."""
    slack: float = 1.0
    """Factor of the limit up to which an amount leaves the present ratios in place."""

    def missed(self, ratios: ByParty, slack: float = 1.0) -> set[str]:
        """Return the names of the amounts above ``slack`` times the limit."""
        return {name for name, amount in self.amounts(ratios).items() if amount > slack * self.limit}

    def possible(self, choices: Mapping[str, Choices]) -> "Goal":
        """Return the goal with the smallest limit that can be kept: no party need be faster than one that misses it."""
        # The strongest ratios of all at once give the least amounts there are: a party's frames burden the others too.
        most = self.amounts({name: each.most for name, each in choices.items()})
        return replace(self, limit=max([self.limit, *most.values()]))


def rates_of(rounds: Sequence[Spent]) -> Rates:
    """Return a party's rates from its rounds so far, at least one.

    Time does not fall quite in proportion to multiply-accumulates: so only rounds of the present width count for
    seconds per multiply-accumulate. Pruning takes time outside the link: so rates of the link come from rounds that did
    not prune, if there are any; rounds that a party trains alone have no link.
    """
    same_width = [each for each in rounds if each.alpha == rounds[-1].alpha]
    reached = (0.0, *(each.alpha for each in rounds))
    # A round whose alpha is not that of the one before has pruned.
    linked = [(before, each) for before, each in zip(reached, rounds, strict=False) if each.downlink_bytes]
    steady = [each for before, each in linked if each.alpha == before] or [each for _, each in linked] or rounds
    return Rates(
        _recent([each.compute_s / max(1, each.macs) for each in same_width]),
        _recent([each.downlink_s / max(1, each.downlink_bytes) for each in steady]),
        _recent([each.uplink_s / max(1, each.uplink_bytes) for each in steady]),
        _recent([each.latency_s for each in steady]),
        rounds[-1].ahead,
    )


def seconds_of(forecast: Forecast, rates: Mapping[str, Rates], ratios: ByParty) -> dict[str, float]:
    """Return the seconds of every party with known rates, without a pruning."""
    betas = {name: each.beta for name, each in ratios.items()}
    costs = {name: forecast.cost(name, ratios[name], betas) for name in rates}
    return {name: each.seconds(costs[name]) for name, each in rates.items()}


def least_pairs(
    forecast: Forecast,
    rates: Mapping[str, Rates],
    limit_s: float,
    choices: Mapping[str, Choices],
    weigh: Weigh,
) -> dict[str, Ratios]:
    """Return the ratios with the smallest sum of weights with which no party exceeds ``limit_s``, if it can be kept.

    Each party's embeddings may be forwarded to all others. So for every possible smallest beta of all parties, each
    party's best pair is found, and the best such set is returned; without forwarded embeddings it is the optimum.
    """
    # 1.0, beyond all that are allowed: each party's strongest. With it every party finds a pair, as the limit can be
    # kept by these (`Goal.possible`): `min` is never of nothing.
    found = (_best_pairs(forecast, rates, limit_s, choices, common, weigh) for common in (*BETAS, 1.0))
    return min((pairs for pairs in found if pairs), key=lambda pairs: sum(map(weigh, pairs.values())))


def _best_pairs(
    forecast: Forecast,
    rates: Mapping[str, Rates],
    limit_s: float,
    choices: Mapping[str, Choices],
    common: float,
    weigh: Weigh,
) -> dict[str, Ratios]:
    """Return each party's pair of smallest weight with a beta of at least ``common``; empty if a party has none.

    A party without rates gets its weakest ratios.
    """
    betas = {name: at_least(common, each.betas) for name, each in choices.items()}
    pairs = {name: each.least._replace(beta=betas[name]) for name, each in choices.items()}
    for name, rate in rates.items():
        every = (Ratios(alpha, beta) for alpha in choices[name].alphas for beta in choices[name].betas)
        kept = (each for each in every if each.beta >= betas[name])
        kept = (each for each in kept if rate.seconds(forecast.cost(name, each, betas)) <= limit_s)
        if (best := min(kept, key=weigh, default=None)) is None:
            return {}
        pairs[name] = best
    return pairs


def settled(goal: Goal, wanted: ByParty, present: ByParty, weigh: Weigh) -> dict[str, Ratios]:
    """Return ``wanted``, but keep present ratios, of all or some parties, if a change is not worth it.

    So noise in measurements changes nothing.
    """
    late = bool(goal.missed(present, goal.slack))

    def worth_it(before: ByParty, after: ByParty) -> bool:
        gain = sum(map(weigh, before.values())) - sum(map(weigh, after.values()))
        # Ratios are decimals: without the last bits of floats 0.95 is more than 0.85 by 0.1, not by 0.0999....
        return round(gain, 9) >= WORTH

    # First all parties together, then one by one: many small gains may be worth it in sum.
    if not late and not worth_it(present, wanted):
        return dict(present)
    chosen = dict(wanted)
    # One party after another, each judged with what was decided for those before: changes that are harmless by
    # themselves may together miss the goal, or give up a sum that is worth it.
    for name in wanted:
        unchanged = chosen | {name: present[name]}
        small = not worth_it({name: present[name]}, {name: wanted[name]}) and not worth_it(unchanged, wanted)
        if small and (late or worth_it(present, unchanged)) and not goal.missed(unchanged, goal.slack):
            chosen = unchanged
    return chosen


def at_least(ratio: float, allowed: Sequence[float]) -> float:
    """Return the smallest allowed ratio that is not below ``ratio``, or the largest."""
    return next((each for each in allowed if each >= ratio), allowed[-1])


def _recent(values: Sequence[float]) -> float:
    return median_low(values[-ROUNDS_LOOKED_AT:])


REASON, EXPECTED = "reason", "predicted_exchange_s"


def decision_metrics(ratios: Mapping[str, Ratios]) -> Metrics:
    """Return every party's reason, as ``reason/PARTY/link: 1``, and the expected seconds of an exchange."""
    reasons = {f"{REASON}/{party}/{each.reason}": 1.0 for party, each in ratios.items() if each.reason}
    expected = {f"{EXPECTED}/{party}": each.exchange_s for party, each in ratios.items() if each.exchange_s is not None}
    return reasons | expected


def tell_unmet(ratios: Mapping[str, Ratios], told: Sequence[str]) -> list[str]:
    """Warn of parties that cannot meet the controller's goal, except those ``told`` of before; return all of them."""
    unmet = [party for party, each in ratios.items() if each.reason == "bound" and party not in told]
    if unmet:
        warnings.warn(
            f"lightweighting: {', '.join(unmet)} cannot meet the controller's goal within alpha_max and beta_max; "
            "the closest allowed ratios are used",
            stacklevel=2,
        )
    return [*told, *unmet]


def past_ratios(config: ExperimentConfig, run_dir: Path) -> dict[int, dict[str, Ratios]]:
    """Return the ratios that a controller chose earlier, by round, from the rows of the run's folder."""
    rows = whole_rows(run_dir) if config.lightweighting.measures else []
    return {int(row["round"]): {party: _decision(row, party) for party in config.parties} for row in rows}


def _decision(row: Row, party: str) -> Ratios:
    reasons = [tag.rpartition("/")[2] for tag in row if tag.startswith(f"{REASON}/{party}/")]
    alpha, beta = row.get(f"alpha/{party}", 0.0), row.get(f"beta/{party}", 0.0)  # none if the party never reported
    return Ratios(alpha, beta, "".join(reasons), row.get(f"{EXPECTED}/{party}"))
