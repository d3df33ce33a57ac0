"""LVFL in one process against the bare PyTorch loop on the same split model: throughput, codec share, memory.

The bare loop is ``scripts.lab.plain_training.JointTrainer``.
"""

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from statistics import median
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from scripts.lab.benchmarks.memory import Memory, compare_memory, peak_bytes
from scripts.lab.benchmarks.paired import Options, Requirement, Result, interleave, ratios, required_ratio
from scripts.lab.benchmarks.report import describe_machine
from scripts.lab.plain_training import JointTrainer
from vfl.base.random import generator, seeded
from vfl.config import ExperimentConfig, parse_config
from vfl.core.build import (
    TrainingLabels,
    build_feature_model,
    build_head,
    build_head_server,
    build_party,
    build_roster,
    model_spec,
)
from vfl.core.local import links_to
from vfl.core.presence import batch_rows
from vfl.core.server import HeadServer
from vfl.core.tasks import Classification
from vfl.data.samples import Labels, Samples
from vfl.data.source import AsItIs, Prepared
from vfl.models.features import Features
from vfl.runs.runtime import start_runtime

WARM_UP = 2
SIDE = 16
"""Pixels of a quadrant's side."""
CLASSES = 10
BATCHES = 39
"""Batches in the random training set: 39 of 256 are the paper's 10000 images."""
BETAS = (0.0, 0.5, 0.9)
MEMORY_STEPS = 5

Layout = Literal["float32 NCHW", "bfloat16 channels_last"]
LAYOUTS: tuple[Layout, ...] = ("float32 NCHW", "bfloat16 channels_last")
LABELS = {"labels shared, replay": "shared", "labels server": "server"}
THROUGHPUT = "throughput: one exchange (lvfl) against one step (bare), E = 1"


class Drawn(NamedTuple):
    """Random data of all parties, on which both sides of a comparison train."""

    parts: list[Prepared]
    labels: TrainingLabels


