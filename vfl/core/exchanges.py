"""The exchanges of a round at the server: orders go out, embeddings come back, the head takes its steps.

Shapes: B batch, N training samples, D width of one embedding.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vfl.config import ExperimentConfig
from vfl.core.costs.ledger import Workload
from vfl.core.head import HeadTrainer
from vfl.core.label_protocol import Batch, Received, ServerProtocol
from vfl.core.parties import Parties, PendingReply
from vfl.core.presence import Presence, RowMask, batch_rows, steps_in_round
from vfl.core.round_orders import Order, orders_of
from vfl.messages.messages import Message, Part, PartKind


@dataclass(eq=False)
class Exchanges:
    """Training of a split model: lines 3 to 18 of Algorithm 1, one exchange at a time."""

    roster: Parties
    trainer: HeadTrainer
    """The head model."""
    protocol: ServerProtocol
    """The server's side of the label protocol."""
    labels_N: Tensor
    """Labels of the training samples."""
    presence: Presence
    """The parties' participation in all batches."""
    config: ExperimentConfig
    weights_N: Tensor | None = None
    """Weights of the training samples; None: all are alike."""
    round_index: int = field(default=-1, init=False)
    rows: list[Tensor] = field(default_factory=list[Tensor], init=False)
    """Rows [B] of each exchange of the present round."""
    masks: list[list[RowMask]] = field(default_factory=list[list[RowMask]], init=False)
    """The parties' masks of each exchange of the present round."""
    losses: list[Tensor] = field(default_factory=list[Tensor], init=False)
    """Losses of the present round, at the start of each exchange."""
    under_way: deque[list[PendingReply]] = field(default_factory=deque[list[PendingReply]], init=False)
    """Orders sent to all parties, the oldest first."""

    def __post_init__(self) -> None:
        self.labels_N = self.labels_N.to(self.trainer.runtime.device)
        self.steps = steps_in_round(self.config.training, len(self.labels_N))
        """Number of exchanges in a round."""
        self.orders = orders_of(self.steps, self.config.training.staleness)
        """Orders of every round."""
        training = self.config.training
        self.work = Workload(self.steps, training.local_iterations, training.staleness)
        """Every party's work in a round."""

    def start_round(self, round_index: int) -> tuple[list[tuple[Part, ...]], str | None]:
        """Derive the round's batches; return each party's first parts, and theta_0's digest if they contain it."""
        self.round_index = round_index
        self.rows = self.batches(round_index)
        self.masks = self.presence.of_round(round_index, self.rows)
        self.losses = []
        self.under_way.clear()
        self.trainer.start_round(round_index, self.steps)
        return self.protocol.start_round(self.trainer, self.masks)

    def batches(self, round_index: int) -> list[Tensor]:
        """Return the rows [B] of each exchange of a round."""
        return batch_rows(
            self.config.seed, round_index, self.steps, len(self.labels_N), self.config.training.batch_size
        )

    def run(self, exchange: int) -> None:
        """Run the round's next exchange in one round trip: its update travels with the next order.

        The head ends its part of the exchange while the parties compute.
        """
        after = self.work.under_way
        self.trainer.start_exchange(exchange)
        # Staleness s: from here on s + 1 orders are under way; each exchange answers one and sends one.
        if exchange == 0:
            for order in self.orders[:after]:
                self._order(order, [()] * len(self.roster.names))
        rows_B = self.rows[exchange]
        labels_B = self.labels_N[rows_B.to(self.labels_N.device)]
        weights_B = None if self.weights_N is None else self.weights_N[rows_B].to(labels_B.device)
        received = self._receive(exchange)
        batch = Batch(rows_B, labels_B, received, [each.embedding_BD for each in received], weights_B)
        updates, losses = self.protocol.begin(self.trainer, batch)
        self._order(self.orders[exchange + after], updates)
        # Returning gradients took the first step already; with shared labels all are left, while the parties do theirs.
        steps_left = self.config.training.local_iterations - len(losses)
        losses += self.trainer.steps(batch.embeddings, batch.labels_B, steps_left, weights_B)
        self.losses.append(losses[0])  # before any step of this exchange

    def end_round(self) -> list[PendingReply]:
        """Return the requests whose replies are the parties' reports; nothing else is under way then."""
        for _ in range(self.config.training.staleness):
            for asked in self.under_way.popleft():  # replies to orders that only brought an update
                asked.wait()
        return self.under_way.popleft()

    def samples(self) -> dict[str, tuple[int, ...]]:
        """Return the number of samples in which each party took part, by exchange of the round."""
        samples_K = zip(*([mask.count for mask in masks] for masks in self.masks), strict=True)
        return dict(zip(self.roster.names, samples_K, strict=True))

    def _order(self, order: Order, updates: Sequence[tuple[Part, ...]]) -> None:
        """Send an order to all parties, to each with its parts of the update."""
        asked = list[PendingReply]()
        for party, parts in zip(self.roster, updates, strict=True):
            asked.append(party.ask(Message(order.kind, self.round_index, order.exchange, parts)))
        self.under_way.append(asked)

    def _receive(self, exchange: int) -> list[Received]:
        """Return the parties' embeddings of an exchange's batch, from the oldest order."""
        masks = self.masks[exchange]
        # One at a time: decoded while the other parties still compute.
        received: list[Received] = []
        for place, asked in enumerate(self.under_way.popleft()):
            received.append(self._receive_one(asked, self.rows[exchange], masks[place]))
            masks[place] = received[-1].mask  # a party that was lost takes part no longer: reports are checked by it
        return received

    def _receive_one(self, asked: PendingReply, rows_B: Tensor, mask: RowMask) -> Received:
        receiver, missing, device = asked.party.receiver, self.trainer.missing, self.trainer.runtime.device

        def decode(reply: Message) -> Received:
            frame = reply.part(PartKind.EMBEDDING)
            return Received(frame, receiver.receive_part(frame, rows_B, mask, missing).to(device), mask)

        if (received := asked.read(decode)) is not None:
            return received
        # Of an absent party, which takes part in no sample; no gradient is returned to it.
        missing_BD = torch.full((len(rows_B), receiver.width), missing, device=device)
        nobody = RowMask.of(torch.zeros(len(rows_B), dtype=torch.bool))
        return Received(Part(PartKind.EMBEDDING, b""), missing_BD, nobody)
