"""Forward passes of a party's training batches, whatever is left of them, with a random stream for each.

Shapes: D embedding width, n the samples of a batch in which the party takes part.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vfl.random import seeded
from vfl.runtime import Runtime
from vfl.vertical.batch_statistics import batch_norms
from vfl.vertical.team import Single

OWN: Mapping[str, Tensor] = {}
"""In the place of copied weights: the model's own."""


class ForwardPass(NamedTuple):
    """Embeddings with their autograd graph."""

    embedding_nD: Tensor
    """Fresh and unsparsified."""
    weights: Mapping[str, Tensor]
    """Copies of the model's parameters to which the graph belongs, by name; or OWN."""


@dataclass
class PendingExchange:
    """What stays between sending an embedding and the update that answers it, with a later order."""

    exchange: int
    inputs: tuple[Tensor, ...]
    forward: ForwardPass | None
    """The first local iteration's; None: it is of the model before it was pruned."""
    sent_nD: Tensor
    """As the others received it."""


@dataclass(eq=False)
class ForwardPasses:
    """Embeds the batches of a round with a model in training mode."""

    name: str
    """The party's: of its random streams."""
    model: nn.Module
    width: int
    """D"""
    seed: int
    runtime: Runtime
    team: Single
    """The party's processes, which share a batch."""
    round_index: int = field(default=-1, init=False)
    done: int = field(default=0, init=False)
    """In this round: each draws from a stream of its own."""
    draws: bool = field(default=False, init=False)
    """Whether the model draws random numbers (Dropout), as the round's first pass shows."""

    def start_round(self, round_index: int) -> None:
        """Begin a round's passes."""
        self.round_index, self.done, self.draws = round_index, 0, False
        self.model.train()

    def copied_weights(self) -> Mapping[str, Tensor]:
        """Return copies of the present weights, which later updates do not change."""
        weights = self.model.named_parameters()
        return {name: weight.detach().clone().requires_grad_(weight.requires_grad) for name, weight in weights}

    def embed(self, inputs: tuple[Tensor, ...], weights: Mapping[str, Tensor]) -> ForwardPass:
        """Embed a batch of which any number of rows is left, 0 and 1 as well, with the model's weights or copies."""
        samples = len(inputs[0])
        if samples == 0:
            return ForwardPass(torch.empty(0, self.width), OWN)
        # A row alone has no variance: it is normalised with the running statistics, which it does not move.
        frozen = batch_norms(self.model).values() if samples == 1 else ()
        for norm in frozen:
            norm.eval()
        # Nor may other batches move them before its backward pass.
        statistics = {name: buffer.clone() for name, buffer in self.model.named_buffers()} if frozen else {}
        kept = {**weights, **statistics}

        def call(*batch: Tensor) -> Tensor:
            return functional_call(self.model, kept, batch)

        # Where nothing is replaced without it: it looks through the whole model, as long as a small one's pass.
        with self._stream() as drew:
            embedding_nD = self.team.embed(self.model, call if kept else self.model, inputs, self.runtime)
            self.draws |= drew()
        self.done += 1
        for norm in frozen:
            norm.train()
        return ForwardPass(embedding_nD, weights)

    def _stream(self) -> AbstractContextManager[Callable[[], bool]]:
        """Seed what the next pass draws; a model that draws nothing does not keep others from their own passes."""
        if self.done and not self.draws:
            return nullcontext(lambda: False)
        return seeded(self.seed, "forward", self.round_index, f"{self.name} {self.done}")
