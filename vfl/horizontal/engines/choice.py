"""Which engine computes a run's local training."""

from collections.abc import Callable

from torch import Tensor, nn

from vfl.config import ConfigError, ExperimentConfig
from vfl.horizontal.engines.batched import BatchedEngine
from vfl.horizontal.engines.distributed import DistributedEngine
from vfl.horizontal.engines.sequential import Engine, SequentialEngine
from vfl.horizontal.flat import FlatModel
from vfl.runtime import Runtime
from vfl.workers import Alone, Workers


def build_engine(
    config: ExperimentConfig,
    model: FlatModel,
    features: Tensor,
    labels: Tensor,
    runtime: Runtime,
    on_client: Callable[[int, int], None],
    workers: Alone | None,
) -> Engine:
    """Build the engine that ``horizontal.engine`` names, or the one that is faster for the model and device.

    Raises ConfigError where the batched engine is asked for and cannot be had.
    """
    optimizer = config.training.optimizer
    sequential = SequentialEngine(model, features, labels, optimizer, runtime, on_client=on_client)
    if isinstance(workers, Workers):
        return DistributedEngine(sequential, model, workers)
    named = config.horizontal.engine
    if named == "sequential" or (named == "auto" and not batching_pays(model, runtime)):
        return sequential
    try:
        return BatchedEngine(model, features, labels, optimizer, runtime, on_client=on_client)
    except ConfigError:
        if named == "batched":
            raise
        return sequential


def batching_pays(model: FlatModel, runtime: Runtime) -> bool:
    """Return whether stacking is the faster form: on a GPU, and on the CPU for models without convolutions.

    The CPU's convolution of many clients is slower than one after the other.
    """
    return runtime.device.type == "cuda" or not any(isinstance(each, nn.Conv2d) for each in model.module.modules())
