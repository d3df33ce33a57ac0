"""Costs of an exchange beside computation: a light model with a wide cut, as in SplitNN's examples.

One party, labels at the server, 64 x 4096 values of 16 bits each way, one thread.
"""

from scripts.lab.benchmarks.light_model import LIGHT, LIGHT_WIDTH
from scripts.lab.benchmarks.paired import Options, Raw, Result, interleave, required_ratio
from scripts.lab.benchmarks.vertical import WARM_UP, Bare, Lightweight, draw
from scripts.lab.benchmarks.workbench import Federation
from vfl.config import ExperimentConfig, parse_config

BATCH_SIZE = 64
MOST = {"one process": 1.4, "processes": 1.9}
"""Largest ratio to the bare loop."""


def benchmark_light(options: Options) -> list[Result]:
    """Measure an exchange of the light case."""
    raw = in_turn(make_config(options), options.pairs, WARM_UP)
    return [
        Result(
            f"one exchange of {BATCH_SIZE} x {LIGHT_WIDTH} values of 16 bits under a model of 0.8 M MACs, one thread",
            side,
            raw,
            (side, "bare"),
            requirement=required_ratio(raw, (side, "bare"), "<=", most),
        )
        for side, most in MOST.items()
    ]


def in_turn(config: ExperimentConfig, pairs: int, warm_up: int) -> Raw:
    """Measure a step of the bare loop, of one process, and of two processes over mutual TLS, in turn."""
    drawn = draw(config)
    bare, one = Bare(config, drawn), Lightweight(config, drawn)
    with Federation(config) as two:
        one.next_round()
        two.next_round()
        sides = {"bare": bare.step, "one process": one.exchange, "processes": two.exchange}
        return interleave(sides, pairs, warm_up)


def make_config(options: Options) -> ExperimentConfig:
    """Return the configuration of the light case."""
    return parse_config(
        {
            "name": "light",
            "threads": 1,
            "data": {"partition": {"rows": 1, "columns": 1}},
            "models": {"feature": {"kind": LIGHT, "embedding_size": LIGHT_WIDTH}, "head": {"hidden": []}},
            "training": {
                "steps_per_round": options.pairs + 2 * WARM_UP,
                "batch_size": BATCH_SIZE,
                "labels": "server",
                "optimizer": {"learning_rate": 0.001},
            },
            "wire": {"values": "float16"},
        }
    )
