"""Controllers, which choose the ratios: by the configuration's schedules, a deadline, or a package's rule.

A controller is a function of the round and of the costs and seconds of all rounds so far. It keeps no state, so a
resumed run decides as the first one did.

`deadline` takes the weakest lightweighting that meets a goal. Seconds, bytes and multiply-accumulates are those of a
round.

Rates (seconds per multiply-accumulate, and per byte each way) are the median of the last three rounds, or the faster
of two: one odd round has no influence, a change shows after two. Compute rates use only rounds of the present width,
link rates leave out rounds with a pruning. Of the pairs that meet a party's deadline the one with the least weighted
sum is taken (Corollary 1); as the others' embeddings may be a party's bottleneck, with the smallest common beta for
which every party has such a pair. Ratios stay while no party exceeds 1.05 times the deadline and no sum smaller by 0.1
suffices. Alpha rises in steps of 0.1, each a pruning, and never falls. Choices depend on clocks, so a resumed run
repeats those in its rows (``past_ratios``) and makes the others anew.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple, Protocol, runtime_checkable

from vfl.base.errors import ConfigError, nearest_name
from vfl.config import ExperimentConfig
from vfl.config.components import CONTROLLERS
from vfl.config.lightweighting import LightweightingConfig
from vfl.config.schedules import PartySchedule, schedule_of, value_at
from vfl.core.costs.forecast import ALPHAS, BETAS, Forecast, Ratios
from vfl.core.costs.ledger import Cost, Spent, overlap_seconds
from vfl.runs.loop import Metrics
from vfl.runs.run_folder import Row, whole_rows

AUTO = 1.2
"""Factor of the deadline ``auto``: times the seconds of the median party (the faster of two) without lightweighting."""
ROUNDS_LOOKED_AT = 3
"""Rounds over whose rates the median is taken, of two the faster: it ignores one odd round and follows two."""
LATE = 1.05
"""Slack of a deadline, as measured seconds vary."""
WORTH = 0.1
"""Smallest decrease of the weighted sum for which ratios change."""

Reports = Sequence[Mapping[str, Spent]]
"""Costs and seconds of every round so far, by party present."""
Assign = Callable[[int, Reports], Mapping[str, Ratios]]
"""Function that chooses the ratios of a round, by party; a party that is not named is not lightweighted."""
ByParty = Mapping[str, Ratios]


@runtime_checkable
class Lightweighted(Protocol):
    """A training whose ratios can be chosen by another function than the schedules."""

    assign: Assign


def follow_schedules(alpha: PartySchedule, beta: PartySchedule, parties: Iterable[str]) -> Assign:
    """Return the function that looks up the configured ratios for each round."""
    schedules = {party: (schedule_of(alpha, party), schedule_of(beta, party)) for party in parties}
    return lambda round_index, _: {
        party: Ratios(value_at(alpha, round_index), value_at(beta, round_index))
        for party, (alpha, beta) in schedules.items()
    }


def add_resolutions(ratios: Mapping[str, Ratios], config: LightweightingConfig, round_index: int) -> dict[str, Ratios]:
    """Return ratios with the resolutions that the configuration gives for a round."""
    return {
        party: each._replace(resolution=value_at(config.resolution_of(party), round_index))
        for party, each in ratios.items()
    }


def check_ratios(what: str, ratios_by_party: Any, parties: Sequence[str]) -> dict[str, Ratios]:
    """Return the ratios by party from a user's function, which gives each as `Ratios` or (alpha, beta).

    Raises ConfigError, one line that begins with ``what``, for anything else.
    """
    try:
        ratios = {
            party: Ratios(float(a), float(b), str((*why, "")[0])) for party, (a, b, *why) in ratios_by_party.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"{what}: must return {{party: (alpha, beta)}}, returned {ratios_by_party!r}") from None
    for party, each in ratios.items():
        if party not in parties:
            raise ConfigError(f"{what}: no party is called {party!r}{nearest_name(str(party), parties)}")
        for ratio in each[:2]:
            if not 0.0 <= ratio < 1.0:
                raise ConfigError(f"{what}: {ratio} of {party} is outside [0, 1)")
    return ratios


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
class ControllerContext:
    """A controller's inputs: settings, parties and forecast."""

    config: LightweightingConfig
    parties: Sequence[str]
    rounds: int
    """Number of rounds of the run."""
    forecast: Callable[[], Forecast]
    """Returns the cost forecast; the first call in a run asks the parties for their models' costs."""

    def choices(self, party: str, round_index: int, reached: float) -> Choices:
        """Return a party's allowed ratios in a round; its model is pruned to ``reached`` already."""
        config, macs = self.config, self.forecast().macs[party]
        schedules = (config.alpha, config.beta, config.alpha_max, config.beta_max)
        alpha, beta, alpha_max, beta_max = (value_at(schedule_of(each, party), round_index) for each in schedules)
        alphas = [max(alpha, reached)]  # what is pruned stays pruned, also where the schedule would allow less
        for each in ALPHAS:
            # Narrow layers round two ratios to one width: the larger would cost a pruning and spare nothing.
            if alphas[-1] < each <= alpha_max and macs[each] < macs[alphas[-1]]:
                alphas.append(each)
        return Choices(alphas, [beta, *(each for each in BETAS if beta < each <= beta_max)])


