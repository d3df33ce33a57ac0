"""Forward passes of a party's training batches, of any number of rows, each with its own random stream.

Shapes: D embedding width, n the samples of a batch in which the party takes part.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vfl.base.random import seeded
from vfl.core.batch_statistics import batch_norms
from vfl.core.team import Team
from vfl.runs.runtime import Runtime

OWN: Mapping[str, Tensor] = {}
"""Marker for the model's own weights instead of copies."""


class ForwardPass(NamedTuple):
    """Embeddings with their autograd graph."""

    embedding_nD: Tensor
    """Embeddings before sparsification."""
    weights: Mapping[str, Tensor]
    """Copies of the model's parameters to which the graph belongs, by name; or OWN."""


@dataclass
class PendingExchange:
    """An embedding that was sent and whose update has not yet arrived."""

    exchange: int
    inputs: tuple[Tensor, ...]
    forward: ForwardPass | None
    """Pass of the first local iteration; None if the model was pruned since."""
    sent_nD: Tensor
    """Embeddings as the others received them."""


@dataclass(eq=False)
class ForwardPasses:
    """Embeds the batches of a round with a model in training mode."""

    name: str
    """Name of the party, for its random streams."""
    model: nn.Module
    width: int
    """D"""
    seed: int
    runtime: Runtime
    team: Team | None
    """The party's processes, which divide a batch; None if it has one."""
    round_index: int = field(default=-1, init=False)
    done: int = field(default=0, init=False)
    """Passes done in this round; each draws from its own stream."""
    draws: bool = field(default=False, init=False)
    """The model draws random numbers (Dropout), as the round's first pass shows."""

    def start_round(self, round_index: int) -> None:
        """Begin a round's passes."""
        self.round_index, self.done, self.draws = round_index, 0, False
        self.model.train()

    def copied_weights(self) -> Mapping[str, Tensor]:
        """Return copies of the present weights, which later updates do not change."""
        weights = self.model.named_parameters()
        return {name: weight.detach().clone().requires_grad_(weight.requires_grad) for name, weight in weights}

    def embed(self, inputs: tuple[Tensor, ...], weights: Mapping[str, Tensor]) -> ForwardPass:
        """Embed a batch of any number of rows, including 0 and 1, with the model's weights or copies of them."""
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

        # Skipped if nothing is replaced: to walk the modules takes as long as a small model's forward pass.
        with self._stream() as drew:
            model = call if kept else self.model
            if self.team is None:
                embedding_nD = self.runtime.forward(model, *inputs)
            else:
                embedding_nD = self.team.embed(self.model, model, inputs, self.runtime)
            self.draws |= drew()
        self.done += 1
        for norm in frozen:
            norm.train()
        return ForwardPass(embedding_nD, weights)

    def _stream(self) -> AbstractContextManager[Callable[[], bool]]:
        """Return a context that seeds the next pass's draws; without draws it does nothing and blocks nobody."""
        if self.done and not self.draws:
            return nullcontext(lambda: False)
        return seeded(self.seed, "forward", self.round_index, f"{self.name} {self.done}")
