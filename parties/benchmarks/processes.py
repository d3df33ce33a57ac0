"""Processes against one process, the round trip of a frame over mutual TLS, and what beta saves on a slow link."""

import os
from collections.abc import Callable
from statistics import median

import torch

from parties.benchmarks.bare_echo import bare_echoing
from parties.benchmarks.vertical import WARM_UP, Lightweight, make_config
from parties.benchmarks.workbench import Federation, echoing
from vfl.studies.benchmarks.paired import Options, Raw, Requirement, Result, interleave, ratios
from vfl.studies.benchmarks.shaped_link import Shape

LAYOUT = "float32 NCHW"
FRAME_BYTES = 1_000_000
ROUND_TRIPS = 20
"""In one value."""
SLOW = Shape(rate_bits_per_s=20e6, delay_s=0.025)
"""20 Mbit/s and a ping of 50 ms, each party and direction of its own."""
TRIPS = 2
"""One way each, that an exchange waits for: EMBED, which brings the update before, and its reply."""
SLOW_WIDTH = 0.1
"""Width of the models on the slow link: little compute, so that the link decides."""
BETAS = (0.0, 0.4, 0.8, 0.95)


def benchmark_processes(options: Options) -> list[Result]:
    """Measure all three."""
    return [*(_against_one(options, labels) for labels in ("shared", "server")), _round_trip(options), *_slow(options)]


def _against_one(options: Options, labels: str) -> Result:
    threads = options.threads or torch.get_num_threads()
    config = make_config(options, LAYOUT, labels)
    each = config.model_copy(update={"threads": max(1, threads // len(config.parties))})
    subject = Lightweight(config)
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
        f"{len(os.sched_getaffinity(0))} cores for all",
        f"labels {labels}",
        raw,
        ("five", "one"),
        requirement=Requirement(median(ratios(raw, ("five", "one"))), "<=", 1.10),
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
    narrow = Options(
        pairs=options.pairs,
        threads=1,
        batch_size=options.batch_size,
        width=SLOW_WIDTH,
        embedding_size=options.embedding_size,
    )
    config = make_config(narrow, LAYOUT, beta=dict(enumerate(BETAS)))
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


def _bytes(federation: Federation) -> float:
    costs = federation.server.costs.values()
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
