"""What the head server sees of a party."""

from concurrent.futures import Future
from typing import Protocol

from vfl.checkpoint import State


class PartyLink(Protocol):
    """A way to a party: messages in order, each with its reply. The algorithm cannot tell links apart."""

    name: str

    def send(self, request: bytes) -> Future[bytes]:
        """Send a packed message; the future holds the packed reply. Requests are handled in the order sent."""
        ...

    def save(self) -> State:
        """Return what the server must keep to restore the party as it is now."""
        ...

    def load(self, state: State) -> None:
        """Restore the party from what ``save`` returned."""
        ...

    def close(self) -> None:
        """Release the party."""
        ...