def build_controller(context: ControllerContext) -> Assign:
    """Return the configured controller; results of another package's are checked in every round.

    Raises ValueError, one line, for a controller that cannot be used, and later for anything but ratios of parties.
    """
    name = context.config.controller.kind
    assign: Assign = CONTROLLERS.make(name, context)
    if name in CONTROLLERS.built_in:
        return assign
    what = f"controller {name!r}"
    return lambda round_index, reports: check_ratios(what, assign(round_index, tuple(reports)), context.parties)


def fixed(context: ControllerContext) -> Assign:
    """Assign the ratios that the configuration gives for each round."""
    return follow_schedules(context.config.alpha, context.config.beta, context.parties)


class Rates(NamedTuple):
    """Seconds per unit of a party's machine and link, as measured."""

    mac_s: float
    downlink_byte_s: float
    uplink_byte_s: float
    latency_s: float
    ahead: int = 0

    def seconds(self, cost: Cost) -> float:
        """Return the seconds of a round with this cost."""
        return overlap_seconds(
            self.ahead,
            self.mac_s * cost.macs,
            self.downlink_byte_s * cost.downlink_bytes,
            self.uplink_byte_s * cost.uplink_bytes,
            self.latency_s,
        )


@dataclass(frozen=True)
class Goal:
    """A limit on each party's seconds."""

    limit: float
    amounts: Callable[[ByParty], Mapping[str, float]]
    """Seconds for given ratios, by party."""

    def missed(self, ratios: ByParty, slack: float = LATE) -> set[str]:
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


def weight_of(ratios: Mapping[str, Ratios]) -> float:
    """Return the sum of both ratios over the parties, with which Corollary 1's convergence bound grows."""
    return sum(each.alpha + each.beta for each in ratios.values())


def least_pairs(
    forecast: Forecast, rates: Mapping[str, Rates], limit_s: float, choices: Mapping[str, Choices]
) -> dict[str, Ratios]:
    """Return the ratios of smallest weight with which no party exceeds ``limit_s``, if it can be kept.

    Each party's embeddings may be forwarded to all others. So for every possible smallest beta of all parties, each
    party's best pair is found, and the best such set is returned; without forwarded embeddings it is the optimum.
    """
    # 1.0, beyond all that are allowed: each party's strongest. With it every party finds a pair, as the limit can be
    # kept by these (`Goal.possible`): `min` is never of nothing.
    least = (_best_pairs(forecast, rates, limit_s, choices, common) for common in (*BETAS, 1.0))
    return min((pairs for pairs in least if pairs), key=weight_of)


