"""The exchanges of a round, as the server runs them: orders go out, embeddings come back, the head takes its steps.

Shapes: B batch, N training samples, D width of one embedding.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parties.joint_model import JointModel
from vfl.vertical.batches import batch_rows, steps_in_round
from vfl.vertical.labels import Batch, ServerProtocol
from vfl.vertical.link import PartyLink
from vfl.vertical.orders import Order, orders_of
from vfl.vertical.presence import Presence, Share
from vfl.wire.control import Report
from vfl.wire.messages import Kind, Message, Part, PartKind


@dataclass(eq=False)
class Exchanges:
    """Training of a joint model: lines 3 to 18 of Algorithm 1, one exchange at a time."""

    joint: JointModel
    protocol: ServerProtocol
    """The server's side of the label protocol."""
    labels_N: Tensor
    """Labels of the training samples."""
    presence: Presence
    """Who takes part in which batch."""
    take_report: Callable[[PartyLink, Message], Report]
    """Reads and checks a party's report."""
    round_index: int = field(default=-1, init=False)
    rows: list[Tensor] = field(default_factory=list[Tensor], init=False)
    """Of each exchange of the present round, [B]."""
    shares: list[list[Share]] = field(default_factory=list[list[Share]], init=False)
    """The parties' parts in each exchange of the present round."""
    losses: list[Tensor] = field(default_factory=list[Tensor], init=False)
    """Of the present round, at the start of each exchange."""
    under_way: deque[list[Callable[[], Any]]] = field(default_factory=deque[list[Callable[[], Any]]], init=False)
    """What waits for the parties' replies, by order, the oldest first."""

    def __post_init__(self) -> None:
        self.trainer, self.config = self.joint.trainer, self.joint.config
        self.labels_N = self.labels_N.to(self.trainer.runtime.device)
        self.steps = steps_in_round(self.config.training, len(self.labels_N))
        """Exchanges of a round."""
        self.orders = orders_of(self.steps, self.config.training.staleness)
        """Of every round."""

    def start_round(self, round_index: int) -> tuple[list[tuple[Part, ...]], str | None]:
        """Derive the round's batches; return what each party needs first, and theta_0's digest where it is in it."""
        self.round_index = round_index
        self.rows = self.batches(round_index)
        self.shares = self.presence.of_round(round_index, self.rows)
        self.losses = []
        self.under_way.clear()
        self.trainer.start_round(round_index)
        return self.protocol.start_round(self.trainer, self.shares)

    def batches(self, round_index: int) -> list[Tensor]:
        """Return the rows [B] of each exchange of a round."""
        return batch_rows(
            self.config.seed, round_index, self.steps, len(self.labels_N), self.config.training.batch_size
        )

    def run(self, exchange: int) -> None:
        """Run the round's next exchange in one round trip: its update travels with the next order.

        The head ends its part of the exchange while the parties compute.
        """
        after = self.config.training.staleness + 1
        # Staleness s: s + 1 orders are under way from here on, of which one is answered and one sent in each exchange.
        if exchange == 0:
            for order in self.orders[:after]:
                self._order(order, [()] * len(self.joint.links))
        rows_B, device = self.rows[exchange], self.trainer.runtime.device
        frames, sent = zip(*self._replies(), strict=True)
        embeddings = [embedding_BD.to(device) for embedding_BD in sent]
        batch = Batch(rows_B, self.labels_N[rows_B.to(device)], frames, embeddings, self.shares[exchange])
        updates, losses = self.protocol.begin(self.trainer, batch)
        self._order(self.orders[exchange + after], updates)
        # Returning gradients took the first step already; with shared labels all are left, while the parties do theirs.
        steps_left = self.config.training.local_iterations - len(losses)
        self.losses.append([*losses, *self.trainer.steps(embeddings, batch.labels_B, steps_left)][0])

    def end_round(self) -> list[Report]:
        """Return the parties' reports: nothing is under way then."""
        for _ in range(self.config.training.staleness):
            self._replies()  # to what brought an update alone
        return self._replies()

    def _order(self, order: Order, updates: Sequence[tuple[Part, ...]]) -> None:
        """Send an order to all parties, to each with its parts of the update that it brings."""
        self.under_way.append(
            [
                self.joint.ask(link, Message(order.kind, self.round_index, order.exchange, parts), take)
                for link, parts, take in zip(self.joint.links, updates, self._takes(order), strict=True)
            ]
        )

    def _takes(self, order: Order) -> Sequence[Callable[[Message], Any]]:
        """Return what is made of each party's reply to an order."""
        if order.kind is Kind.UPDATE:
            return [take_nothing] * len(self.joint.links)
        if order.kind is Kind.END_ROUND:
            return [partial(self.take_report, link) for link in self.joint.links]
        return [partial(self._receive, order.exchange, place) for place in range(len(self.joint.links))]

    def _replies(self) -> list[Any]:
        """Return what is taken of the replies to the oldest order."""
        # One at a time: decoded while the other parties still compute.
        return [reply() for reply in self.under_way.popleft()]

    def _receive(self, exchange: int, place: int, reply: Message) -> tuple[Part, Tensor]:
        """Return the frame of an embedding, to be forwarded as it came, and what it holds, as [B, D]."""
        rows_B, shares = self.rows[exchange], self.shares[exchange]
        if self.joint.links[place].absent:
            # Replaced also where gradients are cut by it: nothing goes back to a party that is away.
            shares[place] = Share.of(torch.zeros_like(shares[place].present_B))
        frame = reply.part(PartKind.EMBEDDING)
        return frame, self.joint.receivers[place].receive_part(frame, rows_B, shares[place], self.trainer.missing)


def take_nothing(reply: Message) -> None:
    """Nothing is in the reply."""
