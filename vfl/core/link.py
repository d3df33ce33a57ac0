"""The interface of a link to a party."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

from vfl.messages.messages import Message

if TYPE_CHECKING:  # it imports PyTorch, which a match does without
    from vfl.runs.checkpoint import State

T = TypeVar("T")


class PartyLink(Protocol):
    """A link to a party: requests in order, each with its reply. Callers cannot tell links apart.

    Everything but ``reject_reply`` and ``close`` starts an operation and returns its future, so that all parties can
    be asked before the first reply is awaited. Call and future raise PeerLost if the party is lost.
    """

    name: str

    @property
    def under_way_s(self) -> float | None:
        """Seconds during which training orders were under way so far; None if nothing travels."""
        return None

    def send(self, request: Message) -> "Future[Message]":
        """Send a message; the future holds the reply. The party handles requests in the order sent."""
        ...

    def reject_reply(self, error: Exception) -> NoReturn:
        """Blame the party for an error that its reply has caused; the party is then lost. Raises PeerLost.

        For a party in the same process the error itself is raised.
        """
        ...

    def save(self) -> "Future[State]":
        """Let the party save its state; the future holds what the server must keep to restore it."""
        ...

    def load(self, state: "State") -> "Future[None]":
        """Restore the party from the result of ``save``. Raises ValueError for a state of another kind of link."""
        ...

    def close(self) -> None:
        """Release the party."""


def read(link: PartyLink, reply: "Future[Message]", parse: Callable[[Message], T]) -> T:
    """Wait for the reply to a request and return ``parse`` of it. The party is blamed for whatever ``parse`` raises."""
    message = reply.result()
    try:
        return parse(message)
    except Exception as error:
        link.reject_reply(error)


def done(outcome: T) -> "Future[T]":
    """Return a future that already holds its outcome."""
    future = Future[T]()
    future.set_result(outcome)
    return future
