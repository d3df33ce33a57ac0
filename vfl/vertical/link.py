"""What the head server sees of a party."""

from concurrent.futures import Future
from typing import Protocol

from vfl.checkpoint import State
from vfl.wire.messages import Buffer, Message


class PartyLink(Protocol):
    """A way to a party: requests in order, each with its reply. The algorithm cannot tell links apart.

    Futures raise PeerLost where the party is lost, and ValueError for what the party could not do.
    """

    name: str

    @property
    def absent(self) -> bool:
        """The link stands in for a lost party: what it answers has not travelled."""
        ...

    def send(self, request: Message) -> Future[Buffer]:
        """Send a message, packed; the future holds the packed reply. Requests are handled in the order sent."""
        ...

    def save(self) -> Future[State]:
        """Return what the server must keep to restore the party as it is now."""
        ...

    def load(self, state: State) -> Future[None]:
        """Restore the party from what ``save`` returned."""
        ...

    def close(self) -> None:
        """Release the party."""
        ...
