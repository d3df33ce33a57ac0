"""A party's checks of the server's orders: the session, and which order may come next."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from vfl.messages.messages import REPLIES, Kind, Message, MessageError
from vfl.parties.network.wire.session import Restore, Save, Saved, check_run

RESTORES = 2
"""Number of restoring orders with which a session begins: to the initial state, then to that after a round."""


class Answers(Protocol):
    """Receiver of a session's requests."""

    def handle(self, request: Message) -> Message:
        """Answer a message. Raises MessageError for one that is not due."""
        ...


P = TypeVar("P", bound=Answers)


@dataclass(eq=False)
class Worker(Generic[P]):
    """Carries out orders one after another; of its own it saves nothing.

    An order must be the next of its session; a session begins with ``restore`` and has a higher number than the one
    before. So nothing that is duplicated, reordered, replayed or of another round is ever carried out.
    """

    run: str
    """Id of the run."""
    begin: Callable[[Restore], P | None]
    """Returns the receiver of requests in the session that begins; None where the order names no checkpoint to use."""
    party: P | None = field(default=None, init=False)
    session: int = field(default=0, init=False)
    sequence: int = field(default=0, init=False)

    def answer(self, order: Message) -> Message:
        """Carry out an order and return its answer.

        Raises MessageError for one that is not due, ValueError for one that cannot be carried out.
        """
        self._admit(order)
        match order.kind:
            case Kind.RESTORE:
                self.session = order.session
                self.party = self.begin(Restore.of(order))
                answer = Message(Kind.RESTORED)
            case Kind.SAVE:
                answer = Message(Kind.SAVED, parts=(Saved(digest=self._save(Save.of(order).round)).part(),))
            case _:
                answer = self._handle(order)
        return answer.numbered(order.run, order.session, order.sequence)

    def _admit(self, order: Message) -> None:
        """Decide whether an order is due and agreed to, before anything is computed. Raises MessageError."""
        self._check_sequence(order)
        self.sequence = order.sequence
        if order.kind not in (Kind.RESTORE, Kind.SAVE):
            self._check_request(order)

    def _check_request(self, request: Message) -> None:
        """Raise MessageError for a request that the session's work does not allow now."""

    def _check_sequence(self, order: Message) -> None:
        check_run(order, self.run)
        kind = order.kind.name
        if order.kind not in REPLIES:
            raise MessageError(f"{kind} came, which is no order")
        first = order.kind is Kind.RESTORE and order.session > self.session
        if first and order.sequence == 1:
            return
        if not self.session:
            raise MessageError(f"{kind} came before RESTORE")
        if order.session != self.session or first:
            raise MessageError(
                f"{kind} {order.sequence} of session {order.session} came, this party is in session {self.session}"
            )
        if order.sequence <= self.sequence:
            raise MessageError(f"{kind} {order.sequence} came again: a duplicate or a replay")
        if order.sequence > self.sequence + 1:
            raise MessageError(f"{kind} {order.sequence} came out of order, {self.sequence + 1} is due")
        if order.kind is Kind.RESTORE and order.sequence > RESTORES:
            raise MessageError(f"RESTORE came as order {order.sequence}: a session begins with it")

    def _handle(self, request: Message) -> Message:
        if self.party is None:
            raise MessageError(f"{request.kind.name} came before the model's checkpoint was named")
        return self.party.handle(request)

    def _save(self, rounds: int) -> str:
        """Save the state after ``rounds`` rounds; return its digest."""
        raise MessageError(f"SAVE after round {rounds} came, where nothing is trained")
