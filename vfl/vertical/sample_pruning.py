"""Sample pruning: samples whose last loss was low are left out of a round at random, and cost nobody anything.

Of the samples whose last loss is below the mean of all last losses (easy ones), each is left out with a probability,
the share r; those that stay weigh 1 / (1 - r). In the mean over the draws each batch then has the loss and the
gradients of the whole batch.

Source: Qin et al., "InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning", ICLR 2024. There an epoch
has fewer batches; here every batch has fewer samples. So rounds keep their exchanges, and the whole batch's gradient is
met in the mean by each exchange, not only by an epoch.

Shapes: N samples, B batch, n what is left of it.
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
    """What is left of a batch."""

    share: Share
    """Which of its samples."""
    weights_n: Tensor | None
    """Of their losses; None where samples are never left out."""

    def targets(self, task: Task, labels_B: Tensor) -> Targets:
        """Return what the head is to predict of the samples left, given the whole batch's labels."""
        if self.weights_n is None:
            return Targets(labels_B)
        # By the whole batch's total, also where classes have weights: that of the samples left would be biased.
        weights_n = self.weights_n.to(labels_B.device) / task.total_weight(labels_B)
        return Targets(self.share.rows_of(labels_B), weights_n)


@dataclass(frozen=True)
class SamplePruning:
    """The draw of who is left out, which the server and all replicas of the head make alike."""

    share: float
    """r, 0 where no sample is ever left out."""
    seed: int

    def of_round(self, round_index: int, easy: Sequence[Tensor]) -> list[Left]:
        """Return what is left of each of a round's batches, of whose samples some are easy, bool [B]."""
        if not self.share:
            return [Left(Share.of_all(len(easy_B)), None) for easy_B in easy]
        stream = generator(self.seed, "sample_pruning", round_index)
        return [self._of_batch(easy_B, stream) for easy_B in easy]

    def read(self, message: Message, batches: Sequence[Tensor]) -> list[Left]:
        """Return what is left of a round's batches of rows [B] by the bits of `easy_part`, without them all.

        Raises MessageError for more than was agreed.
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
    """Every training sample's loss when it was last trained on, as the server has it."""

    training: TrainingConfig
    samples: int
    losses_N: Tensor = field(init=False)
    """On the CPU; NaN before the first time."""
    trained: int = field(default=0, init=False)
    """Samples of all exchanges so far, without those that were left out."""

    def __post_init__(self) -> None:
        self.losses_N = torch.full((self.samples,), math.nan)

    def easy(self, round_index: int, batches: Sequence[Tensor]) -> list[Tensor]:
        """Return which samples of a round's batches of rows [B] may be left out, bool [B] each."""
        config = self.training.sample_pruning
        if round_index >= config.until * self.training.rounds:
            return nothing_easy(batches)
        mean = self.losses_N.nanmean()
        return [self.losses_N[rows_B] < mean for rows_B in batches]

    def note(self, rows_n: Tensor, losses_n: Tensor) -> None:
        """Take note of the losses of some samples."""
        self.losses_N[rows_n] = losses_n.float().cpu()
        self.trained += len(rows_n)

    def state_dict(self) -> State:
        """Return losses and count, where they decide anything."""
        return {"losses": self.losses_N, "trained": self.trained} if self.training.sample_pruning.share else {}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        if state:
            self.losses_N.copy_(state["losses"])
            self.trained = state["trained"]


def nothing_easy(batches: Sequence[Tensor]) -> list[Tensor]:
    """Return of each batch that no sample of it may be left out."""
    return [torch.zeros(len(rows_B), dtype=torch.bool) for rows_B in batches]


def easy_part(easy: Sequence[Tensor]) -> tuple[Part, ...]:
    """Return a part that says which samples of a round's batches are easy, none where none is."""
    if not any(bool(easy_B.any()) for easy_B in easy):
        return ()
    return (Part(PartKind.PRESENCE, pack([Share.of(easy_B) for easy_B in easy])),)
