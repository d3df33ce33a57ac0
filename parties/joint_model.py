"""All parties' models and the head as one model, which is evaluated and predicted with; `Exchanges` train it.

Shapes: B batch, M samples, D width of one embedding, C outputs, K parties.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from vfl.config import ExperimentConfig
from vfl.data.files import Labels
from vfl.errors import Diverged
from vfl.loop import Metrics
from vfl.tasks import measure
from vfl.vertical.embeddings import EmbeddingReceiver, decode_finite
from vfl.vertical.head import HeadTrainer
from vfl.vertical.link import PartyLink
from vfl.vertical.presence import Share
from vfl.wire.control import EvaluatedModel, SampleRange
from vfl.wire.messages import Kind, Message, PartKind

T = TypeVar("T")

MOST_TESTED = 1e6
"""Largest entry of a test embedding: from far larger ones the loss would overflow, and nobody would know by whom."""


class Ask(Protocol):
    """Sends a party a message and books it."""

    def __call__(self, link: PartyLink, request: Message, take: Callable[[Message], T], /) -> Callable[[], T]:
        """Return a function that waits for the reply and returns ``take`` of it."""
        ...


@dataclass(frozen=True, eq=False)
class JointModel:
    """A split model and the samples it is asked about: the test samples, or what parties hold in their place.

    Args:
        links: ways to the parties, in the order in which their embeddings are concatenated.
        receivers: decode each party's embeddings, in the same order.
        trainer: the head model.
        config: the experiment.
        samples: their labels [M], and which parties have a row for them.
        ask: how parties are asked.
    """

    links: Sequence[PartyLink]
    receivers: Sequence[EmbeddingReceiver]
    trainer: HeadTrainer
    config: ExperimentConfig
    samples: Labels
    ask: Ask

    def measure(self, model: EvaluatedModel, sets: Sequence[tuple[str, ...]]) -> list[Metrics]:
        """Return metrics and mean loss of all samples for each set of parties, as if the others were away."""
        outputs: list[list[Tensor]] = [[] for _ in sets]
        for start, stop in self.batches():
            there = self.embeddings(start, stop, self.links, model)
            away = {party: self.missing(*embedding_BD.shape) for party, embedding_BD in there.items()}
            for names, batches in zip(sets, outputs, strict=True):
                batches.append(self.outputs(away | {party: there[party] for party in names}))
        labels_M = self.samples.values.to(self.trainer.runtime.device)
        return [measure(self.trainer.task, batches, labels_M) for batches in outputs]

    def batches(self) -> Iterator[tuple[int, int]]:
        """Yield first row and end of the batches in which samples are looked at."""
        samples, size = len(self.samples.values), self.config.evaluation.batch_size
        for start in range(0, samples, size):
            yield start, min(start + size, samples)

    def embeddings(
        self, start: int, stop: int, links: Sequence[PartyLink], model: EvaluatedModel = "finished"
    ) -> dict[str, Tensor]:
        """Ask parties for their embeddings [B, D] of the samples ``start`` to ``stop``; return all by name.

        Those of other parties, and of samples that a party has no row for, are missing.
        """
        message = Message(Kind.EVALUATE, parts=(SampleRange(start=start, stop=stop, model=model).part(),))
        shares = self.shares(start, stop)
        replies = {link.name: self.ask(link, message, partial(self._decode, link, shares[link.name])) for link in links}
        embeddings = {receiver.sender: self.missing(stop - start, receiver.width) for receiver in self.receivers}
        return embeddings | {name: reply() for name, reply in replies.items()}

    def shares(self, start: int, stop: int) -> dict[str, Share]:
        """Return by party in which of the samples ``start`` to ``stop`` it takes part: those it has a row for."""
        present_MK = self.samples.present
        if present_MK is None:
            return {link.name: Share.of_all(stop - start) for link in self.links}
        by_party = zip(self.links, present_MK[start:stop].unbind(1), strict=True)
        return {link.name: Share.of(present_B) for link, present_B in by_party}

    def missing(self, samples: int, width: int) -> Tensor:
        """Return [B, D] in the place of embeddings that are missing."""
        return torch.full((samples, width), self.trainer.missing)

    def mean_embeddings(self, links: Sequence[PartyLink]) -> dict[str, Tensor]:
        """Ask parties for the mean [D] of their embeddings of all training samples; return them by name."""
        one = Share.of_all(1)
        replies = {link.name: self.ask(link, Message(Kind.MEAN), partial(self._decode, link, one)) for link in links}
        return {name: reply()[0] for name, reply in replies.items()}

    def outputs(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Return the head's outputs [B, C] of all parties' embeddings [B, D]."""
        representation_BP = torch.cat([embeddings[link.name] for link in self.links], dim=1)
        with torch.inference_mode():
            return self.trainer.runtime.forward(self.trainer.head, representation_BP.to(self.trainer.runtime.device))

    def _decode(self, link: PartyLink, share: Share, reply: Message) -> Tensor:
        """Return embeddings [B, D] that were not compressed, with what is missing."""
        receiver = next(receiver for receiver in self.receivers if receiver.sender == link.name)
        frame = reply.only(PartKind.EMBEDDING)
        if link.absent or not share.count:
            return self.missing(len(share.present_B), receiver.width)
        embedding_nD = decode_finite(frame, (share.count, receiver.width), self.config.wire.values, receiver.what)
        if embedding_nD.abs().max() > MOST_TESTED:
            raise Diverged(f"{receiver.what} at the test has values beyond {MOST_TESTED:g}")
        return share.spread(embedding_nD, self.trainer.missing)
