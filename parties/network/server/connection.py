"""The server's end of one party's stream: orders go out in sequence, each with a future for its answer."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from vfl.base.errors import PeerLost, PeerMisbehaved, plain
from vfl.config import NetworkConfig
from vfl.core.round_orders import rounds_done
from vfl.messages.messages import MEASURING, REPLIES, Kind, Message, MessageError, check_reply, place_of
from vfl.parties.network.clock_and_threads import SYSTEM, System
from vfl.parties.network.transport.stream import Stream
from vfl.parties.network.wire.session import Hello, Refusal, Restore, Save, Saved, check_run, refusal

if TYPE_CHECKING:  # it imports PyTorch, which a match does without
    from vfl.runs.checkpoint import State

T = TypeVar("T")
REPLY_LIMIT_S = 3600.0
"""Time after which a party that has not answered is lost, in spite of its heartbeats."""


@dataclass
class _Pending:
    """An order on its way."""

    order: Message
    """The order's kind, place and number: its parts need not be kept."""
    read: Callable[[Message], Any]
    """Returns the outcome, given the answer."""
    future: "Future[Any]"
    since_s: float
    """Time from which this is the oldest unanswered order."""
    slow: bool = False
    """A log line has said that it is slow."""

    @property
    def answer(self) -> str:
        """Return the name of the answer's kind."""
        return REPLIES[self.order.kind].name


@dataclass(eq=False)
class PartyConnection:
    """A joined party. Orders are sent by the training's thread; answers arrive in the stream's."""

    hello: Hello
    run: str
    """Id of the run."""
    network: NetworkConfig
    """Limits: a living party without an answer counts as slow after silence_s, and as lost after `REPLY_LIMIT_S`."""
    log: Callable[[str], None]
    on_leaving: Callable[[str], None]
    """Called with the name of a party whose operator wants to stop it."""
    machine: System = SYSTEM
    stream: Stream = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.hello.party
        self.rounds = set(self.hello.rounds)
        """Rounds whose checkpoints the party has on disk."""
        self.session = 0
        self._sequence = 0
        self._pending = deque[_Pending]()
        self._void = deque[tuple[int, int]]()
        """Session and sequence of orders that a new session has voided: their answers may still come."""
        self._lost: PeerLost | None = None
        self._leaving = False
        self._lock = self.machine.condition()

    def start_session(self, session: int) -> None:
        """Void all orders under way: a new session begins."""
        with self._lock:
            self._void.extend((self.session, each.order.sequence) for each in self._pending)
            self.session, self._sequence = session, 0
            self._pending.clear()

    @property
    def lost(self) -> bool:
        """Return whether the party can be ordered no more."""
        return self._lost is not None

    def order(self, message: Message, read: Callable[[Message], T]) -> "Future[T]":
        """Send an order; the future holds what ``read`` makes of its answer, or raises PeerLost.

        Run, session and sequence are filled in here. ``read`` is called in the stream's thread: short work, which
        raises MessageError for an answer that is none. Raises PeerLost where the party is lost already, ConfigError for
        a message above network.max_message_mb.
        """
        future = self.machine.future()
        with self._lock:
            if self._lost is not None:
                raise self._lost
            self._sequence += 1
            order = message.numbered(self.run, self.session, self._sequence)
            asked = Message(message.kind, message.round_index, message.exchange, sequence=self._sequence)
            self._pending.append(_Pending(asked, read, future, self.machine.now_s()))
        self.stream.send(order)
        return future

    def receive(self, message: Message) -> None:
        """Handle a message of the party. Raises MessageError for anything but the answer to the oldest open order."""
        if message.kind is Kind.REFUSAL:  # of whatever run
            self.fail(PeerMisbehaved(self.name, f"it refuses to go on: {Refusal.of(message).reason}"))
            self.stream.end("it refused to go on")
            return
        check_run(message, self.run)
        if message.kind is Kind.LEAVING:
            if not self._leaving:  # whatever answers it is sent once
                self._leaving = True
                self.on_leaving(self.name)
        elif message.kind in REPLIES.values():
            self._answer(message)
        else:
            raise MessageError(f"{message.kind.name} came, which only a server sends or only a stream begins with")

    def expel(self, error: PeerMisbehaved) -> None:
        """Tell the party the error in its message, and end its stream."""
        self.fail(error)
        self.stream.send(refusal(error.what))
        self.stream.end(error.what)

    def fail(self, error: PeerLost) -> None:
        """Let this and every later order fail."""
        with self._lock:
            self._lost = self._lost or error
            pending = [*self._pending]
            self._pending.clear()
        for each in pending:
            each.future.set_exception(self._lost)

    def check_pace(self) -> None:
        """Warn of a living party whose answer takes long, and end its stream at the limit."""
        with self._lock:
            oldest = self._pending[0] if self._pending else None
        if oldest is None:
            return
        waited_s = self.machine.now_s() - oldest.since_s
        where = place_of(REPLIES[oldest.order.kind], oldest.order.round_index, oldest.order.exchange)
        if waited_s > REPLY_LIMIT_S:
            reason = f"{self.name} lives but gave no {where} within {REPLY_LIMIT_S:g} s"
            self.fail(PeerLost(reason))
            self.stream.end(reason)
        elif waited_s > self.network.silence_s and not oldest.slow:
            oldest.slow = True
            self.log(
                f"warning: {self.name} is slow: it lives, but its {where} takes more than {self.network.silence_s:g} s"
            )

    def _answer(self, message: Message) -> None:
        kind = message.kind.name
        with self._lock:
            answered = message.session, message.sequence
            if answered in self._void:  # asked for before the training went back to a checkpoint
                # A party drops the orders that wait when a session begins: those before this one are never answered.
                while self._void.popleft() != answered:
                    pass
                return
            if message.session != self.session:
                raise MessageError(f"{kind} of session {message.session} came, this is session {self.session}")
            oldest = self._pending[0] if self._pending else None
            # Orders are answered in turn, so that the open ones are the newest: below them all were answered.
            if message.sequence < self._sequence - len(self._pending) + 1:
                raise MessageError(f"{kind} to order {message.sequence} came again: a duplicate or a replay")
            if oldest is None or message.sequence != oldest.order.sequence:
                raise MessageError(
                    f"{kind} to order {message.sequence} came out of order"
                    + (f", {oldest.answer} to order {oldest.order.sequence} is due" if oldest else ", none is due")
                )
            check_reply(oldest.order, message)
            outcome = oldest.read(message)
            self._pending.popleft()
            if self._pending:
                self._pending[0].since_s = self.machine.now_s()
        oldest.future.set_result(outcome)


