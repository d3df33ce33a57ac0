"""Meter of a party's work in a round, for its owner and the server: an observer of `FeatureParty`."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from vfl.compression.sparsify import omega
from vfl.runs.runtime import Runtime

BACKWARD_FORWARDS = 2
"""Forward passes that a backward pass counts as: gradients of the inputs and of the weights. That of the lowest layer's
input is counted too, though nobody computes it: a few percent of a small model's training."""


@dataclass(eq=False)
class RoundMeter:
    """Counts the multiply-accumulates (macs), seconds and lightweighting errors of one round."""

    runtime: Runtime
    train_macs: int = 0
    unpruned_train_macs: int = 0
    refit_macs: int = 0
    skipped_macs: int = 0
    unpruned_skipped_macs: int = 0
    train_time_s: float = 0.0
    omega: float = 0.0
    """Sum over the round's exchanges."""
    psi: float = 0.0

    @contextmanager
    def training(self) -> Generator[None]:
        """Count the seconds of the enclosed work as training."""
        self.runtime.synchronize()
        started_s = time.perf_counter()
        yield
        self.runtime.synchronize()
        self.train_time_s += time.perf_counter() - started_s

    @contextmanager
    def not_training(self) -> Generator[None]:
        """Exclude the enclosed work from training: later rounds will not have it."""
        started_s = time.perf_counter()
        yield
        self.runtime.synchronize()
        self.train_time_s -= time.perf_counter() - started_s

    def forward(self, macs: int, samples: int) -> None:
        """Count a forward pass with ``macs`` per sample."""
        self.train_macs += macs * samples

    def backward(self, macs: int, samples: int, skipped_macs: int = 0) -> None:
        """Count a backward pass, of which frozen layers save ``skipped_macs`` per sample."""
        self.train_macs += (BACKWARD_FORWARDS * macs - skipped_macs) * samples
        self.skipped_macs += skipped_macs * samples

    def updated(self, unpruned_macs: int, samples: int, iterations: int, skipped_macs: int = 0) -> None:
        """Count an exchange's local iterations as the unpruned model, with as many frozen layers, would take them."""
        self.unpruned_train_macs += ((1 + BACKWARD_FORWARDS) * unpruned_macs - skipped_macs) * iterations * samples
        self.unpruned_skipped_macs += skipped_macs * iterations * samples

    def sent(self, dense_nD: Tensor, sent_nD: Tensor) -> None:
        """Add the error between a batch's embeddings and those sent."""
        self.omega += omega(dense_nD, sent_nD)
