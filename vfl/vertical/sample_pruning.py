"""Sample pruning: samples whose last loss was low are left out of a round at random, and cost no side anything.

Each sample whose last loss is below the mean of all last losses (an easy one) is left out with probability r, the
setting ``share``; the remaining easy ones weigh 1 / (1 - r). In expectation over the draws each batch then has the loss
and the gradients of the whole batch, given the embeddings: BatchNorm makes these depend on which rows are left.

Source: Qin et al., "InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning", ICLR 2024. There an epoch
has fewer batches; here every batch has fewer samples. So rounds keep their exchanges, and each exchange, not only an
epoch, has the whole batch's gradient in expectation.

Shapes: N samples, B batch, n remaining samples of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from vfl.config import TrainingConfig
from vfl.random import generator
from vfl.runs.checkpoint import State
from vfl.vertical.presence import Share, pack, unpack
from vfl.vertical.tasks import Targets, Task
from vfl.wire.messages import Message, MessageError, Part, PartKind


class Left(NamedTuple):
    """Remaining samples of a batch."""

    share: Share
    """The samples that remain, as a share of the batch."""
    weights_n: Tensor | None
    """Weights of their losses; None if samples are never left out."""

    def targets(self, task: Task, labels_B: Tensor) -> Targets:
        """Return the head's targets for the remaining samples, given the whole batch's labels."""
        if self.weights_n is None:
            return Targets(labels_B)
        # By the whole batch's total, also where classes have weights: that of the samples left would be biased.
        weights_n = self.weights_n.to(labels_B.device) / task.total_weight(labels_B)
        return Targets(self.share.rows_of(labels_B), weights_n)


@dataclass(frozen=True)
class SamplePruning:
    """The random choice of samples to leave out, which the server and all replicas of the head make identically."""

    share: float
    """r, 0 if no sample is ever left out."""
    seed: int

    def of_round(self, round_index: int, easy: Sequence[Tensor]) -> list[Left]:
        """Return the remaining samples of each of a round's batches, given masks of easy samples, bool [B]."""
        if not self.share:
            return [Left(Share.of_all(len(easy_B)), None) for easy_B in easy]
        stream = generator(self.seed, "sample_pruning", round_index)
        return [self._of_batch(easy_B, stream) for easy_B in easy]

    def read(self, message: Message, batches: Sequence[Tensor]) -> list[Left]:
        """Return the remaining samples of a round's batches of rows [B], by the bits of `easy_part` if there are any.

        Raises MessageError for bits that were not agreed.
        """
        told = message.payloads(PartKind.PRESENCE)
        if len(told) > bool(self.share):
            raise MessageError(f"samples are left out {len(told)} times, {int(bool(self.share))} agreed")
        easy = [share.present_B for share in unpack(told[0], batches)] if told else nothing_easy(batches)
        return self.of_round(message.round_index, easy)

    def _of_batch(self, easy_B: Tensor, stream: torch.Generator) -> Left:
        stays_B = ~easy_B | (torch.rand(len(easy_B), generator=stream) >= self.share)
        return Left(Share.of(stays_B), torch.where(easy_B, 1 / (1 - self.share), 1.0)[stays_B])


@dataclass(eq=False)
class LastLosses:
    """Every training sample's last loss, as known to the server."""

    training: TrainingConfig
    samples: int
    losses_N: Tensor = field(init=False)
    """float32 [N] on the CPU; NaN for samples not yet trained on."""
    trained: int = field(default=0, init=False)
    """Number of samples in all exchanges so far, without those left out."""

    def __post_init__(self) -> None:
        self.losses_N = torch.full((self.samples,), math.nan)

    def easy(self, round_index: int, batches: Sequence[Tensor]) -> list[Tensor]:
        """Return masks of the samples of a round's batches of rows [B] that may be left out, bool [B] each."""
        config = self.training.sample_pruning
        if round_index >= config.until * self.training.rounds:
            return nothing_easy(batches)
        mean = self.losses_N.nanmean()
        return [self.losses_N[rows_B] < mean for rows_B in batches]

    def note(self, rows_n: Tensor, losses_n: Tensor) -> None:
        """Store the losses of some samples."""
        self.losses_N[rows_n] = losses_n.float().cpu()
        self.trained += len(rows_n)

    def state_dict(self) -> State:
        """Return losses and count; empty if nothing depends on them."""
        return {"losses": self.losses_N, "trained": self.trained} if self.training.sample_pruning.share else {}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        if state:
            self.losses_N.copy_(state["losses"])
            self.trained = state["trained"]


def nothing_easy(batches: Sequence[Tensor]) -> list[Tensor]:
    """Return masks in which no sample is easy."""
    return [torch.zeros(len(rows_B), dtype=torch.bool) for rows_B in batches]


def easy_part(easy: Sequence[Tensor]) -> tuple[Part, ...]:
    """Return a part with the masks of a round's easy samples; empty if there are none."""
    if not any(bool(easy_B.any()) for easy_B in easy):
        return ()
    return (Part(PartKind.PRESENCE, pack([Share.of(easy_B) for easy_B in easy])),)
