"""Tables of the costs and savings of alpha and beta for each party, before training."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from rich.table import Table

from vfl.base.costs import amount, duration, savings
from vfl.base.macs import count_macs
from vfl.base.modules import copy_model
from vfl.compression.refit import RefitCount
from vfl.config.devices import DeviceConfig
from vfl.config.schedules import schedule_of, value_at
from vfl.console import numbers_table
from vfl.core.augmentation import resize_samples
from vfl.core.batch_statistics import embed_still
from vfl.core.costs.controllers import add_resolutions, follow_schedules
from vfl.core.costs.forecast import ALPHAS, Forecast, Ratios
from vfl.core.costs.ledger import Cost
from vfl.core.embeddings import dense_size
from vfl.core.finished_model import REFIT_SAMPLES
from vfl.core.own_classifier import classifier_frame, classifier_of
from vfl.core.party import FeatureParty
from vfl.core.server import HeadServer
from vfl.messages.messages import PART_BYTES

TIMED_PASSES = 3
"""Passes that measure this machine's speed; the fastest counts."""
TIMED_EXCHANGES = 3
HEADINGS = ("ratio", "MACs", "saved", "params", "computing", "sent up", "come down", "saved", "under way")


def plan_tables(server: HeadServer, parties: Sequence[FeatureParty]) -> Iterator[Table]:
    """Yield a table for each group of parties with equal costs, then the run's total with its own schedule.

    Seconds are those of ``simulation``; for a party without a speed there, those of this machine, measured with the
    first such party.
    """
    forecast = server.price_list.forecast
    rows: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    own_speed = cache(measured_macs_per_s)
    for party in parties:
        device = server.config.simulation.of(party.name)
        if device.macs_per_s is None:
            device = device.model_copy(update={"macs_per_s": own_speed(parties[0])})
        rows.setdefault(tuple(_ratio_rows(forecast, party.name, device)), []).append(party.name)
    for lines, names in rows.items():
        headings = HEADINGS if any(line[-1] for line in lines) else HEADINGS[:-1]  # no link is described
        table = numbers_table(f"{', '.join(names)}: an exchange, by ratio (alpha = beta)", headings)
        for line in lines:
            table.add_row(*line[: len(headings)])
        yield table
    for party in parties:
        if whole := party.pruner.whole_macs:
            table = numbers_table(
                f"{party.name}: layers that no alpha makes smaller", ("layer", "MACs", "of the model")
            )
            for layer, macs in whole.items():
                table.add_row(layer, amount(macs), f"{macs / party.unpruned_macs:.1%}")
            yield table
    yield _total_table(server, forecast, parties)


def planned_rounds(
    server: HeadServer, forecast: Forecast, parties: Sequence[FeatureParty]
) -> Iterator[dict[str, Cost]]:
    """Yield each round's cost to every party with the configuration's own ratios."""
    ratios = server.config.lightweighting
    refits = {party.name: planned_refits(party) for party in parties}
    assign = follow_schedules(ratios.alpha, ratios.beta, forecast.macs)
    before = dict.fromkeys(forecast.macs, Ratios())
    classifiers, meeting = classifier_bytes(server), 0
    for round_index in range(server.config.training.rounds):
        now = {
            name: assigned._replace(alpha=max(assigned.alpha, before[name].alpha))  # nothing is un-pruned
            for name, assigned in add_resolutions(assign(round_index, ()), ratios, round_index).items()
        }
        local = round_index < server.config.training.local_rounds
        costs = {name: forecast.alone(name, now[name]) for name in now} if local else forecast.round(now, before)
        if local and round_index == meeting:
            meeting = server.meeting_after(round_index)
            costs = {name: cost._replace(uplink_bytes=classifiers[name]) for name, cost in costs.items()}
        yield {name: cost._replace(macs=cost.macs + refits[name].get(round_index, 0)) for name, cost in costs.items()}
        before = now


def classifier_bytes(server: HeadServer) -> dict[str, int]:
    """Return the bytes of each party's classifier as it travels after rounds alone; none without such rounds."""
    if not server.config.training.local_rounds:
        return {}
    names, head = server.roster.names, server.trainer.head
    return {name: PART_BYTES + len(classifier_frame(classifier_of(head, place))) for place, name in enumerate(names)}


def planned_refits(party: FeatureParty) -> dict[int, int]:
    """Return the multiply-accumulates of refitting a party's model, by the round that prunes it."""
    ratios, refits = party.config.lightweighting, dict[int, int]()
    if not ratios.pruning.refit:
        return refits
    # In one call, so that the pruner's model is the copy.
    model, pruner = copy_model((party.model, party.pruner))
    held_N = party.data.train.held_rows()
    one, rows = party.data.train.take(held_N[:1]), min(REFIT_SAMPLES, len(held_N))
    for round_index in range(party.config.training.rounds):
        alpha = value_at(schedule_of(ratios.alpha, party.name), round_index)
        if alpha <= pruner.alpha_max:
            continue
        size = value_at(ratios.resolution_of(party.name), round_index)
        samples = one if size == 1 else resize_samples(party.name, party.data, one, size)
        example = party.batch(samples, torch.tensor([0]))
        embed_one = partial(embed_still, model, example, party.runtime)
        count = RefitCount(embed_one, rows * count_macs(model, *example), rows)
        if pruner.prune_to(alpha, refit=count):
            refits[round_index] = count.macs
    return refits


