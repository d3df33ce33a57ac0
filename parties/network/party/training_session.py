"""A party's answers to the orders of a training, and its own checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from vfl.core.party import SECTION, FeatureParty
from vfl.core.round_orders import Agenda, rounds_done
from vfl.data.samples import Samples
from vfl.data.source import prepare_samples
from vfl.messages.messages import Message, MessageError
from vfl.parties.network.party.order_checks import Consent, Worker
from vfl.parties.network.wire.session import Restore
from vfl.runs.checkpoint import CheckpointStore, State

Watch = Callable[[FeatureParty, Samples, Message, Message], None]
"""Observer of a party's answers: the samples that it evaluates, a request and its reply."""


@dataclass(eq=False)
class PartyWorker(Worker[FeatureParty]):
    """Carries out the orders of a training.

    No order makes the party lose its checkpoints. A session's branch consists of the rounds up to the one that it
    continues from, and those that it completes and saves: only of these are the oldest removed. A session that begins
    at round 0 finds at most one round of another, the newest, which may not be valid yet.
    """

    begin: Callable[[Restore], FeatureParty] = field(init=False)
    restore: Callable[[State | None], FeatureParty]
    """Makes the party from a saved state, or as built."""
    store: CheckpointStore
    """The party's own checkpoints."""
    start: Callable[[str], State | None] = lambda digest: None
    """Returns the checkpoint of that digest in the run that is started from; None if the owner names none."""
    consent: Consent | None = None
    """The owner's consent; None if the process that passes orders on has checked them."""
    pass_on: Callable[[Message], None] = lambda order: None
    """Called with every order that is due and agreed to."""
    on_answer: Watch = lambda party, samples, request, reply: None
    wanted: Samples | None = None
    """Raw samples to predict in place of the test samples."""
    on_wanted: Callable[[FeatureParty], None] = lambda party: None
    """Called with the restored party before it prepares them."""

    def __post_init__(self) -> None:
        self.begin = self._restore
        self._agenda: Agenda
        self._samples: Samples | None = None
        """Prepared samples to evaluate in place of the test samples."""
        self._branch: set[int] = set()
        self._trained: int | None = None
        """Rounds done when this session last completed one."""

    def _handle(self, request: Message) -> Message:
        assert self.party is not None, "a session begins with restore"
        samples = self.party.test if self._samples is None else self._samples  # its images may change their size
        reply = self.party.handle(request, samples)
        self._trained = rounds_done(request) or self._trained
        self.on_answer(self.party, samples, request, reply)
        return reply

    def _admit(self, order: Message) -> None:
        super()._admit(order)
        self.pass_on(order)

    def _check_request(self, request: Message) -> None:
        if self.consent is not None:
            self.consent.check(request)
        self._agenda.check(request)

    def _restore(self, restore: Restore) -> FeatureParty:
        party = self.restore(self._load(restore.round, restore.digest) if restore.round else None)
        if restore.digest and not restore.round:
            state = self.start(restore.digest)
            if state is None:
                raise ValueError("training.start_from: is missing here, and the server starts from an earlier run")
            party.begin_with(state)
        rounds = party.config.training.rounds
        if not restore.round <= restore.as_of <= rounds:
            raise MessageError(
                f"RESTORE after round {restore.round} as of {restore.as_of} came, the experiment has {rounds} rounds"
            )
        party.may_rest |= self.consent is None
        self._trained = None
        self._branch = {saved for saved in self.store.rounds() if saved <= restore.round}
        # Later than what it saved, if it was away: the server continues from there, and its next round must follow.
        training = party.config.training
        self._agenda = Agenda(party.name, party.steps, training.staleness, restore.as_of, training.local_rounds)
        if self.wanted is not None:
            self.on_wanted(party)
        self._samples = None if self.wanted is None else prepare_samples(party.preparation, self.wanted)
        if self.consent is not None:
            self.consent.start_session()
        return party

    def _load(self, rounds: int, digest: str) -> State:
        state = self.store.load(rounds)[SECTION]
        if self.store.digest(rounds) != digest:
            raise ValueError(
                f"the checkpoint after round {rounds} in {self.store.directory} is not the one that the server's "
                "checkpoint refers to; restore the party's folder"
            )
        return state

    def _save(self, rounds: int) -> str:
        assert self.party is not None, "a session begins with restore"
        if rounds != self._trained:
            raise MessageError(f"SAVE after round {rounds} came, this session has trained {self._trained}")
        others = set(self.store.rounds()) - self._branch
        if len(others) > (self.store.keep if self._branch else 1):
            raise ValueError(
                f"SAVE after round {rounds} came, but {self.store.directory} has checkpoints after rounds "
                f"{sorted(others)}, from which this session does not go on; to give them up, take another --run-dir"
            )
        self._branch.add(rounds)
        self.store.save(rounds, {SECTION: self.party.state_dict()}, self._branch)
        return self.store.digest(rounds)


def open_store(run_dir: Path, keep: int) -> CheckpointStore:
    """Return a party's checkpoints: one more than the server keeps, as the newest may not be valid yet."""
    return CheckpointStore(run_dir / "checkpoints", keep=keep + 1)