class Bare:
    """The bare loop."""

    def __init__(self, config: ExperimentConfig, drawn: Drawn) -> None:
        runtime, settings, labels = start_runtime(config), config.models.feature, drawn.labels
        with seeded(config.seed, "init"):
            specs = [model_spec(settings, part.preparation.features, config.models) for part in drawn.parts]
            models = [build_feature_model(settings.kind, spec) for spec in specs]
        head = build_head(config, labels, runtime).head
        self.trainer = JointTrainer(models, head, labels.task, config.training.optimizer, runtime)
        self.features = [part.train.features for part in drawn.parts]
        self.labels_N = labels.labels_N
        samples, size = len(self.labels_N), config.training.batch_size
        self.rows = cycle(batch_rows(config.seed, 0, samples // size, samples, size))

    def step(self) -> None:
        """Take one step."""
        self.trainer.step(self.features, self.labels_N, next(self.rows))


class Stepped:
    """A head server within a training, in rounds whose exchanges are run and timed one at a time."""

    config: ExperimentConfig
    server: HeadServer
    round_index = -1
    done = 0
    """Exchanges of the present round."""

    def next_round(self) -> None:
        """End the present round, begin the next one, which assigns its beta, and warm up."""
        if self.round_index >= 0:
            while self.done < self.server.exchanges.steps:
                self.exchange()
            self.server.end_round()
        self.round_index += 1
        self.server.start_round(self.round_index)
        self.done = 0
        for _ in range(WARM_UP):
            self.exchange()

    def exchange(self) -> None:
        """Run the next exchange of the round."""
        self.server.exchanges.run(self.done)
        self.done += 1


class Lightweight(Stepped):
    """Head server and parties in this process."""

    def __init__(self, config: ExperimentConfig, drawn: Drawn) -> None:
        self.config = config
        runtime, labels = start_runtime(config), drawn.labels
        replicated = labels if config.training.labels == "shared" else None
        self.parties = [
            build_party(name, part, replicated, config, runtime)
            for name, part in zip(config.parties, drawn.parts, strict=True)
        ]
        test = Labels(drawn.parts[0].train.ids, labels.labels_N)
        roster = build_roster(links_to(self.parties), labels, config)
        self.server = build_head_server(roster, labels, test, config, runtime)

    def embeddings(self) -> tuple[list[Tensor], Tensor]:
        """Return the parties' present embeddings of a batch, and its rows."""
        rows_B = self.server.exchanges.rows[0]
        with torch.no_grad():
            embeddings = [
                party.runtime.forward(party.model, *party.batch(party.train, rows_B)) for party in self.parties
            ]
        return embeddings, rows_B

    def transmit(self, embeddings: Sequence[Tensor], rows_B: Tensor) -> None:
        """Sparsify, encode and decode as often as an exchange with shared labels does.

        The server decodes all K frames, and each of the K parties the K - 1 others.
        """
        frames = [
            party.sender.send(embedding_BD, rows_B, party.beta)[0]
            for party, embedding_BD in zip(self.parties, embeddings, strict=True)
        ]
        for _ in self.parties:
            for party, frame in zip(self.server.roster, frames, strict=True):
                party.receiver.receive(frame, rows_B)


def benchmark_vertical(options: Options) -> list[Result]:
    """Measure throughput, the gain of bfloat16, the codec's share and the peak memory."""
    return [
        *(
            _throughput(options, f"{layout}, {labels}", layout, layout, LABELS[labels])
            for layout in LAYOUTS
            for labels in LABELS
        ),
        _bfloat16_gain(options),
        *(result for layout in LAYOUTS for result in _codec_share(options, layout)),
        *(_memory(options, layout) for layout in LAYOUTS),
    ]


def make_config(options: Options, layout: Layout, labels: str = "shared", **lightweighting: Any) -> ExperimentConfig:
    """Return the paper's setting with the command line's sizes."""
    return parse_config(
        {
            "name": "benchmark",
            "threads": options.threads,
            "precision": layout.split()[0],
            "channels_last": layout.endswith("channels_last"),
            "models": {"feature": {"embedding_size": options.embedding_size, "width": options.width}},
            "training": {
                "steps_per_round": options.pairs + 2 * WARM_UP,  # the round's own warm-up, and that of the pairs
                "batch_size": options.batch_size,
                "labels": labels,
                "optimizer": {"learning_rate": 0.001},  # random labels must not diverge
            },
            "lightweighting": lightweighting,
        }
    )


def random_data(config: ExperimentConfig) -> tuple[list[Tensor], Tensor]:
    """Return standardised-looking images [N, 3, 16, 16] of each party, and labels [N]."""
    samples = BATCHES * config.training.batch_size
    stream = generator(config.seed, "benchmark")
    images = [torch.randn(samples, 3, SIDE, SIDE, generator=stream) for _ in config.parties]
    return images, torch.randint(CLASSES, (samples,), generator=stream)


def draw(config: ExperimentConfig) -> Drawn:
    """Return ``random_data`` in the form that both sides take."""
    images, labels_N = random_data(config)
    ids_N, as_it_is = torch.arange(len(labels_N)), AsItIs(Features("images", (3, SIDE, SIDE)))
    parts = [Prepared(as_it_is, samples, samples) for samples in (Samples(ids_N, part) for part in images)]
    return Drawn(parts, TrainingLabels(labels_N, Classification(CLASSES)))


def _throughput(options: Options, case: str, ours: Layout, bare: Layout, labels: str) -> Result:
    config = make_config(options, ours, labels)
    drawn = draw(config)
    yardstick, subject = Bare(make_config(options, bare), drawn), Lightweight(config, drawn)
    subject.next_round()
    raw = interleave({"bare": yardstick.step, "lvfl": subject.exchange}, options.pairs, WARM_UP)
    ratio_of = ("bare", "lvfl")
    return Result(THROUGHPUT, case, raw, ratio_of, requirement=required_ratio(raw, ratio_of, ">=", 0.97))


def _bfloat16_gain(options: Options) -> Result:
    result = _throughput(options, "labels shared, replay", "bfloat16 channels_last", "float32 NCHW", "shared")
    excuse = "" if describe_machine()["avx512_bf16"] else "this CPU has no AVX512-BF16"
    return Result(
        "bfloat16 channels_last (lvfl) against float32 NCHW (bare)",
        result.case,
        result.raw,
        result.ratio_of,
        requirement=Requirement(median(result.ratios), ">=", 1.6, excuse=excuse),
    )


def _codec_share(options: Options, layout: Layout) -> list[Result]:
    config = make_config(options, layout, beta=dict(enumerate(BETAS)))
    subject = Lightweight(config, draw(config))
    results: list[Result] = []
    for beta in BETAS:
        subject.next_round()
        embeddings, rows_B = subject.embeddings()
        raw = interleave(
            {"codec": lambda: subject.transmit(embeddings, rows_B), "exchange": subject.exchange},  # noqa: B023
            options.pairs,
            WARM_UP,
        )
        share_percent = 100 * median(ratios(raw, ("codec", "exchange")))
        results.append(
            Result(
                "share of an exchange (labels shared) in sparsify, encode and decode",
                f"{layout}, beta {beta:g}",
                raw,
                ("codec", "exchange"),
                requirement=Requirement(share_percent, "<=", 3.0, "%"),
            )
        )
    return results


def _memory(options: Options, layout: Layout) -> Result:
    measures = {"bare": _memory_of_bare, "lvfl": _memory_of_lvfl}
    return compare_memory(
        f"peak resident memory of a process that takes {MEMORY_STEPS} steps",
        f"{layout}, labels shared, replay",
        {side: partial(measure, make_config(options, layout)) for side, measure in measures.items()},
        ("lvfl", "bare"),
        1.3,
    )


def _memory_of_bare(config: ExperimentConfig) -> Memory:
    imported_bytes = peak_bytes()
    bare = Bare(config, draw(config))
    for _ in range(MEMORY_STEPS):
        bare.step()
    return Memory(imported_bytes, peak_bytes())


def _memory_of_lvfl(config: ExperimentConfig) -> Memory:
    imported_bytes = peak_bytes()
    subject = Lightweight(config, draw(config))
    subject.next_round()  # whose warm-up are steps
    for _ in range(MEMORY_STEPS - WARM_UP):
        subject.exchange()
    return Memory(imported_bytes, peak_bytes())
