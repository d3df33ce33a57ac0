"""What the head server sees of a party."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from vfl.state import State
from vfl.wire.messages import Message

T = TypeVar("T")


class PartyLink(Protocol):
    """A way to a party: requests in order, each with its reply. The algorithm cannot tell links apart.

    What a method returns is called to wait for its outcome: all parties are asked before the first is waited for. Both
    raise PeerLost where the party is lost, which it also is when its reply is not what was asked for.
    """

    name: str

    @property
    def absent(self) -> bool:
        """The link stands in for a lost party: what it answers has not travelled."""
        return False

    @property
    def under_way_s(self) -> float | None:
        """Seconds in which orders of the training were under way so far; None where nothing travels."""
        return None

    def send(self, request: Message, take: Callable[[Message], T]) -> Callable[[], T]:
        """Send a message; the outcome is what ``take`` makes of the reply, which it raises an error for if it is wrong.

        The party handles requests in the order sent; each is waited for before the next.
        """
        ...

    def save(self) -> Callable[[], State]:
        """Have the party keep its state; the outcome is what the server must keep to restore it."""
        ...

    def load(self, state: State) -> Callable[[], None]:
        """Restore the party from what ``save`` returned. Raises ValueError for a state of another kind of link."""
        ...

    def close(self) -> None:
        """Release the party."""
