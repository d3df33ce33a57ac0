"""Building a horizontal experiment from its configuration."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vfl.base.macs import count_macs
from vfl.base.modules import weights_digest
from vfl.base.random import seeded
from vfl.config import ConfigError
from vfl.data.samples import Dataset
from vfl.horizontal.algorithm import FederatedAlgorithm, Federation
from vfl.horizontal.asynchronous import AsynchronousTrainer
from vfl.horizontal.client_states import InMemory, OnDisk
from vfl.horizontal.components import ALGORITHMS, CLASSIFIERS
from vfl.horizontal.config import HorizontalExperiment
from vfl.horizontal.data.partition import SamplePartition
from vfl.horizontal.devices import Devices
from vfl.horizontal.engines.batched import BatchedEngine
from vfl.horizontal.engines.distributed import DistributedEngine
from vfl.horizontal.engines.sequential import Engine, SequentialEngine
from vfl.horizontal.flat import FlatModel, message_bytes
from vfl.horizontal.fleet import Fleet
from vfl.horizontal.trainer import Evaluator, SynchronousTrainer
from vfl.models.features import ClassifierSpec
from vfl.runs.runtime import Runtime, use_threads_for
from vfl.runs.torchrun_group import SingleProcess, Workers


def assemble(
    config: HorizontalExperiment,
    data: Dataset,
    partition: SamplePartition,
    runtime: Runtime,
    run_dir: Path,
    workers: SingleProcess,
    on_client: Callable[[int, int], None] = lambda done, total: None,
) -> SynchronousTrainer | AsynchronousTrainer:
    """Build the server and its clients over samples that are loaded and split.

    ``run_dir`` holds client state with ``horizontal.client_state: disk``; ``workers`` share the clients; ``on_client``
    is called with (clients done, clients of the round) as they complete.
    """
    assert data.train.labels is not None
    assert data.test.labels is not None
    features, labels = data.train.features.to(runtime.device), data.train.labels.to(runtime.device)
    spec = ClassifierSpec(tuple(features.shape[1:]), len(data.classes), tuple(labels.shape[1:]))
    # On the CPU, whatever the device: the same seed gives the same weights everywhere.
    with seeded(config.seed, "init"):
        module: nn.Module = CLASSIFIERS.make(config.models.classifier.kind, spec, of=nn.Module)
    macs_per_sample = count_macs(module, data.train.features[:1])
    model = FlatModel(runtime.place(module))
    samples_N = partition.sizes
    algorithm = build_algorithm(config, samples_N, model)
    size = max(samples_N) if algorithm.one_step_full_batch else config.training.batch_size
    _warn_of_lone_samples(partition, size, module, features[:1])
    engine = build_engine(config, model, features, labels, runtime, workers, on_client)
    at_once = config.horizontal.clients_per_round if isinstance(engine, BatchedEngine) else 1
    use_threads_for(config, at_once * macs_per_sample)
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
    workers.must_agree_in(digest)
    return server(config, algorithm, fleet, devices, evaluator, digest)


def build_engine(
    config: HorizontalExperiment,
    model: FlatModel,
    features: Tensor,
    labels: Tensor,
    runtime: Runtime,
    workers: SingleProcess,
    on_client: Callable[[int, int], None],
) -> Engine:
    """Build the engine that ``horizontal.engine`` names; auto chooses the faster one for the model and device.

    Raises ConfigError if the batched engine is named and cannot compute the model.
    """
    optimizer = config.training.optimizer
    sequential = SequentialEngine(model, features, labels, optimizer, runtime, on_client=on_client)
    if isinstance(workers, Workers):
        return DistributedEngine(sequential, model, workers)
    engine = config.horizontal.engine
    if engine == "sequential" or (engine == "auto" and not _batching_pays(model, runtime)):
        return sequential
    try:
        return BatchedEngine(model, features, labels, optimizer, runtime, on_client=on_client)
    except ConfigError:  # "auto" takes the engine that works; the reason matters only if one was named
        if engine == "batched":
            raise
        return sequential


def _batching_pays(model: FlatModel, runtime: Runtime) -> bool:
    """Return whether stacking is faster: on a GPU, and on the CPU for models without convolutions.

    On the CPU, a convolution of many clients at once is slower than one client after the other.
    """
    return runtime.device.type == "cuda" or not any(isinstance(each, nn.Conv2d) for each in model.module.modules())


def build_algorithm(
    config: HorizontalExperiment,
    samples_N: Sequence[int],
    model: FlatModel,
    kind: type[FederatedAlgorithm[Any]] | None = None,
) -> FederatedAlgorithm[Any]:
    """Build the algorithm of ``horizontal.algorithm``, or ``kind`` with its settings, for given sample counts."""
    training, horizontal = config.training, config.horizontal
    federation = Federation(horizontal, training.optimizer, training.batch_size, config.seed, samples_N, model)
    return (kind or ALGORITHMS.load(horizontal.algorithm, _is_algorithm))(horizontal.own, federation)


def _warn_of_lone_samples(partition: SamplePartition, size: int, module: nn.Module, sample: Tensor) -> None:
    """Warn of a client one of whose batches of ``size`` has a single sample, if the model cannot be trained on that."""
    clients = zip(partition.names, partition.sizes, strict=True)
    name, samples = next(((name, each) for name, each in clients if (each - 1) % size == 0), ("", 0))
    if not name:
        return
    buffers = [buffer.clone() for buffer in module.buffers()]  # statistics, which a pass in training moves
    try:
        with seeded(0, "lone sample"), torch.no_grad():
            module.train()(sample)
    except ValueError as error:  # BatchNorm's: one value has no variance
        why = f"on which models.classifier cannot be trained ({error}), so the run ends when it meets that batch"
        if samples == 1:
            warnings.warn(f"{name} has one sample, {why}; give it more, or use GroupNorm", stacklevel=2)
        else:
            problem = f"batches of {size} leave a last one of one sample"
            text = f"{name} has {samples} samples: {problem}, {why}; change training.batch_size, or use GroupNorm"
            warnings.warn(text, stacklevel=2)
    finally:
        for buffer, before in zip(module.buffers(), buffers, strict=True):
            buffer.copy_(before)


def _is_algorithm(component: object) -> bool:
    return isinstance(component, type) and issubclass(component, FederatedAlgorithm)


def _data_digest(data: Dataset, partition: SamplePartition) -> str:
    tensors: dict[str, Tensor] = {"test": data.test.features, "train": data.train.features}
    tensors |= {f"rows_{number}": rows for number, rows in enumerate(partition.rows)}
    for name, samples in (("train_labels", data.train), ("test_labels", data.test)):
        assert samples.labels is not None
        tensors[name] = samples.labels
    return weights_digest(tensors)
