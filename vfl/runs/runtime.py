"""Device, precision, memory format and threads of computations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from vfl.config import ConfigError, Experiment
from vfl.config.prediction import PredictionConfig
from vfl.config.shared import Computation

E = TypeVar("E", bound=Experiment)
LIGHT_STEP_MACS = 100_000_000
"""Multiply-accumulates up to which a step takes only milliseconds on one core: several threads would mostly wait for
each other, on a busy machine many times as long as the step takes. A convention, not a measured optimum."""


@dataclass(frozen=True)
class Runtime:
    """Device, precision and memory format of one process.

    Attributes:
        device: where models and batches live.
        autocast_dtype: dtype of autocast; None computes in float32.
        channels_last: NHWC memory format for convolution weights and image batches.
    """

    device: torch.device
    autocast_dtype: torch.dtype | None = None
    channels_last: bool = False

    def place(self, module: nn.Module) -> nn.Module:
        """Move a module to this runtime's device and memory format, in place."""
        module.to(self.device)
        if self.channels_last:
            module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # missing in the stub
        return module

    def batch(self, features: Tensor, rows_B: Tensor) -> Tensor:
        """Return the rows of [N, ...] as a batch on the device; images in this runtime's memory format."""
        # The same rows as features[rows_B], in a third of the time: whole rows are copied.
        batch = features.index_select(0, rows_B).to(self.device, non_blocking=True)
        images = self.channels_last and batch.dim() == 4  # the format is one of four dimensions
        return batch.contiguous(memory_format=torch.channels_last) if images else batch

    def synchronize(self) -> None:
        """Wait for queued kernels, so that a clock read now includes their time."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def forward(self, module: Callable[..., Tensor], *inputs: Tensor | Sequence[Tensor]) -> Tensor:
        """Apply a module, or a function of one, in this runtime's precision; the result is float32."""
        if self.autocast_dtype is None:
            return module(*inputs)
        with torch.autocast(self.device.type, self.autocast_dtype):
            return module(*inputs).float()


def start_runtime(config: Computation) -> Runtime:
    """Apply the process-wide settings of an experiment (threads, determinism) and return its runtime.

    Raises ConfigError if the device does not exist.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = torch.device(config.device)
    if device.type == "cuda":
        if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"device: {config.device} is not there; use device=cpu")
        torch.backends.cudnn.benchmark = False  # it may choose other kernels after a resume, and so other bits
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = False  # float32 means float32
    channels_last = isinstance(config, PredictionConfig) and config.channels_last
    return Runtime(device, torch.bfloat16 if config.precision == "bfloat16" else None, channels_last)


def use_threads_for(config: Experiment, macs_per_sample: int) -> None:
    """Compute with one thread where ``threads`` is not set and a step is light, otherwise with as many as before.

    ``macs_per_sample``: of the forward pass of the largest model that this process computes a step at a time.
    """
    step_macs = 3 * config.training.batch_size * macs_per_sample  # a backward pass counts as two
    if config.threads is None and step_macs < LIGHT_STEP_MACS:
        torch.set_num_threads(1)


def with_threads(config: E) -> E:
    """Return the experiment with the number of threads that this process computes with."""
    return config.model_copy(update={"threads": torch.get_num_threads()})
