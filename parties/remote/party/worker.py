"""A party's answers to the server's orders: the session, what may come when, and the party's own checkpoints."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from parties.feature_party import FeatureParty
from vfl.checkpoint import CheckpointStore, State
from vfl.wire.envelope import (
    PROTOCOL_VERSION,
    Envelope,
    EnvelopeError,
    Restore,
    Restored,
    Saved,
    check_run,
    kind_of,
)
from vfl.wire.messages import Buffer, Kind, Message, pieces, read_header, unpack
from vfl.wire.parcel import Parcel

SECTION = "party"
"""Of a party's checkpoint."""
RESTORES = 2
"""Orders with which a session begins: be as built, then as after a round."""


class Answers(Protocol):
    """What a session's requests are for."""

    def handle(self, request: Message) -> Message:
        """Answer a message. Raises MessageError for one that does not belong here."""
        ...


P = TypeVar("P", bound=Answers)


class Worker(ABC, Generic[P]):
    """Carries out orders one after another.

    An order must be the next of its session; a session begins with ``restore`` and has a higher number than the one
    before. So nothing that is duplicated, reordered, replayed or of another round is ever carried out.

    Args:
        run: id of the run.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.party: P | None = None
        self.session = 0
        self.sequence = 0

    def answer(self, parcel: Parcel) -> tuple[Envelope, list[Buffer]]:
        """Carry out an order and return its answer, with the packed message in it.

        Raises EnvelopeError for one that is not due, ValueError for one that cannot be carried out.
        """
        self._check_due(parcel)
        order, content = parcel.envelope, list[Buffer]()
        self.sequence = order.sequence
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
                answer.reply = b""
                content = pieces(self._handle(unpack(parcel.content)))
        return answer, content

    def _check_due(self, parcel: Parcel) -> None:
        order = parcel.envelope
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
        if kind == "request":
            _kind, round_index, exchange = read_header(parcel.content)
            if (round_index, exchange) != (order.round, order.exchange):
                raise EnvelopeError(
                    f"the envelope is of round {order.round}, exchange {order.exchange}, its message of round "
                    f"{round_index}, exchange {exchange}"
                )

    def _handle(self, request: Message) -> Message:
        assert self.party is not None, "a session begins with restore"
        return self.party.handle(request)

    @abstractmethod
    def _restore(self, restore: Restore) -> P:
        """Return who answers in the session that begins."""

    @abstractmethod
    def _save(self, rounds: int) -> str:
        """Save the state after so many rounds; return its digest."""


class PartyWorker(Worker[FeatureParty]):
    """Carries out the orders of a training.

    Nor does an order make the party lose what it has on disk. A session's branch are the rounds up to the one that it
    goes on from, and those that it trains to their ends and saves: of these alone the oldest are removed. A session
    that begins at round 0 finds at most one round of another, the newest, which may not count yet.

    Args:
        run: id of the run.
        restore: makes the party as of a saved state, or as it is before the first round.
        store: the party's own checkpoints.
        on_answer: called with every request of the training and its reply.
    """

    def __init__(
        self,
        run: str,
        restore: Callable[[State | None], FeatureParty],
        store: CheckpointStore,
        on_answer: Callable[[Message, Message], None] = lambda request, reply: None,
    ) -> None:
        super().__init__(run)
        self.restore = restore
        self.store = store
        self.on_answer = on_answer
        self._branch: set[int] = set()
        self._trained: int | None = None
        """The rounds done when this session last trained one to its end."""

    def _handle(self, request: Message) -> Message:
        reply = super()._handle(request)
        if request.kind == Kind.END_ROUND:
            self._trained = request.round_index + 1
        self.on_answer(request, reply)
        return reply

    def _restore(self, restore: Restore) -> FeatureParty:
        """Return the party as it was after so many rounds."""
        party = self.restore(self._load(restore.round, restore.digest) if restore.round else None)
        rounds = party.config.training.rounds
        if not restore.round <= restore.as_of <= rounds:
            raise EnvelopeError(
                f"restore of round {restore.round} as of round {restore.as_of} came, the experiment has {rounds} rounds"
            )
        self._trained = None
        self._branch = {saved for saved in self.store.rounds() if saved <= restore.round}
        party.round_index = restore.as_of - 1
        return party

    def _load(self, rounds: int, digest: str) -> State:
        state = self.store.load(rounds)[SECTION]
        if self.store.digest(rounds) != digest:
            raise ValueError(
                f"the checkpoint of round {rounds} in {self.store.directory} is not the one that the server's "
                "checkpoint refers to; restore the party's folder"
            )
        return state

    def _save(self, rounds: int) -> str:
        assert self.party is not None, "a session begins with restore"
        if rounds != self._trained:
            raise EnvelopeError(f"save of round {rounds} came, this session has trained {self._trained}")
        others = set(self.store.rounds()) - self._branch
        if len(others) > (self.store.keep if self._branch else 1):
            raise ValueError(
                f"save of round {rounds} came, but {self.store.directory} has rounds {sorted(others)}, from which this "
                "session does not go on; to give them up, take another --run-dir"
            )
        self._branch.add(rounds)
        self.store.save(rounds, {SECTION: self.party.state_dict()}, self._branch)
        return self.store.digest(rounds)


def open_store(run_dir: Path, keep: int) -> CheckpointStore:
    """Return a party's checkpoints: one more than the server keeps, for the newest may not count yet."""
    return CheckpointStore(run_dir / "checkpoints", keep=keep + 1)
