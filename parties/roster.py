"""The parties of a training as the head server keeps them: who is asked, in which order, and who is away."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from vfl.errors import PeerLost
from vfl.runs.checkpoint import State
from vfl.vertical.embeddings import EmbeddingReceiver
from vfl.vertical.ledger import Ledger
from vfl.vertical.link import PartyLink, read
from vfl.wire.control import Description
from vfl.wire.messages import Message

T = TypeVar("T")


@dataclass(eq=False)
class PartyHandle:
    """One party: the way to it, the receiving end of its embeddings, and where its messages are booked."""

    receiver: EmbeddingReceiver
    link: PartyLink | None
    """None while the party is away: nothing is asked of it then."""
    ledger: Ledger
    saved_digest: str = field(default="", init=False)
    """Of the party's last checkpoint, where it keeps its own."""

    @property
    def name(self) -> str:
        """The party's."""
        return self.receiver.sender

    @property
    def present(self) -> bool:
        """Whether the party is asked."""
        return self.link is not None

    @property
    def under_way_s(self) -> float | None:
        """Seconds in which its orders were under way so far; None where nothing travels."""
        return self.link.under_way_s if self.link else None

    def ask(self, request: Message) -> "Asked":
        """Send the party a message, and book it."""
        reply = self.attempt(lambda link: link.send(request))
        if reply is not None:
            self.ledger.record(self.name, "downlink", request)
        return Asked(self, request, reply)

    def save(self, rounds: int) -> Callable[[], State]:
        """Have the party keep its state after so many rounds; return what waits for what the server must keep."""
        saving = self.attempt(lambda link: link.save())
        assert saving is not None, "this party is never away"
        return saving.result

    def load(self, state: State) -> Callable[[], None]:
        """Have the party go back to a state; return what waits for it. A party that is away stays as it is."""
        loading = self.attempt(lambda link: link.load(state))
        return (lambda: None) if loading is None else partial(self.attempt, lambda _: loading.result())

    def described(self) -> Description:
        """Stand for the description of a party that is away: its weights are not here, its last checkpoint is known."""
        digest = hashlib.sha256(f"absent, saved as {self.saved_digest}".encode()).hexdigest()
        return Description(
            weights_digest=digest, finished_digest=digest, evaluation_macs=0, widths={}, original_widths={}
        )

    def lose(self, lost: PeerLost) -> None:
        """Say what follows from the party's loss: here the end of whatever was asked."""
        raise lost

    def attempt(self, act: Callable[[PartyLink], T]) -> T | None:
        """Return what ``act`` does with the link; None where the party is away, or is lost by this."""
        if self.link is None:
            return None
        try:
            return act(self.link)
        except PeerLost as lost:
            self.lose(lost)
            return None


@dataclass(frozen=True, eq=False)
class Asked:
    """A request under way to a party."""

    party: PartyHandle
    request: Message
    reply: "Future[Message] | None"
    """None where the party was away."""

    def read(self, parse: Callable[[Message], T]) -> T | None:
        """Wait for the reply, book it, and return what ``parse`` makes of it.

        None where the party is away by now, or is lost by its reply: nothing of that one is booked.
        """
        reply = self.reply
        if reply is None:
            return None

        def parse_and_book(message: Message) -> T:
            parsed = parse(message)
            self.party.ledger.record(self.party.name, "uplink", message)
            return parsed

        return self.party.attempt(lambda link: read(link, self.request, reply, parse_and_book))

    def wait(self) -> None:
        """Wait for a reply that brings nothing."""
        self.read(lambda _: None)


@dataclass(frozen=True, eq=False)
class Roster:
    """All parties, in the order in which their embeddings are concatenated."""

    parties: Sequence[PartyHandle]
    ledger: Ledger

    def __iter__(self) -> Iterator[PartyHandle]:
        """Go through all parties, also those that are away."""
        return iter(self.parties)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all parties."""
        return tuple(party.name for party in self.parties)

    @property
    def present(self) -> list[PartyHandle]:
        """Those that are here."""
        return [party for party in self.parties if party.present]

    def save(self, rounds: int) -> dict[str, State]:
        """Have all keep their states at the same time; return what the server must keep of each."""
        saving = {party.name: party.save(rounds) for party in self.parties}
        return {name: saved() for name, saved in saving.items()}

    def load(self, states: Mapping[str, State]) -> None:
        """Have all go back to their states at the same time, and their receivers' estimates with them."""
        for loaded in [party.load(states[party.name]) for party in self.parties]:
            loaded()

    def close(self) -> None:
        """Release the parties."""
        for party in self.present:
            party.attempt(lambda link: link.close())
