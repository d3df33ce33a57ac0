"""What a party's owner and the server learn of a round's work: an observer of what `FeatureParty` computes."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from vfl.lightweighting.sparsify import omega
from vfl.runtime import Runtime

BACKWARD_FORWARDS = 2
"""A backward pass costs two forwards: the gradients of the inputs and of the weights."""


@dataclass(eq=False)
class RoundMeter:
    """Counts multiply-accumulates (macs), seconds and the errors that lightweighting makes, of one round."""

    runtime: Runtime
    train_macs: int = 0
    unpruned_train_macs: int = 0
    train_time_s: float = 0.0
    omega: float = 0.0
    """Sum over the round's exchanges."""
    psi: float = 0.0

    @contextmanager
    def training(self) -> Generator[None]:
        """Count the seconds of what is done as training."""
        self.runtime.synchronize()
        started_s = time.perf_counter()
        yield
        self.runtime.synchronize()
        self.train_time_s += time.perf_counter() - started_s

    @contextmanager
    def not_training(self) -> Generator[None]:
        """Leave out something within training: the next rounds will not have it."""
        started_s = time.perf_counter()
        yield
        self.runtime.synchronize()
        self.train_time_s -= time.perf_counter() - started_s

    def forward(self, macs: int, samples: int) -> None:
        """Take note of a forward pass, of so many macs a sample."""
        self.train_macs += macs * samples

    def backward(self, macs: int, samples: int) -> None:
        """Take note of a backward pass."""
        self.train_macs += BACKWARD_FORWARDS * macs * samples

    def updated(self, unpruned_macs: int, samples: int, iterations: int) -> None:
        """Take note of an exchange's local iterations, which the unpruned model would have taken as well."""
        self.unpruned_train_macs += (1 + BACKWARD_FORWARDS) * iterations * unpruned_macs * samples

    def sent(self, dense_nD: Tensor, sent_nD: Tensor) -> None:
        """Take note of what a batch's embeddings were and what was sent of them."""
        self.omega += omega(dense_nD, sent_nD)
