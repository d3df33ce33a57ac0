"""One client's local training in one round: the task that an algorithm sets, and its result.

All algorithms here share one form of local training, plain SGD on

    F_i(y) + <shift, y> + pull / 2 |y - start|^2

where F_i is the client's loss; most algorithms neither shift nor pull. An engine
therefore knows no algorithm, and an algorithm no engine.

Shapes: P entries of the weights, Q of the statistics (``flat.py``), N rows of a client, B of a batch, S steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vfl.base.random import generator


@dataclass(frozen=True, eq=False)
class LocalTask:
    """Local training that one client is asked for."""

    client: int
    rows_N: Tensor
    """All rows of the training data that are the client's, int64 [N]."""
    start_P: Tensor
    """Weights at the start; ``pull`` draws back to them."""
    statistics_Q: Tensor
    batches: Sequence[Tensor]
    """Rows of the training data, int64 [B] each; one SGD step per batch."""
    learning_rate: float
    pull: float = 0.0
    shift_P: Tensor | None = None
    """Vector added to every gradient."""
    full_gradient: Literal["start", "end"] | None = None
    """Point at which the gradient over all of the client's rows is also computed: ``start_P``, or the weights at the
    end; None: at neither."""
    gradient_norms: bool = False
    """Compute the squared norm of every step's gradient as well."""
    seed: int = 0
    """Seed of random layers such as Dropout, for this client and round."""

    @property
    def samples(self) -> int:
        """Samples that pass forward and backward in the steps, counted each time."""
        return sum(len(rows_B) for rows_B in self.batches)

    def result(
        self,
        delta_P: Tensor,
        statistics_Q: Tensor,
        loss: Tensor,
        full_gradient_P: Tensor | None,
        squared_norms_S: Tensor | None,
    ) -> "LocalResult":
        """Return the result of the task as requested."""
        return LocalResult(
            self.client,
            delta_P,
            statistics_Q,
            self.learning_rate,
            len(self.batches),
            self.samples,
            loss,
            full_gradient_P,
            squared_norms_S,
        )


@dataclass(frozen=True, eq=False)
class LocalResult:
    """Result of one client's local training."""

    client: int
    delta_P: Tensor
    """Weights at the end minus weights at the start."""
    statistics_Q: Tensor
    learning_rate: float
    steps: int
    samples: int
    """Samples that passed forward and backward, counted each time."""
    loss: Tensor
    """Mean over the steps of the batch losses, scalar; without shift and pull."""
    full_gradient_P: Tensor | None = None
    """Gradient of F_i over all of the client's rows."""
    squared_norms_S: Tensor | None = None
    """Squared norm of every step's gradient of F_i."""


Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, labels) of a batch -> its mean loss."""


def client_name(client: int) -> str:
    """Return the name under which a client's costs, state and random streams are kept."""
    return f"client_{client + 1}"


def client_number(name: str) -> int:
    """Return the number of the client with this ``client_name``."""
    return int(name.removeprefix("client_")) - 1


def local_batches(
    rows_N: Tensor, batch_size: int, steps: int, *, seed: int, round_index: int, client: int
) -> list[Tensor]:
    """Return ``steps`` batches of a client's rows from shuffled passes, whose last batch may be short.

    If one batch contains all rows, their order is kept: full-batch steps then have the same bits however they are
    requested.
    """
    if len(rows_N) <= batch_size:
        return [rows_N] * steps
    # By the client's own stream: its batches do not depend on who else takes part.
    draw = generator(seed, "local_batches", round_index, client_name(client))
    batches: list[Tensor] = []
    while len(batches) < steps:
        order_N = torch.randperm(len(rows_N), generator=draw)
        batches += torch.split(rows_N[order_N], batch_size)
    return batches[:steps]


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Return the number of batches of one pass, including a short last one."""
    return -(-samples // batch_size)


def batch_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of scores [B, C] and classes [B], or of [B, C, T] and [B, T]."""
    return F.cross_entropy(outputs, labels)