def measured_macs_per_s(party: FeatureParty) -> float:
    """Return the multiply-accumulates per second of training a party's model on this machine, without changing it."""
    rows_B = torch.arange(min(party.config.training.batch_size, len(party.train)))
    inputs = party.batch(party.train, rows_B)
    fastest_s = float("inf")
    for _ in range(TIMED_PASSES):
        started_s = time.perf_counter()
        party.runtime.forward(party.model, *inputs).sum().backward()  # pyright: ignore[reportUnknownMemberType]  # unannotated
        party.runtime.synchronize()
        fastest_s = min(fastest_s, time.perf_counter() - started_s)
    return len(rows_B) * (3 * party.macs - party.skipped_macs) / fastest_s


def _ratio_rows(forecast: Forecast, name: str, device: DeviceConfig) -> Iterator[tuple[str, ...]]:
    """Yield a row per ratio, which the other parties have too."""
    one = replace(forecast, work=replace(forecast.work, exchanges=1), head_bytes=0)
    costs = {each: one.cost(name, Ratios(each, each), dict.fromkeys(forecast.macs, each)) for each in ALPHAS}
    dense = costs[0.0]
    for ratio, cost in costs.items():
        under_way_s = device.latency_s + device.uplink_s(0, cost.uplink_bytes)
        under_way_s += device.downlink_s(0, cost.downlink_bytes)
        total_bytes, dense_bytes = cost.uplink_bytes + cost.downlink_bytes, dense.uplink_bytes + dense.downlink_bytes
        yield (
            f"{ratio:g}",
            amount(forecast.macs[name][ratio]),
            f"{savings(cost.macs, dense.macs):.0%}",
            amount(forecast.parameters[name][ratio]),
            f"{device.compute_s(0, cost.macs):.3g} s",
            f"{amount(cost.uplink_bytes)}B",
            f"{amount(cost.downlink_bytes)}B",
            f"{savings(total_bytes, dense_bytes):.0%}",
            f"{under_way_s:.3g} s" if under_way_s else "",
        )


def _total_table(server: HeadServer, forecast: Forecast, parties: Sequence[FeatureParty]) -> Table:
    """Return the whole run's costs with its own ratios, a row per party, and what they save."""
    rounds, dense = [*planned_rounds(server, forecast, parties)], dict.fromkeys(forecast.macs, Ratios())
    unlightened = _in_float32(server, forecast).round(dense, dense)
    local = min(server.config.training.local_rounds, len(rounds))
    title = f"the whole run as configured: {len(rounds)} rounds of {server.exchanges.steps} exchanges"
    table = numbers_table(title, ("party", "MACs", "saved", "sent up", "come down", "saved"))
    totals: list[Cost] = []
    for name in forecast.macs:
        spent = Cost(*(sum(values) for values in zip(*(costs[name] for costs in rounds), strict=True)))
        macs, down, up = unlightened[name]
        alone_up = sum(costs[name].uplink_bytes for costs in rounds[:local])
        unlightened_cost = Cost(len(rounds) * macs, (len(rounds) - local) * down, (len(rounds) - local) * up + alone_up)
        table.add_row(name, *_spent_cells(spent, unlightened_cost))
        totals += [spent, unlightened_cost]
    table.add_section()
    spent, unlightened_cost = (Cost(*map(sum, zip(*each, strict=True))) for each in (totals[::2], totals[1::2]))
    table.add_row("all", *_spent_cells(spent, unlightened_cost))
    return table


def _in_float32(server: HeadServer, forecast: Forecast) -> Forecast:
    """Return the forecast with all values in float32, as the ledger counts a run without lightweighting."""
    widths = {party.name: party.receiver.width for party in server.roster}

    def frame(name: str, beta: float = 0.0) -> int:
        return PART_BYTES + dense_size(round(forecast.rows[name]), widths[name])

    answer = forecast.answer_bytes if forecast.forwarded else frame
    return replace(forecast, frame_bytes=frame, answer_bytes=answer)


def _spent_cells(spent: Cost, unlightened: Cost) -> tuple[str, ...]:
    """Return the cells of a cost, beside that of the same run without lightweighting."""
    total_bytes, dense_bytes = (each.uplink_bytes + each.downlink_bytes for each in (spent, unlightened))
    return (
        amount(spent.macs),
        f"{savings(spent.macs, unlightened.macs):.0%}",
        f"{amount(spent.uplink_bytes)}B",
        f"{amount(spent.downlink_bytes)}B",
        f"{savings(total_bytes, dense_bytes):.0%}",
    )


def measured_time(server: HeadServer) -> str:
    """Train a few exchanges of full images, and estimate how long the complete run takes here. Changes the models."""
    server.lightweighting = server.lightweighting.model_copy(update={"resolution": 1.0})
    server.start_round(0)
    exchanges, rounds = server.exchanges, server.config.training.rounds
    took_s: list[float] = []
    for exchange in range(min(1 + TIMED_EXCHANGES, exchanges.steps)):  # the first warms up
        started_s = time.perf_counter()
        exchanges.run(exchange)
        took_s.append(time.perf_counter() - started_s)
    whole_s = rounds * exchanges.steps * min(took_s)
    return (
        f"the whole run takes about {duration(whole_s)} on this machine, less what pruning and smaller images save "
        f"and without its evaluations: {rounds} rounds of {exchanges.steps} exchanges, of which {len(took_s)} were "
        "measured now"
    )
