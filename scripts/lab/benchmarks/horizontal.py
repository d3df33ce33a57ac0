"""A round of horizontal learning against a bare loop written by hand: throughput, and memory against clients.

Random data of MNIST's shape.
"""

from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.lab.benchmarks.memory import Memory, compare_memory, peak_bytes
from scripts.lab.benchmarks.paired import Options, Result, interleave, required_ratio
from vfl.base.random import generator, seeded
from vfl.config import parse_experiment
from vfl.data.samples import Dataset, Samples
from vfl.horizontal.build import assemble
from vfl.horizontal.components import CLASSIFIERS
from vfl.horizontal.config import HorizontalExperiment
from vfl.horizontal.data.partition import SamplePartition
from vfl.horizontal.trainer import SynchronousTrainer
from vfl.models.features import ClassifierSpec
from vfl.runs.runtime import start_runtime
from vfl.runs.torchrun_group import SingleProcess

WARM_UP = 1
SHAPE = (1, 28, 28)
CLASSES = 10
PER_ROUND = 10
BATCH = 10
LEARNING_RATE = 0.01
MEMORY_CLIENTS = (100, 3500)
MEMORY_ROUNDS = 2

EngineName = Literal["sequential", "batched"]


@dataclass(frozen=True)
class Case:
    """A setting in which a bare loop is to be matched or beaten: one epoch of 10 clients per round, batches of 10."""

    model: str
    clients: int
    samples: int
    """Samples per client."""
    engine: EngineName
    target: float
    rounds: int
    """Rounds per measured value; short rounds are measured several at a time."""


CASES = (
    Case("cnn_mcmahan", 100, 600, "sequential", 0.97, rounds=1),
    Case("logistic", 1000, 60, "batched", 1.5, rounds=20),
    Case("mlp", 1000, 60, "batched", 1.3, rounds=10),
)
MEMORY = Case("cnn_mcmahan", 100, 60, "sequential", 1.5, rounds=MEMORY_ROUNDS)


class Bare:
    """FedAvg as one would write it for a single experiment."""

    def __init__(self, case: Case) -> None:
        self.features, self.labels = random_data(case.clients * case.samples)
        self.rows = torch.split(torch.arange(len(self.labels)), case.samples)
        with seeded(0, "init"):
            self.model: nn.Module = CLASSIFIERS.make(case.model, ClassifierSpec(SHAPE, CLASSES))
        self.weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, fused=True)

    def round(self) -> None:
        """Train the clients of one round and average their weights by their samples."""
        chosen = [int(client) for client in torch.randperm(len(self.rows))[:PER_ROUND]]
        whole = sum(len(self.rows[client]) for client in chosen)
        mean = {name: torch.zeros_like(tensor) for name, tensor in self.weights.items()}
        for client in chosen:
            self.model.load_state_dict(self.weights)
            rows_N = self.rows[client]
            for rows_B in torch.split(rows_N[torch.randperm(len(rows_N))], BATCH):
                loss = F.cross_entropy(self.model(self.features[rows_B]), self.labels[rows_B])
                self.optimizer.zero_grad()
                loss.backward()  # pyright: ignore[reportUnknownMemberType]  # unannotated in PyTorch
                self.optimizer.step()  # pyright: ignore[reportUnknownMemberType]  # unannotated in PyTorch
            for name, tensor in self.model.state_dict().items():
                mean[name].add_(tensor, alpha=len(rows_N) / whole)
        self.weights = mean


def benchmark_horizontal(options: Options) -> list[Result]:
    """Measure the throughput of a round in every case, and the peak memory of many clients."""
    return [*(_throughput(case, options) for case in CASES), _memory(options)]


def random_data(samples: int) -> tuple[Tensor, Tensor]:
    """Return standardised-looking images [N, 1, 28, 28] and labels [N]."""
    stream = generator(0, "benchmark")
    return torch.randn(samples, *SHAPE, generator=stream), torch.randint(CLASSES, (samples,), generator=stream)


def build_trainer(case: Case, rows: tuple[Tensor, ...], samples: int, threads: int | None) -> SynchronousTrainer:
    """Build this software's side on ``samples`` random samples."""
    config = parse_experiment(
        {
            "name": "benchmark",
            "mode": "horizontal",
            "threads": threads,
            "models": {"classifier": {"kind": case.model}},
            "training": {"batch_size": BATCH, "optimizer": {"learning_rate": LEARNING_RATE, "momentum": 0}},
            "horizontal": {"clients": len(rows), "clients_per_round": PER_ROUND, "engine": case.engine},
        }
    )
    assert isinstance(config, HorizontalExperiment)
    features, labels = random_data(samples)
    ids = torch.arange(samples)
    data = Dataset(
        Samples(ids, features, labels), Samples(ids[:1], features[:1], labels[:1]), tuple(map(str, range(CLASSES)))
    )
    names = tuple(f"client_{number + 1}" for number in range(len(rows)))
    trainer = assemble(config, data, SamplePartition(names, rows), start_runtime(config), Path(), SingleProcess())
    assert isinstance(trainer, SynchronousTrainer)
    return trainer


def _throughput(case: Case, options: Options) -> Result:
    bare = Bare(case)
    ours = build_trainer(case, bare.rows, len(bare.labels), options.threads)
    numbers = count()

    def bare_rounds() -> None:
        for _ in range(case.rounds):
            bare.round()

    def our_rounds() -> None:
        for _ in range(case.rounds):
            ours.train_round(next(numbers))

    raw = interleave({"bare": bare_rounds, "lvfl": our_rounds}, options.pairs, WARM_UP)
    return Result(
        "a round of FedAvg, 10 clients, one epoch in batches of 10 (lvfl), against a bare loop",
        f"{case.model}, {case.clients} clients x {case.samples}, {case.engine} engine, {case.rounds} rounds",
        raw,
        ("bare", "lvfl"),
        requirement=required_ratio(raw, ("bare", "lvfl"), ">=", case.target),
    )


def _memory(options: Options) -> Result:
    few, many = (f"{clients} clients" for clients in MEMORY_CLIENTS)
    return compare_memory(
        f"peak resident memory of a process that runs {MEMORY_ROUNDS} rounds; all clients draw on the same samples",
        f"{MEMORY.model}, clients x {MEMORY.samples}, 10 per round",
        {f"{clients} clients": partial(measure_memory, clients, options) for clients in MEMORY_CLIENTS},
        (many, few),
        MEMORY.target,
    )


def measure_memory(clients: int, options: Options) -> Memory:
    """Run rounds with ``clients`` clients and return the peak memory."""
    imported_bytes = peak_bytes()
    samples = MEMORY.clients * MEMORY.samples
    parts = torch.split(torch.arange(samples), MEMORY.samples)
    rows = tuple(parts[client % len(parts)].clone() for client in range(clients))
    ours = build_trainer(MEMORY, rows, samples, options.threads)
    for round_index in range(MEMORY_ROUNDS):
        ours.train_round(round_index)
    return Memory(imported_bytes, peak_bytes())
