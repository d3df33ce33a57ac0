"""The terms that a party's owner agrees to, and a check of every order: against them, and whether it may come next.

The server's terms must be within the bounds of ``network.consent``; a term without a bound must equal the owner's own
file, unless the owner accepts the terms as a whole once, by their fingerprint.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from vfl.base.errors import plain
from vfl.config import ExperimentConfig
from vfl.config.network import ConsentConfig
from vfl.config.schedules import value_at
from vfl.messages.control import Explained, LocalRounds, Permuted, RoundStart, SampleRange
from vfl.messages.messages import REPLIES, Kind, Message, MessageError
from vfl.parties.network.admission import Terms, fingerprint
from vfl.parties.network.wire.session import Restore, Save, Saved, Welcome, check_run
from vfl.runs.atomic import write_atomically
from vfl.runs.run_folder import read_run_id

ACCEPTED = "accepted"
"""File in a party's folder: the fingerprint of the terms that its owner has accepted."""

RESTORES = 2
"""Number of restoring orders with which a session begins: to the initial state, then to that after a round."""
PASSES_IN_ROUND = 3
"""Most evaluations of a test sample in a round: at its end, and just before and after a pruning."""


class NoConsent(MessageError):  # noqa: N818 - says what happened
    """An order to which the owner has not agreed."""


@dataclass
class Consent:
    """Terms that the owner has agreed to, and the orders so far."""

    terms: Terms
    bounds: ConsentConfig
    """Bounds within which the server may choose."""
    _rows: Counter[Permuted | None] = field(default_factory=Counter[Permuted | None])
    """Test samples evaluated in this round, by the permutation of a column."""
    _explained: Counter[Kind] = field(default_factory=Counter[Kind])
    """Samples explained in this round, by the kind of the order."""
    _priced: bool = False
    """Prices, for which a copy of the model is pruned, were requested in this round."""

    def start_session(self) -> None:
        """Start counting orders."""
        self._rows, self._explained, self._priced = Counter(), Counter(), False

    def check(self, message: Message) -> None:
        """Raise MessageError for a request that exceeds the terms."""
        if message.kind is Kind.START_ROUND:
            self.start_session()
            self._check_round(message.round_index, RoundStart.of(message))
        elif message.kind is Kind.TRAIN_ALONE:
            self.start_session()
            for round_index, ordered in enumerate(LocalRounds.of(message).rounds, message.round_index):
                self._check_round(round_index, ordered)
        elif message.kind is Kind.EVALUATE:
            self._check_rows(SampleRange.of(message))
        elif message.kind in (Kind.COLUMNS, Kind.IMPORTANCE):
            self._check_importance()
        elif message.kind in (Kind.EXPLAIN, Kind.ATTRIBUTE):
            self._check_reasons(message)
        elif message.kind is Kind.MODEL_COSTS:
            if self._priced:
                raise MessageError("prices are ordered again, once in a round is agreed")
            self._priced = True

    def _check_round(self, round_index: int, ordered: RoundStart) -> None:
        most = self.bounds.alpha if self.bounds.alpha is not None else value_at(self.terms.alpha, round_index)
        least = self.bounds.beta if self.bounds.beta is not None else value_at(self.terms.beta, round_index)
        if round_index >= self.terms.rounds:
            raise MessageError(f"round {round_index + 1} is ordered, {self.terms.rounds} rounds are agreed")
        if ordered.alpha > most:
            raise MessageError(f"alpha {ordered.alpha:g} is ordered, at most {most:g} is agreed")
        own = 1.0 if self.terms.resolution is None else value_at(self.terms.resolution, round_index)
        size, smallest = ordered.resolution or 1.0, self.bounds.resolution or own
        if size < smallest:
            raise MessageError(f"resolution {size:g} is ordered, at least {smallest:g} is agreed")
        if ordered.beta < least:
            raise MessageError(f"beta {ordered.beta:g} is ordered, at least {least:g} is agreed")

    def _check_rows(self, ordered: SampleRange) -> None:
        agreed = self.terms.evaluation_rows
        if ordered.permuted is None:
            agreed *= PASSES_IN_ROUND
        else:
            self._check_importance()
        # At least 1: a range that is empty or backwards must not be free, or it could be asked for without end.
        self._rows[ordered.permuted] += max(ordered.stop - ordered.start, 1)
        if (rows := self._rows[ordered.permuted]) > agreed:
            raise MessageError(f"the evaluation of {rows} rows in a round is ordered, {agreed} are agreed")

    def _check_importance(self) -> None:
        if not self.bounds.importance:
            raise MessageError("the importance of columns is asked for; network.consent.importance does not agree")

    def _check_reasons(self, message: Message) -> None:
        if self.bounds.reasons == "nothing":
            raise MessageError("the reasons of scores are asked for; network.consent.reasons does not agree")
        ordered = Explained.of(message)
        self._explained[message.kind] += ordered.stop - ordered.start
        if (rows := self._explained[message.kind]) > self.terms.evaluation_rows:
            agreed = self.terms.evaluation_rows
            raise MessageError(f"the reasons of {rows} rows in a round are ordered, {agreed} are agreed")