class RemoteLink:
    """A party behind a stream, for one session: from one start at a checkpoint to the next.

    A party's state never leaves it: ``save`` lets it write the state to its own disk and returns a reference to it. The
    saved round is valid once the server, which asks all parties first, has committed a checkpoint with these
    references.
    """

    def __init__(self, connection: PartyConnection, session: int) -> None:
        self.name = connection.name
        self.connection = connection
        self.rounds_done = 0
        self.under_way_s = 0.0
        self._answered_s = 0.0
        connection.start_session(session)
        # Every party starts from its initial state, so that runs without a checkpoint agree; ``load`` may follow.
        self._restore(checkpoint_reference(0, ""))

    def send(self, request: Message) -> "Future[Message]":
        """Send a message; the future holds the reply. Both raise PeerLost."""
        self.rounds_done = rounds_done(request) or self.rounds_done
        sent_s = self.connection.machine.now_s()
        reply = self.connection.order(request, lambda message: message)
        if request.kind not in MEASURING:
            reply.add_done_callback(lambda _: self._count(sent_s))
        return reply

    def reject_reply(self, error: Exception) -> NoReturn:
        """Tell the party the error in its reply, and end its stream."""
        lost = PeerMisbehaved(self.name, plain(str(error) or repr(error)))
        self.connection.expel(lost)
        raise lost from error

    def save(self) -> "Future[State]":
        """Let the party write its state; the future holds a reference to it."""
        rounds = self.rounds_done

        def refer(message: Message) -> "State":
            saved = Saved.of(message)
            self.connection.rounds.add(rounds)
            return checkpoint_reference(rounds, saved.digest)

        return self.connection.order(Message(Kind.SAVE, parts=(Save(round=rounds).part(),)), refer)

    def load(self, state: "State") -> "Future[None]":
        """Let the party restore the state of a reference. Raises ValueError for a malformed state."""
        if not state.keys() >= checkpoint_reference(0, "").keys():
            raise ValueError(
                f"--resume: the saved run trained {self.name} in the server's process; resume with only lvfl train"
            )
        return self._restore(state)

    def close(self) -> None:
        """Do nothing: another session with the party may follow."""

    def _count(self, sent_s: float) -> None:
        """Add the seconds of an answered order, except those when another order was under way."""
        now_s = self.connection.machine.now_s()
        self.under_way_s += now_s - max(sent_s, self._answered_s)
        self._answered_s = now_s

    def _restore(self, state: "State") -> "Future[None]":
        self.rounds_done = state["as_of"]
        restore = Restore(round=state["round"], digest=state["digest"], as_of=state["as_of"])
        return self.connection.order(Message(Kind.RESTORE, parts=(restore.part(),)), lambda message: None)


def checkpoint_reference(rounds: int, digest: str) -> "State":
    """Return the server's reference to a party's state: the round and digest of the party's own checkpoint.

    ``as_of``: the round that the state belongs to at the server; later than ``round`` if the party was absent
    meanwhile.
    """
    return {"round": rounds, "digest": digest, "as_of": rounds}
