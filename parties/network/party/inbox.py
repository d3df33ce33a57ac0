"""Orders that the party has not begun yet: never more than the protocol allows under way."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from vfl.messages.messages import SESSION, Kind, Message, MessageError
from vfl.parties.network.clock_and_threads import SYSTEM, System
from vfl.parties.network.transport.stream import Stream

MOST_WAITING = 5
"""Most waiting orders: a welcome, two restores of the session that begins, a request or save after them, a goodbye."""


@dataclass(frozen=True)
class ReceivedOrder:
    """An order of the server, and the stream on which it waits for the answer."""

    message: Message
    stream: Stream
    failed: Exception | None = None
    """The error, which the party's thread is to raise, of an order that was carried out where it arrived."""


@dataclass(frozen=True)
class Over:
    """Dialling is over, for an error that the party's thread is to raise."""

    error: Exception


@dataclass(eq=False)
class Inbox:
    """Queue from the dialler's thread to the party's."""

    machine: System = SYSTEM
    ahead: int = 0
    """training.staleness, by which parties are ahead: so many requests more wait."""

    def __post_init__(self) -> None:
        self._waiting = deque[ReceivedOrder]()
        self._over: Over | None = None
        self._idle = False
        """The party's thread waits for an order."""
        self.at_once: Callable[[ReceivedOrder], ReceivedOrder | None] = lambda order: order
        """Carries out a light order where it arrives, while the party's thread waits; returns what is left to do."""
        self._changed = self.machine.condition()

    def put(self, order: ReceivedOrder) -> None:
        """Add an order. Raises MessageError for more, or more requests, than can be under way."""
        with self._changed:
            self._waiting = deque(each for each in self._waiting if not _voids(order, each))
            requests = sum(each.message.kind not in SESSION for each in (*self._waiting, order))
            if requests > 1 + self.ahead or len(self._waiting) == MOST_WAITING + self.ahead:
                kind = order.message.kind.name
                raise MessageError(f"{kind} came while {len(self._waiting)} orders wait: more than can be under way")
            left = self.at_once(order) if self._idle and not self._waiting else order
            if left is not None:
                self._waiting.append(left)
                self._changed.notify()

    def close(self, error: Exception) -> None:
        """End the queue with this error."""
        with self._changed:
            self._over = Over(error)
            self._changed.notify()

    def get(self, timeout_s: float | None = None) -> ReceivedOrder | Over | None:
        """Return the oldest order, or the error if none is left; None if nothing comes in time."""
        with self._changed:
            self._idle = True
            self._changed.wait_for(lambda: self._waiting or self._over, timeout_s)
            event = self._waiting.popleft() if self._waiting else self._over
            self._idle = event is None
            return event


def _voids(order: ReceivedOrder, earlier: ReceivedOrder) -> bool:
    """Return whether earlier orders are void, as another stream or session begins."""
    kind = order.message.kind
    begins_session = kind is Kind.RESTORE and order.message.sequence == 1
    return kind is Kind.WELCOME or (begins_session and earlier.message.kind is not Kind.WELCOME)
