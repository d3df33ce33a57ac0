"""Processes against one, the round trip of a frame over mutual TLS, and what beta and staleness save on a slow link."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch

from scripts.lab.benchmarks.bare_echo import bare_echoing
from scripts.lab.benchmarks.paired import Options, Raw, Requirement, Result, interleave, required_ratio
from scripts.lab.benchmarks.shaped_link import Shape
from scripts.lab.benchmarks.vertical import WARM_UP, Lightweight, draw, make_config
from scripts.lab.benchmarks.workbench import Federation, echoing
from vfl.sweeps.pool import cores

LAYOUT = "float32 NCHW"
FRAME_BYTES = 1_000_000
ROUND_TRIPS = 20
"""Round trips per value."""
SLOW = Shape(rate_bits_per_s=20e6, delay_s=0.025)
"""Link with 20 Mbit/s and a ping of 50 ms, for each party and direction separately."""
TRIPS = 2
"""One-way trips that an exchange waits for: EMBED, which brings the previous update, and its reply."""
SLOW_WIDTH = 0.1
"""Width of the models on the slow link: with little computation, the link decides."""
BETAS = (0.0, 0.4, 0.8, 0.95)
EXCHANGES = 12
"""Exchanges of a timed round with staleness, whose beginning and end are included."""


def benchmark_processes(options: Options) -> list[Result]:
    """Measure processes, round trips, beta and staleness."""
    against_one = [_against_one(options, labels) for labels in ("shared", "server")]
    return [*against_one, _round_trip(options), *_slow(options), _ahead(options)]


def _against_one(options: Options, labels: str) -> Result:
    threads = options.threads or torch.get_num_threads()
    config = make_config(options, LAYOUT, labels)
    each = config.model_copy(update={"threads": max(1, threads // len(config.parties))})
    subject = Lightweight(config, draw(config))
    with Federation(each) as federation:
        sides: dict[str, Callable[[], None]] = {
            "one": _with_threads(threads, subject.exchange),
            "five": _with_threads(each.threads or 1, federation.exchange),
        }
        subject.next_round()
        federation.next_round()
        raw = interleave(sides, options.pairs, WARM_UP)
    torch.set_num_threads(threads)
    return Result(
        f"one exchange in five processes ({each.threads} thread each) against one process ({threads} threads), "
        f"{cores()} cores for all",
        f"labels {labels}",
        raw,
        ("five", "one"),
        requirement=required_ratio(raw, ("five", "one"), "<=", 1.10),
    )


def _round_trip(options: Options) -> Result:
    config = make_config(options, LAYOUT)
    frame, empty = os.urandom(FRAME_BYTES), b""
    with echoing(config) as echo, bare_echoing(config) as bare:
        raw = interleave(
            {
                "1 MB": _repeat(lambda: echo(frame)),
                "1 MB by gRPC alone": lambda: bare(frame, ROUND_TRIPS),
                "0 MB": _repeat(lambda: echo(empty)),
            },
            options.pairs,
            WARM_UP,
        )
    per_trip: Raw = {side: [value / ROUND_TRIPS for value in values] for side, values in raw.items()}
    return Result(
        "round trip to another process, mutual TLS 1.3 on loopback",
        "there and back",
        per_trip,
        ("1 MB", "1 MB by gRPC alone"),
        requirement=Requirement(1000 * median(per_trip["1 MB"]), "<=", 5.0, " ms"),
    )


def _slow(options: Options) -> list[Result]:
    config = make_config(_narrow(options, options.pairs), LAYOUT, beta=dict(enumerate(BETAS)))
    results: list[Result] = []
    dense: dict[str, float] = {}
    dense_s: list[float] = []
    with Federation(config, SLOW) as slow, Federation(config) as fast:
        for beta in BETAS:
            slow.next_round()
            fast.next_round()
            before = _bytes(slow)
            raw = interleave({"in all": slow.exchange, "on loopback": fast.exchange}, options.pairs, WARM_UP)
            link_s = median(one - other for one, other in zip(*raw.values(), strict=True))
            details = {
                "MB": (_bytes(slow) - before) / (options.pairs + WARM_UP) / 1e6,
                "link_ms": 1000 * link_s,
                "link_less_pings_ms": 1000 * (link_s - TRIPS * SLOW.delay_s),
            }
            dense, dense_s = dense or details, dense_s or raw["in all"]
            for name in ("MB", "link_less_pings_ms"):
                details[f"{name.removesuffix('_ms')}_to_beta_0"] = details[name] / dense[name]
            results.append(
                Result(
                    f"one exchange over links of 20 Mbit/s and a ping of 50 ms, labels shared, VGG16 of width "
                    f"{SLOW_WIDTH:g}; link: in all, less the same exchange on loopback; its pings: "
                    f"{TRIPS} ways of {1000 * SLOW.delay_s:g} ms",
                    f"beta {beta:g}",
                    raw | {"beta 0": dense_s},
                    ("in all", "beta 0"),
                    details=details,
                )
            )
    return results


def _ahead(options: Options) -> Result:
    """Time whole rounds, which begin and end with nothing under way: an exchange also works for later ones."""
    made = make_config(_narrow(options, EXCHANGES - 2 * WARM_UP), LAYOUT)
    rounds = options.pairs + WARM_UP  # parties agree to no more
    config, stale = (
        made.model_copy(update={"training": made.training.model_copy(update={"rounds": rounds, "staleness": ahead})})
        for ahead in (0, 1)
    )
    with Federation(config, SLOW) as waiting, Federation(stale, SLOW) as ahead, Federation(config) as loopback:
        sides = {"staleness 1": ahead, "staleness 0": waiting, "on loopback": loopback}
        raw: Raw = {name: [] for name in sides}
        for pair in range(-WARM_UP, options.pairs):
            for name, federation in sides.items():
                exchange_s = _exchange_s(federation)
                if pair >= 0:
                    raw[name].append(exchange_s)
        costs = waiting.server.ledger.costs[config.parties[0]]
    frames = costs.uplink_bytes["embedding"] + costs.downlink_bytes["embedding"]
    link_s = 8 * frames / (EXCHANGES * (options.pairs + WARM_UP)) / SLOW.rate_bits_per_s + TRIPS * SLOW.delay_s
    loopback_s = median(raw["on loopback"])
    return Result(
        f"one of the {EXCHANGES} exchanges of a round over links of 20 Mbit/s and a ping of 50 ms, labels shared, "
        f"VGG16 of width {SLOW_WIDTH:g}; link: a party's bytes both ways and a ping; target: of the longer of link and "
        "loopback",
        "beta 0",
        raw,
        ("staleness 1", "staleness 0"),
        details={"link_ms": 1000 * link_s, "link_and_loopback_ms": 1000 * (link_s + loopback_s)},
        requirement=Requirement(median(raw["staleness 1"]) / max(link_s, loopback_s), "<=", 1.10),
    )


def _exchange_s(federation: Federation) -> float:
    """Return the mean seconds of the exchanges of a whole round, from the first order to the last report."""
    federation.round_index += 1
    server, round_index = federation.server, federation.round_index
    server.start_round(round_index)
    started_s = time.perf_counter()
    for exchange in range(server.exchanges.steps):
        server.exchanges.run(exchange)
    server.end_round()
    return (time.perf_counter() - started_s) / server.exchanges.steps


def _narrow(options: Options, pairs: int) -> Options:
    """Return options with narrow models, for the slow link."""
    return replace(options, pairs=pairs, threads=1, width=SLOW_WIDTH)


def _bytes(federation: Federation) -> float:
    costs = federation.server.ledger.costs.values()
    return float(sum(each.training_bytes("uplink") + each.training_bytes("downlink") for each in costs))


def _with_threads(threads: int, step: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        torch.set_num_threads(threads)
        step()

    return run


def _repeat(step: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(ROUND_TRIPS):
            step()

    return run
