"""The exchanges of a round, as the server runs them: orders go out, embeddings come back, the head takes its steps.

Shapes: B batch, N training samples, D width of one embedding.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parties.joint_model import Ask
from vfl.config import ExperimentConfig
from vfl.costs import Direction
from vfl.vertical.batches import batch_rows, steps_in_round
from vfl.vertical.booking import dense_frames
from vfl.vertical.embeddings import EmbeddingReceiver
from vfl.vertical.head import HeadTrainer
from vfl.vertical.labels import Batch, ServerProtocol
from vfl.vertical.link import PartyLink
from vfl.vertical.orders import Order, orders_of
from vfl.vertical.presence import Presence, Share
from vfl.wire.control import Report
from vfl.wire.messages import Buffer, Kind, Message, MessageError, Part, PartKind


class Exchanges:
    """Lines 3 to 18 of Algorithm 1, one exchange at a time.

    Args:
        links: ways to the parties, in the order in which their embeddings are concatenated.
        receivers: decode each party's embeddings, in the same order.
        trainer: the head model.
        protocol: the server's side of the label protocol.
        labels_N: labels of the training samples.
        config: the experiment.
        presence: who takes part in which batch.
        ask: how parties are asked.
        take_report: reads and checks a party's report.
    """

    def __init__(
        self,
        links: Sequence[PartyLink],
        receivers: Sequence[EmbeddingReceiver],
        trainer: HeadTrainer,
        protocol: ServerProtocol,
        labels_N: Tensor,
        config: ExperimentConfig,
        presence: Presence,
        ask: Ask,
        take_report: Callable[[PartyLink, Message], Report],
    ) -> None:
        self.links = links
        self.receivers = receivers
        self.trainer = trainer
        self.protocol = protocol
        self.labels_N = labels_N.to(trainer.runtime.device)
        self.config = config
        self.presence = presence
        self.ask = ask
        self.take_report = take_report
        self.steps = steps_in_round(config.training, len(labels_N))
        """Exchanges of a round."""
        self.orders = orders_of(self.steps, config.training.staleness)
        """Of every round."""
        self.round_index = -1
        self.rows: list[Tensor] = []
        """Of each exchange of the present round, [B]."""
        self.shares: list[list[Share]] = []
        """The parties' parts in each exchange of the present round."""
        self.losses: list[Tensor] = []
        """Of the present round, at the start of each exchange."""
        self.under_way = deque[list[Callable[[], Any]]]()
        """What waits for the parties' replies, by order, the oldest first."""

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
        if exchange == 0:
            for order in self.orders[:after]:
                self._order(order, [()] * len(self.links))
        rows_B, device = self.rows[exchange], self.trainer.runtime.device
        frames, sent = zip(*self._replies(), strict=True)
        embeddings = [embedding_BD.to(device) for embedding_BD in sent]
        batch = Batch(rows_B, self.labels_N[rows_B.to(device)], frames, embeddings, self.shares[exchange])
        updates, losses = self.protocol.begin(self.trainer, batch)
        self._order(self.orders[exchange + after], updates)
        steps_left = self.config.training.local_iterations - len(losses)
        self.losses.append([*losses, *self.trainer.steps(embeddings, batch.labels_B, steps_left)][0])

    def end_round(self) -> list[Report]:
        """Return the parties' reports: nothing is under way then."""
        for _ in range(self.config.training.staleness):
            self._replies()  # to what brought an update alone
        return self._replies()

    def dense_frames(self, party: str, direction: Direction, message: Message) -> Iterator[int]:
        """Return the sizes of a training message's frames if they were dense; what comes down is of an update."""
        down = direction == "downlink"
        order = self.orders[-1 if message.kind is Kind.END_ROUND else message.exchange]
        exchange = order.brings if down else order.exchange
        assert exchange is not None, "frames come down with an update"
        forwarded = down and self.config.training.labels == "shared"
        samples_K = [share.count for share in self.shares[exchange]]
        yield from dense_frames(self.receivers, samples_K, party, forwarded=forwarded)

    def _order(self, order: Order, updates: Sequence[tuple[Part, ...]]) -> None:
        """Send an order to all parties, to each with its parts of the update that it brings."""
        self.under_way.append(
            [
                self.ask(link, Message(order.kind, self.round_index, order.exchange, parts), take)
                for link, parts, take in zip(self.links, updates, self._takes(order), strict=True)
            ]
        )

    def _takes(self, order: Order) -> Sequence[Callable[[Message], Any]]:
        """Return what is made of each party's reply to an order."""
        if order.kind is Kind.UPDATE:
            return [take_nothing] * len(self.links)
        if order.kind is Kind.END_ROUND:
            return [partial(self.take_report, link) for link in self.links]
        return [partial(self._receive, order.exchange, place) for place in range(len(self.links))]

    def _replies(self) -> list[Any]:
        """Return what is taken of the replies to the oldest order."""
        # One at a time: decoded while the other parties still compute.
        return [reply() for reply in self.under_way.popleft()]

    def _receive(self, exchange: int, place: int, reply: Message) -> tuple[Buffer, Tensor]:
        """Return the frame of an embedding, to be forwarded as it came, and what it holds, as [B, D]."""
        rows_B, shares = self.rows[exchange], self.shares[exchange]
        if self.links[place].absent:
            shares[place] = Share.of(torch.zeros_like(shares[place].present_B))
        frame, share = reply.only(PartKind.EMBEDDING), shares[place]
        if bool(share.count) != bool(len(frame)):
            raise MessageError(f"a frame of {len(frame)} bytes came for {share.count} samples")
        return frame, self.receivers[place].receive_share(frame, rows_B, share, self.trainer.missing)


def take_nothing(reply: Message) -> None:
    """Nothing is in the reply."""
