"""Which engine computes a run's local training."""

from collections.abc import Callable

from torch import Tensor

from vfl.config import ExperimentConfig
from vfl.horizontal.engines.sequential import Engine, SequentialEngine
from vfl.horizontal.flat import FlatModel
from vfl.runtime import Runtime


def build_engine(
    config: ExperimentConfig,
    model: FlatModel,
    features: Tensor,
    labels: Tensor,
    runtime: Runtime,
    on_client: Callable[[int, int], None],
) -> Engine:
    """Build the engine that ``horizontal.engine`` names, or the one that is faster for the model and device."""
    return SequentialEngine(model, features, labels, config.training.optimizer, runtime, on_client=on_client)
