"""The head server's list of the training's parties, in order, with the absent ones."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

from torch import Tensor

from vfl.base.errors import PeerLost
from vfl.compression.codec import ValueType
from vfl.core.costs.ledger import Ledger
from vfl.core.embeddings import EmbeddingReceiver, check_tested, decode_finite
from vfl.core.link import PartyLink, read
from vfl.messages.control import Description, SampleRange
from vfl.messages.messages import Kind, Message, PartKind
from vfl.runs.checkpoint import State

T = TypeVar("T")


@dataclass(eq=False)
class PartyProxy:
    """One party: its link, the receiver of its embeddings, and the record of its messages."""

    receiver: EmbeddingReceiver
    link: PartyLink | None
    """None while the party is absent; it is then not asked."""
    ledger: Ledger | None
    """None: nothing is booked."""
    saved_digest: str = field(default="", init=False)
    """Digest of the party's last checkpoint, if it keeps its own."""

    @property
    def name(self) -> str:
        """The party's name."""
        return self.receiver.sender

    @property
    def present(self) -> bool:
        """Return whether the party is asked."""
        return self.link is not None

    @property
    def under_way_s(self) -> float | None:
        """Seconds during which its orders were under way so far; None if nothing travels."""
        return self.link.under_way_s if self.link else None

    def ask(self, request: Message) -> "PendingReply":
        """Send the party a message, and record it."""
        if self.link is None:
            return PendingReply(self, None)
        try:
            reply = self.link.send(request)
        except PeerLost as lost:
            self.lose(lost)
            return PendingReply(self, None)
        if self.ledger is not None:
            self.ledger.record(self.receiver.sender, "downlink", request)
        return PendingReply(self, reply)

    def embed(self, wanted: SampleRange, rows: int, values: ValueType) -> Callable[[], Tensor | None]:
        """Ask for embeddings of samples; return a function that waits for those of ``rows``, [n, D] of ``values``.

        That function returns None as `PendingReply.read` does, and if the party has no row.
        """
        reply = self.ask(Message(Kind.EVALUATE, parts=(wanted.part(),)))
        return partial(reply.read, partial(self.read_embedding, rows=rows, values=values))

    def read_embedding(self, message: Message, rows: int, values: ValueType) -> Tensor | None:
        """Return the embeddings [n, D] of a reply, which were not compressed; None for no rows."""
        frame, receiver = message.only(PartKind.EMBEDDING), self.receiver
        if not rows:
            return None
        embedding_nD = decode_finite(frame, (rows, receiver.width), values, receiver.what)
        return check_tested(embedding_nD, receiver.what)

    def save(self, rounds: int) -> Callable[[], State]:
        """Let the party save its state after ``rounds`` rounds; return a function that waits for the server's part."""
        saving = self.attempt(lambda link: link.save())
        assert saving is not None, "this party is never away"
        return saving.result

    def load(self, state: State) -> Callable[[], None]:
        """Let the party restore a state; return a function that waits for it. An absent party stays as it is."""
        loading = self.attempt(lambda link: link.load(state))
        return (lambda: None) if loading is None else partial(self.attempt, lambda _: loading.result())

    def described(self) -> Description:
        """Return the description of an absent party, whose weights are unknown and whose last checkpoint is known."""
        digest = hashlib.sha256(f"absent, saved as {self.saved_digest}".encode()).hexdigest()
        return Description(
            weights_digest=digest, finished_digest=digest, evaluation_macs=0, widths={}, original_widths={}
        )

    def lose(self, lost: PeerLost) -> None:
        """Raise the party's loss, which ends the request; subclasses may tolerate it."""
        raise lost

    def attempt(self, act: Callable[[PartyLink], T]) -> T | None:
        """Return ``act`` of the link; None if the party is absent, or is lost by it."""
        if self.link is None:
            return None
        try:
            return act(self.link)
        except PeerLost as lost:
            self.lose(lost)
            return None


@dataclass(frozen=True, eq=False)
class PendingReply:
    """A request under way to a party."""

    party: PartyProxy
    reply: "Future[Message] | None"
    """Future of the reply; None if the party was absent."""

    def read(self, parse: Callable[[Message], T]) -> T | None:
        """Wait for the reply, record it, and return ``parse`` of it.

        Returns None if the party has become absent, or is lost because of its reply, which is then not recorded.
        """
        party = self.party
        if self.reply is None or party.link is None:
            return None
        try:
            parsed = read(party.link, self.reply, parse)
        except PeerLost as lost:
            party.lose(lost)
            return None
        if party.ledger is not None:
            party.ledger.record(party.receiver.sender, "uplink", self.reply.result())
        return parsed

    def wait(self) -> None:
        """Wait for a reply without content."""
        self.read(lambda _: None)


@dataclass(frozen=True, eq=False)
class Parties:
    """All parties, in the order in which their embeddings are concatenated."""

    parties: Sequence[PartyProxy]
    ledger: Ledger | None = None
    """Record of the training's messages; None of a joint model that is not trained."""

    def __iter__(self) -> Iterator[PartyProxy]:
        """Iterate over all parties, including absent ones."""
        return iter(self.parties)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all parties."""
        return tuple(party.name for party in self.parties)

    @property
    def present(self) -> list[PartyProxy]:
        """The parties that are not absent."""
        return [party for party in self.parties if party.present]

    def save(self, rounds: int) -> dict[str, State]:
        """Let all parties save their states at the same time; return the server's parts of them."""
        saving = {party.name: party.save(rounds) for party in self.parties}
        return {name: saved() for name, saved in saving.items()}

    def load(self, states: Mapping[str, State]) -> None:
        """Let all parties restore their states at the same time, and their receivers' estimates."""
        for loaded in [party.load(states[party.name]) for party in self.parties]:
            loaded()

    def close(self) -> None:
        """Release the parties."""
        for party in self.present:
            party.attempt(lambda link: link.close())
