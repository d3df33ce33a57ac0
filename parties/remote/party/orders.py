"""The server's orders as a party takes them: the session, and what may come when."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from vfl.wire.envelope import PROTOCOL_VERSION, Envelope, EnvelopeError, Restore, Restored, Saved, check_run, kind_of
from vfl.wire.messages import Buffer, Message, pieces, unpack
from vfl.wire.parcel import Parcel

RESTORES = 2
"""Orders with which a session begins: be as built, then as after a round."""


class Answers(Protocol):
    """What a session's requests are for."""

    def handle(self, request: Message) -> Message:
        """Answer a message. Raises MessageError for one that does not belong here."""
        ...


P = TypeVar("P", bound=Answers)


@dataclass(eq=False)
class Worker(ABC, Generic[P]):
    """Carries out orders one after another.

    An order must be the next of its session; a session begins with ``restore`` and has a higher number than the one
    before. So nothing that is duplicated, reordered, replayed or of another round is ever carried out.
    """

    run: str
    """Its id."""
    party: P | None = field(default=None, init=False)
    session: int = field(default=0, init=False)
    sequence: int = field(default=0, init=False)

    def answer(self, parcel: Parcel) -> tuple[Envelope, list[Buffer]]:
        """Carry out an order and return its answer, with the packed message in it.

        Raises EnvelopeError for one that is not due, ValueError for one that cannot be carried out.
        """
        request = self._admit(parcel)
        order, content = parcel.envelope, list[Buffer]()
        answer = Envelope(
            version=PROTOCOL_VERSION,
            run=self.run,
            session=order.session,
            sequence=order.sequence,
            round=order.round,
            exchange=order.exchange,
        )
        match kind_of(order):
            case "restore":
                self.session = order.session
                self.party = self._restore(order.restore)
                answer.restored.CopyFrom(Restored())
            case "save":
                answer.saved.CopyFrom(Saved(digest=self._save(order.save.round)))
            case _:
                assert request is not None
                answer.reply = b""
                content = pieces(self._handle(request))
        return answer, content

    def _admit(self, parcel: Parcel) -> Message | None:
        """Decide whether an order is due and agreed to, before anything is computed; return a request's message."""
        order, request = parcel.envelope, None
        self._check_sequence(order)
        if kind_of(order) == "request":
            request = unpack(parcel.content)
            if (request.round_index, request.exchange) != (order.round, order.exchange):
                raise EnvelopeError(
                    f"the envelope is of round {order.round}, exchange {order.exchange}, its message of round "
                    f"{request.round_index}, exchange {request.exchange}"
                )
        self.sequence = order.sequence
        if request is not None:
            self._check_request(request)
        return request

    def _check_request(self, request: Message) -> None:
        """Raise MessageError for a request that the session's work does not allow now."""

    def _check_sequence(self, order: Envelope) -> None:
        check_run(order, self.run)
        kind = kind_of(order)
        if kind not in ("request", "restore", "save"):
            raise EnvelopeError(f"{kind} came, which is no order")
        first = kind == "restore" and order.session > self.session
        if first and order.sequence == 1:
            return
        if self.party is None:
            raise EnvelopeError(f"{kind} came before restore")
        if order.session != self.session or first:
            raise EnvelopeError(
                f"{kind} {order.sequence} of session {order.session} came, this party is in session {self.session}"
            )
        if order.sequence <= self.sequence:
            raise EnvelopeError(f"{kind} {order.sequence} came again: a duplicate or a replay")
        if order.sequence > self.sequence + 1:
            raise EnvelopeError(f"{kind} {order.sequence} came out of order, {self.sequence + 1} is due")
        if kind == "restore" and order.sequence > RESTORES:
            raise EnvelopeError(f"restore came as order {order.sequence}: a session begins with it")

    def _handle(self, request: Message) -> Message:
        assert self.party is not None, "a session begins with restore"
        return self.party.handle(request)

    @abstractmethod
    def _restore(self, restore: Restore) -> P:
        """Return who answers in the session that begins."""

    @abstractmethod
    def _save(self, rounds: int) -> str:
        """Save the state after so many rounds; return its digest."""