def check_welcome(config: ExperimentConfig, run_dir: Path, run: str) -> None:
    """Raise MessageError unless the owner agrees to the server's run, and the folder belongs to it or to none."""
    known, agreed = read_run_id(run_dir), config.network.consent.run
    if agreed not in (None, run):
        raise NoConsent(f"network.consent.run: allows only run {agreed}, the server's is {run}")
    if not run or known not in ("", run):
        raise MessageError(
            f"welcome to run {run or '(none)'} came, this party's folder belongs to run {known or '(none)'}"
        )


def agree(
    welcome: Message, agreement: str, own: Terms, bounds: ConsentConfig, run_dir: Path, *, accept: bool
) -> Consent:
    """Return the owner's consent to the welcome's terms, if they are ``own``, the owner's file, or within bounds.

    ``accept``: the owner accepts others now, within the bounds; a fingerprint of them and of the ``agreement`` of both
    sides is kept in ``run_dir``. Raises NoConsent, one line that shows the terms, MessageError for terms that cannot
    be read.
    """
    terms = Terms.read(Welcome.of(welcome).terms)
    if beyond := _beyond(terms, bounds):
        raise NoConsent(f"network.consent: {'; '.join(beyond)}; ask the server's operator, or widen the bounds")
    if different := _different(terms, own, bounds):
        mark, kept = fingerprint(agreement, terms), run_dir / ACCEPTED
        if accept:
            write_atomically(kept, mark + "\n")
        elif mark != bounds.accepted and not (kept.exists() and kept.read_text(encoding="utf-8").strip() == mark):
            raise NoConsent(
                f"the server's terms are not those of this party's file: {'; '.join(different)}; to agree, start again "
                f"with --accept, or set network.consent.accepted={mark}"
            )
    return Consent(terms, bounds)


def _beyond(terms: Terms, bounds: ConsentConfig) -> list[str]:
    offered = {
        "rounds": terms.rounds,
        "alpha": max(terms.values_of(terms.alpha)),
        "beta": min(terms.values_of(terms.beta)),
        "resolution": 1.0 if terms.resolution is None else min(terms.values_of(terms.resolution)),
        "evaluation_rows": terms.evaluation_rows,
    }
    lines: list[str] = []
    for what, value in offered.items():
        bound = getattr(bounds, what)
        if bound is not None and (value < bound if what in ("beta", "resolution") else value > bound):
            lines.append(f"{what} {value:g} is offered, {bound:g} is the bound")
    return lines


def _different(terms: Terms, own: Terms, bounds: ConsentConfig) -> list[str]:
    """Return the terms without a bound that differ from the owner's file."""
    return [
        f"{what} {plain(str(getattr(terms, what)), 60)} (here {plain(str(getattr(own, what)), 60)})"
        for what in Terms.model_fields
        if getattr(bounds, what) is None and getattr(terms, what) != getattr(own, what)
    ]


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