def _best_pairs(
    forecast: Forecast, rates: Mapping[str, Rates], limit_s: float, choices: Mapping[str, Choices], common: float
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
        if (best := min(kept, key=lambda each: each.alpha + each.beta, default=None)) is None:
            return {}
        pairs[name] = best
    return pairs


def settle_ratios(goal: Goal, wanted: ByParty, present: ByParty) -> dict[str, Ratios]:
    """Return ``wanted``, but keep present ratios, of all or some parties, if a change is not worth it.

    So noise in measurements changes nothing.
    """
    late = bool(goal.missed(present))

    def worth_it(before: ByParty, after: ByParty) -> bool:
        # Ratios are decimals: without the last bits of floats 0.95 is more than 0.85 by 0.1, not by 0.0999....
        return round(weight_of(before) - weight_of(after), 9) >= WORTH

    # First all parties together, then one by one: many small gains may be worth it in sum.
    if not late and not worth_it(present, wanted):
        return dict(present)
    chosen = dict(wanted)
    # One party after another, each judged with what was decided for those before: changes that are harmless by
    # themselves may together miss the goal, or give up a sum that is worth it.
    for name in wanted:
        unchanged = chosen | {name: present[name]}
        small = not worth_it({name: present[name]}, {name: wanted[name]}) and not worth_it(unchanged, wanted)
        if small and (late or worth_it(present, unchanged)) and not goal.missed(unchanged):
            chosen = unchanged
    return chosen


def at_least(ratio: float, allowed: Sequence[float]) -> float:
    """Return the smallest allowed ratio that is not below ``ratio``, or the largest."""
    return next((each for each in allowed if each >= ratio), allowed[-1])


def _recent(values: Sequence[float]) -> float:
    return median_low(values[-ROUNDS_LOOKED_AT:])


def deadline(context: ControllerContext) -> Assign:
    """Assign the smallest ratios with which every party keeps ``seconds_per_exchange``."""
    return partial(_in_time, context)


def _in_time(context: ControllerContext, round_index: int, reports: Reports) -> dict[str, Ratios]:
    """Choose the smallest ratios with which each party keeps the deadline; the weakest at first."""
    rounds = {party: [spent[party] for spent in reports if party in spent] for party in context.parties}
    rates = {party: rates_of(each) for party, each in rounds.items() if each}
    present = {party: Ratios(each[-1].alpha, each[-1].beta) if each else Ratios() for party, each in rounds.items()}
    choices = {party: context.choices(party, round_index, each.alpha) for party, each in present.items()}
    if not rates:  # before the first round, or while no party has reported one
        return {party: each.least._replace(reason="held") for party, each in choices.items()}
    forecast, wanted_s = context.forecast(), context.config.seconds_per_exchange
    if isinstance(wanted_s, float):
        limit_s = wanted_s * forecast.work.exchanges
    else:
        limit_s = AUTO * median_low(seconds_of(forecast, rates, dict.fromkeys(context.parties, Ratios())).values())
    goal = Goal(limit_s, partial(seconds_of, forecast, rates))
    possible = goal.possible(choices)
    wanted = least_pairs(forecast, rates, possible.limit, choices)
    chosen = settle_ratios(
        possible, wanted, {party: each.nearest_choice(present[party]) for party, each in choices.items()}
    )
    # By the goal itself, not by the possible limit: a party that misses it has ratios at their bounds.
    missed = goal.missed(chosen)
    costs = forecast.round(chosen, present)
    expected = {party: each.seconds(costs[party]) / forecast.work.exchanges for party, each in rates.items()}
    return {
        party: each._replace(
            reason="bound" if party in missed else _reason(each, present[party], rounds[party]),
            exchange_s=expected.get(party),
        )
        for party, each in chosen.items()
    }


def _reason(ratios: Ratios, present: Ratios, rounds: Sequence[Spent]) -> str:
    """Return ``compute`` if alpha has changed, ``link`` if beta has, ``held`` without a change."""
    if ratios[:2] == present[:2]:
        return "held"
    if ratios.alpha != present.alpha and ratios.beta != present.beta:
        # Of both: the machine of a party that computes for half of its seconds, else the link.
        return "compute" if rounds and 2 * rounds[-1].compute_s >= rounds[-1].seconds else "link"
    return "compute" if ratios.alpha != present.alpha else "link"


REASON, EXPECTED = "reason", "predicted_exchange_s"


def decision_metrics(ratios: Mapping[str, Ratios]) -> Metrics:
    """Return every party's reason, as ``reason/PARTY/link: 1``, and the expected seconds of an exchange."""
    reasons = {f"{REASON}/{party}/{each.reason}": 1.0 for party, each in ratios.items() if each.reason}
    expected = {f"{EXPECTED}/{party}": each.exchange_s for party, each in ratios.items() if each.exchange_s is not None}
    return reasons | expected


def warn_of_unmet(ratios: Mapping[str, Ratios], reported: Sequence[str]) -> list[str]:
    """Warn of parties that cannot meet the controller's goal, except those ``reported`` before; return all of them."""
    unmet = [party for party, each in ratios.items() if each.reason == "bound" and party not in reported]
    if unmet:
        warnings.warn(
            f"lightweighting: {', '.join(unmet)} cannot meet the controller's goal within alpha_max and beta_max; "
            "the closest allowed ratios are used",
            stacklevel=2,
        )
    return [*reported, *unmet]


def past_ratios(config: ExperimentConfig, run_dir: Path) -> dict[int, dict[str, Ratios]]:
    """Return the ratios that a controller chose earlier, by round, from the rows of the run's folder."""
    rows = whole_rows(run_dir) if config.lightweighting.measures else []
    return {int(row["round"]): {party: _decision(row, party) for party in config.parties} for row in rows}


def _decision(row: Row, party: str) -> Ratios:
    reasons = [tag.rpartition("/")[2] for tag in row if tag.startswith(f"{REASON}/{party}/")]
    alpha, beta = row.get(f"alpha/{party}", 0.0), row.get(f"beta/{party}", 0.0)  # none if the party never reported
    return Ratios(alpha, beta, "".join(reasons), row.get(f"{EXPECTED}/{party}"))
