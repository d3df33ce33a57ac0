"""A way to a party, as whoever asks it sees it."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import NoReturn, Protocol, TypeVar

from vfl.runs.state import State
from vfl.wire.messages import Message, check_reply

T = TypeVar("T")


class PartyLink(Protocol):
    """A way to a party: requests in order, each with its reply. Who asks cannot tell links apart.

    Everything but ``blame`` and ``close`` begins something and returns a future of its outcome, so that all parties can
    be asked before the first is waited for. Call and future raise PeerLost where the party is lost.
    """

    name: str

    @property
    def under_way_s(self) -> float | None:
        """Seconds in which orders of the training were under way so far; None where nothing travels."""
        return None

    def send(self, request: Message) -> "Future[Message]":
        """Send a message; the future holds the reply. The party handles requests in the order sent."""
        ...

    def blame(self, error: Exception) -> NoReturn:
        """Hold an error that a reply has caused against the party, which is lost by it. Raises PeerLost.

        A party in the same process is nobody to blame: then the error itself is raised.
        """
        ...

    def save(self) -> "Future[State]":
        """Have the party keep its state; the future holds what the server must keep to restore it."""
        ...

    def load(self, state: State) -> "Future[None]":
        """Restore the party from what ``save`` gave. Raises ValueError for a state of another kind of link."""
        ...

    def close(self) -> None:
        """Release the party."""


def read(link: PartyLink, request: Message, reply: "Future[Message]", parse: Callable[[Message], T]) -> T:
    """Wait for the reply to a request and return what ``parse`` makes of it.

    The party is to blame for a reply to something else, and for whatever ``parse`` raises.
    """
    message = reply.result()
    try:
        check_reply(request, message)
        return parse(message)
    except Exception as error:
        link.blame(error)


def done(outcome: T) -> "Future[T]":
    """Return a future that holds its outcome already."""
    future = Future[T]()
    future.set_result(outcome)
    return future
