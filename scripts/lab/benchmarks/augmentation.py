"""Cost of shifted images: an exchange of a training that shifts every image against one that shifts none."""

from typing import Any

from scripts.lab.benchmarks.paired import Options, Result, interleave, required_ratio
from scripts.lab.benchmarks.vertical import WARM_UP, Lightweight, draw
from vfl.config import parse_config

MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "small CNN, exchanges of 64": (64, {"kind": "cnn", "embedding_size": 64, "width": 0.5}),
    "VGG16 of half width, exchanges of 256": (256, {"kind": "vgg16", "embedding_size": 128, "width": 0.5}),
}
"""Batch size and feature model: that of the frontier's studies, and half of the paper's."""


def benchmark_augmentation(options: Options) -> list[Result]:
    """Measure an exchange of four parties, labels at the server, with and without shifts."""
    return [_shifted(options, case) for case in MODELS]


def _shifted(options: Options, case: str) -> Result:
    batch_size, model = MODELS[case]
    sides = {"none": 0, "shift 2": 2}
    subjects: dict[str, Lightweight] = {}
    for side, shift in sides.items():
        config = parse_config(
            {
                "name": "augmentation",
                "threads": options.threads,
                "data": {"augmentation": {"shift": shift}},
                "models": {"feature": model},
                "training": {
                    "steps_per_round": options.pairs + 2 * WARM_UP,
                    "batch_size": batch_size,
                    "labels": "server",
                    "optimizer": {"learning_rate": 0.001},  # random labels must not diverge
                },
            }
        )
        subjects[side] = Lightweight(config, draw(config))
        subjects[side].next_round()
    raw = interleave({side: subject.exchange for side, subject in subjects.items()}, options.pairs, WARM_UP)
    ratio_of = ("shift 2", "none")
    required = required_ratio(raw, ratio_of, "<=", 1.02)
    return Result("one exchange, its images shifted by up to 2 pixels", case, raw, ratio_of, requirement=required)
