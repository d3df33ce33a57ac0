"""Savings of pruning in time, against those in multiply-accumulates: one party's training step."""

import copy
from collections.abc import Iterator
from statistics import median

import torch

from scripts.lab.benchmarks.paired import Options, Requirement, Result, interleave, ratios
from vfl.base.macs import count_macs, count_parameters
from vfl.base.random import generator, seeded
from vfl.core.build import build_feature_model
from vfl.models.features import Features, ModelSpec
from vfl.plan.tune import PartyStep
from vfl.runs.runtime import Runtime

WARM_UP = 2
SIDE = 16
"""Pixels of a quadrant's side."""
TIME_OVER_MACS = {0.4: 1.35, 0.6: 1.55}
"""Largest excess of the time ratio over the multiply-accumulate ratio, by alpha."""
ROUND_TO = (None, 8, 16, 32)
RUNTIMES = {
    "float32 NCHW": Runtime(torch.device("cpu")),
    "bfloat16 channels_last": Runtime(torch.device("cpu"), torch.bfloat16, channels_last=True),
}


def benchmark_pruning(options: Options) -> list[Result]:
    """Measure every alpha, rounding of widths and precision."""
    return [
        result
        for layout, runtime in RUNTIMES.items()
        for alpha in TIME_OVER_MACS
        for result in _measure_alpha(options, layout, runtime, alpha)
    ]


def _measure_alpha(options: Options, layout: str, runtime: Runtime, alpha: float) -> Iterator[Result]:
    stream = generator(0, "benchmark", owner="pruning")
    images = torch.randn(options.batch_size, 3, SIDE, SIDE, generator=stream)
    gradient_BD = torch.randn(options.batch_size, options.embedding_size, generator=stream) / options.batch_size
    with seeded(0, "init", owner="pruning"):
        model = build_feature_model(
            "vgg16", ModelSpec(Features("images", (3, SIDE, SIDE)), options.embedding_size, options.width)
        )
    unpruned = PartyStep(copy.deepcopy(model), (images,), gradient_BD, runtime)
    for round_to in ROUND_TO:
        pruned = PartyStep(copy.deepcopy(model), (images,), gradient_BD, runtime)
        pruned()  # gives the optimizer the momentum that the event has to carry
        event_s = pruned.prune(alpha, round_to)
        raw = interleave({"pruned": pruned, "unpruned": unpruned}, options.pairs, WARM_UP)
        ratio_of = ("pruned", "unpruned")
        mac_ratio = count_macs(pruned.model, *pruned.example) / count_macs(unpruned.model, *unpruned.example)
        parameter_ratio = count_parameters(pruned.model) / count_parameters(unpruned.model)
        time_over_macs = median(ratios(raw, ratio_of)) / mac_ratio
        yield Result(
            group=f"alpha {alpha:g}, {layout}",
            case="exact widths" if round_to is None else f"multiples of {round_to}",
            raw=raw,
            ratio_of=ratio_of,
            details={"mac_ratio": mac_ratio, "parameter_ratio": parameter_ratio, "event_s": event_s},
            requirement=Requirement(time_over_macs, "<=", TIME_OVER_MACS[alpha], " x macs"),
        )
