"""Savings by pruning after training: size and onnxruntime time of an exported feature model, beside its MACs."""

import copy
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import torch

from scripts.lab.benchmarks.paired import Options, Result, interleave, ratios
from vfl.base.macs import count_macs, count_parameters
from vfl.base.random import generator, seeded
from vfl.compression.pruning import StructuredPruner
from vfl.core.build import build_feature_model
from vfl.core.export_model import INPUT, OUTPUT, check_tools, export_model, open_onnx
from vfl.models.features import Features, ModelSpec

WARM_UP = 3
SIDE = 16
"""Pixels of a quadrant's side."""
ALPHAS = (0.2, 0.4, 0.6)
ROUNDINGS: tuple[int | None, ...] = (None, 16)
"""Multiples to which widths are rounded; onnxruntime's blocked convolutions need them, exact widths use slower ones."""
BATCHES = (1, 64)


def benchmark_export(options: Options) -> list[Result]:
    """Measure every alpha, rounding and batch size against alpha = 0, each session's threads on cores of their own.

    Raises ConfigError if onnxruntime is not installed.
    """
    check_tools()
    threads = options.threads or 1
    stream = generator(0, "benchmark", owner="export")
    images = torch.randn(max(BATCHES), 3, SIDE, SIDE, generator=stream)
    with seeded(0, "init", owner="export"):
        dense = build_feature_model(
            "vgg16", ModelSpec(Features("images", (3, SIDE, SIDE)), options.embedding_size, options.width)
        ).eval()
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder, on_cores(threads):
        unpruned_bytes = export_model(dense, (images,), Path(folder), "dense").files["dense.onnx"]
        for alpha, round_to in product(ALPHAS, ROUNDINGS):
            model = copy.deepcopy(dense)
            StructuredPruner(model, images[:1], round_to=round_to).prune_to(alpha)
            size = export_model(model, (images,), Path(folder), "pruned").files["pruned.onnx"]
            details = {
                "mac_ratio": count_macs(model, images) / count_macs(dense, images),
                "parameter_ratio": count_parameters(model) / count_parameters(dense),
                "size_ratio": size / unpruned_bytes,
                "pruned_size_bytes": float(size),
            }
            sides = {name: open_onnx(Path(folder) / f"{name}.onnx", threads) for name in ("pruned", "dense")}
            case = f"alpha {alpha:g}, {'exact widths' if round_to is None else f'round_to {round_to}'}"
            for batch in BATCHES:
                raw = interleave(
                    {
                        name: partial(session.run, [OUTPUT], {INPUT: images[:batch].numpy()})
                        for name, session in sides.items()
                    },
                    options.pairs,
                    WARM_UP,
                )
                time_over_macs = median(ratios(raw, ("pruned", "dense"))) / details["mac_ratio"]
                results.append(
                    Result(
                        f"onnxruntime, batch {batch}",
                        case,
                        raw,
                        ("pruned", "dense"),
                        details=details | {"time_over_macs": time_over_macs},
                    )
                )
    return sorted(results, key=lambda result: result.group)


@contextmanager
def on_cores(count: int) -> Generator[None]:
    """Keep this process, with the threads that it starts meanwhile, on the first ``count`` of its cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
