"""A horizontal experiment out of its configuration."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor, nn

from models.features import ClassifierSpec
from vfl.components import ALGORITHMS, CLASSIFIERS
from vfl.config import ExperimentConfig
from vfl.data.horizontal.partition import SamplePartition, partition_samples
from vfl.data.samples import Dataset
from vfl.data.source import open_source, prepare_whole
from vfl.digest import weights_digest
from vfl.horizontal.algorithm import FederatedAlgorithm, Federation
from vfl.horizontal.asynchronous import AsynchronousTrainer
from vfl.horizontal.client_states import InMemory, OnDisk
from vfl.horizontal.devices import Devices
from vfl.horizontal.engines.choice import build_engine
from vfl.horizontal.evaluation import Evaluator
from vfl.horizontal.flat import FlatModel
from vfl.horizontal.fleet import Fleet
from vfl.horizontal.show_split import ShowSplit
from vfl.horizontal.traffic import message_bytes
from vfl.horizontal.trainer import SynchronousTrainer
from vfl.macs import count_macs
from vfl.random import seeded
from vfl.runtime import Runtime
from vfl.workers import Alone


def build_horizontal(
    config: ExperimentConfig,
    runtime: Runtime,
    run_dir: Path,
    console: Console,
    on_client: Callable[[int, int], None] = lambda done, total: None,
    workers: Alone | None = None,
) -> tuple[SynchronousTrainer | AsynchronousTrainer, ShowSplit]:
    """Load the data, split it over the clients, and build the server with all of them, and what shows the split.

    ``run_dir`` is where client state goes with ``horizontal.client_state: disk``; ``on_client`` is called with
    (clients done, clients of the round) as they get ready; ``workers`` share the clients. Raises ValueError for data
    that is not there or does not fit.
    """
    data = load_data(config)
    horizontal = config.horizontal
    partition = partition_samples(horizontal.partition, data.train, data.owners, horizontal.clients, config.seed)
    trainer = assemble(config, data, partition, runtime, run_dir, on_client, workers)
    assert data.train.labels is not None
    return trainer, ShowSplit(partition, data.train.labels, data.classes, run_dir / "split.png", console)


def load_data(config: ExperimentConfig) -> Dataset:
    """Load the samples as a model reads them: images standardised per channel by the training samples."""
    return prepare_whole(open_source(config))


def assemble(
    config: ExperimentConfig,
    data: Dataset,
    partition: SamplePartition,
    runtime: Runtime,
    run_dir: Path,
    on_client: Callable[[int, int], None] = lambda done, total: None,
    workers: Alone | None = None,
) -> SynchronousTrainer | AsynchronousTrainer:
    """Build the server and its clients over samples that are loaded and split."""
    assert data.train.labels is not None
    assert data.test.labels is not None
    features, labels = data.train.features.to(runtime.device), data.train.labels.to(runtime.device)
    spec = ClassifierSpec(tuple(features.shape[1:]), len(data.classes), tuple(labels.shape[1:]))
    with seeded(config.seed, "init"):
        module: nn.Module = CLASSIFIERS.make(config.models.classifier.kind, spec, of=nn.Module)
    macs_per_sample = count_macs(module, data.train.features[:1])
    model = FlatModel(runtime.place(module))
    samples_N = partition.sizes
    algorithm = build_algorithm(config, samples_N, model)
    engine = build_engine(config, model, features, labels, runtime, on_client, workers)
    rows = [rows.to(runtime.device) for rows in partition.rows]
    on_disk = config.horizontal.client_state == "disk"
    states = OnDisk(run_dir / "client_states", config.checkpoint.keep) if on_disk else InMemory()
    fleet = Fleet(config, algorithm, model, engine, rows, partition.names, states, macs_per_sample)
    devices = Devices(
        config.horizontal,
        samples_N,
        config.training.batch_size,
        config.seed,
        (
            message_bytes(config.horizontal, model, algorithm.downloads),
            message_bytes(config.horizontal, model, algorithm.uploads),
        ),
        full_batch=algorithm.one_step_full_batch,
        extra_passes=algorithm.extra_passes,
    )
    evaluator = Evaluator(
        model,
        data.test.features.to(runtime.device),
        data.test.labels.to(runtime.device),
        config.evaluation.batch_size,
        runtime,
        running_statistics=config.horizontal.buffers == "average",
    )
    server = AsynchronousTrainer if algorithm.asynchronous else SynchronousTrainer
    digest = _data_digest(data, partition)
    if workers is not None:
        workers.must_agree_in(digest)
    return server(config, algorithm, fleet, devices, evaluator, digest)


def build_algorithm(
    config: ExperimentConfig,
    samples_N: Sequence[int],
    model: FlatModel,
    kind: type[FederatedAlgorithm[Any]] | None = None,
) -> FederatedAlgorithm[Any]:
    """Build what ``horizontal.algorithm`` names, or ``kind`` with its settings, for so many samples per client."""
    training, horizontal = config.training, config.horizontal
    known = Federation(horizontal, training.optimizer, training.batch_size, config.seed, samples_N, model)
    return (kind or ALGORITHMS.load(horizontal.algorithm))(horizontal.own, known)


def _data_digest(data: Dataset, partition: SamplePartition) -> str:
    tensors: dict[str, Tensor] = {"test": data.test.features, "train": data.train.features}
    tensors |= {f"rows_{number}": rows for number, rows in enumerate(partition.rows)}
    for name, samples in (("train_labels", data.train), ("test_labels", data.test)):
        assert samples.labels is not None
        tensors[name] = samples.labels
    return weights_digest(tensors)
