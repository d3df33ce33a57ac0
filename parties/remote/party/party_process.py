"""A party as a process of its own: its data, its folder, and the server's orders until the server says goodbye."""

import secrets
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from parties.build import TrainingLabels, build_party, feature_config, training_labels
from parties.feature_party import FeatureParty
from parties.remote.audit import NAME as AUDIT
from parties.remote.audit import Audit
from parties.remote.joining import DataDigests, Terms, agreement, check_mode, labels_digest
from parties.remote.machine import MACHINE, Machine
from parties.remote.party.consent import agree
from parties.remote.party.dialer import Dialer
from parties.remote.party.inbox import Order, Over
from parties.remote.party.own_view import OwnView
from parties.remote.party.worker import PartyWorker, open_store
from parties.remote.tls.diagnosis import explain
from parties.remote.tls.lists import Lists
from parties.remote.transport.security import last_word, load_identity
from parties.remote.transport.stream import Stream
from vfl.checkpoint import State
from vfl.config import ConfigError, ExperimentConfig
from vfl.data.files import load_shared_labels
from vfl.data.prediction_files import load_samples
from vfl.data.samples import Samples
from vfl.data.source import Prepared, Source, open_source, prepare_party
from vfl.loop import stop_on_signal
from vfl.run_folder import check_run, only_process_in, open_run, read_run_id, update_config, write_run_id
from vfl.runtime import start_runtime
from vfl.wire.envelope import PROTOCOL_VERSION, Envelope, EnvelopeError, Goodbye, Hello, Leaving, kind_of
from vfl.wire.messages import Buffer
from vfl.wire.parcel import Parcel
from vfl.wire.text import plain

Answer = Callable[[Parcel], tuple[Envelope, list[Buffer]]]
"""Carries out an order and returns its answer, with the packed message in it."""
LISTEN_S = 0.5
"""Between looks at whether this process should end."""


@dataclass(frozen=True, eq=False)
class Holding:
    """What a party holds: its samples, and the training labels where they are shared."""

    prepared: Prepared
    wanted: Samples | None
    """To be predicted in place of the test samples, raw."""
    labels: TrainingLabels | None
    digests: DataDigests

    @property
    def evaluated(self) -> int:
        """How many samples are evaluated."""
        return len(self.wanted or self.prepared.test)


def run_party(
    config: ExperimentConfig,
    name: str,
    run_dir: Path,
    *,
    insecure: bool,
    console: Console,
    samples: Path | None = None,
    accept: bool = False,
    machine: Machine = MACHINE,
) -> Goodbye:
    """Take part in the training, or in a prediction, until it is over; return the server's last word.

    ``samples`` are to be predicted in place of the test samples; a training server refuses who has them. ``accept``:
    the owner agrees to terms that its file does not have. Raises ValueError for what cannot be used, is not agreed to,
    or the server refuses, PeerLost where it stays away, and KeyboardInterrupt where this process is stopped while no
    server is there.
    """
    check_mode(config)
    if name not in config.parties:
        raise ConfigError(f"--party: data.partition knows {', '.join(config.parties)}, not {name!r}")
    tls = load_identity(name, config.network, "server", insecure=insecure)
    lists = Lists(config.network.tls)
    _forget_attempt(run_dir)
    check_run(run_dir, config, resume=True)
    runtime = start_runtime(config)
    holding = load_holding(config, name, samples)
    open_run(run_dir, config)
    store = open_store(run_dir, config.checkpoint.keep)
    instance = secrets.token_hex(8)
    view = OwnView(name, config, run_dir, console, len(holding.prepared.train))

    def hello() -> Envelope:
        return make_hello(config, name, holding, run_dir, instance)

    def explanation() -> str | None:
        return explain(config.network.server, tls)

    def restore(state: State | None) -> FeatureParty:
        party = build_party(name, holding.prepared, holding.labels, config, runtime)
        if state is not None:
            party.load_state_dict(state)
        if holding.wanted is not None:
            party.test = party.preparation.apply(holding.wanted)
        return party

    def begin(welcome: Envelope) -> Answer:
        own = Terms.of(config, name, holding.evaluated)
        consent = agree(welcome, agreement(config), own, config.network.consent, run_dir, accept=accept)
        _check_welcome(run_dir, welcome.run)
        worker = PartyWorker(welcome.run, restore, store, view.note)

        def answer(order: Parcel) -> tuple[Envelope, list[Buffer]]:
            consent.check(order)
            answered = worker.answer(order)
            if kind_of(order.envelope) == "restore":
                _note_run(run_dir, welcome.run)
            return answered

        return answer

    dialer = Dialer(hello, config.network, tls, log=console.print, explain=explanation, lists=lists, machine=machine)
    console.print(f"{name}: folder {run_dir}; dialling the server at {config.network.server}")
    with only_process_in(run_dir), dialer, closing(view):
        update_config(run_dir, config)
        return Participation(dialer, run_dir, begin, console).follow_orders()


def make_hello(config: ExperimentConfig, name: str, holding: Holding, run_dir: Path, instance: str) -> Envelope:
    """Return what a party says first: who it is, what must agree with the server, and what it has on disk."""
    hello = Hello(
        party=name,
        instance=instance,
        embedding_width=feature_config(config, name).embedding_size,
        agreement=agreement(config),
        train_ids=holding.digests.train_ids,
        test_ids=holding.digests.test_ids,
        labels=holding.digests.labels,
        rounds=open_store(run_dir, config.checkpoint.keep).rounds(),
    )
    return Envelope(version=PROTOCOL_VERSION, run=read_run_id(run_dir), hello=hello)


def load_holding(config: ExperimentConfig, name: str, samples: Path | None = None) -> Holding:
    """Read what the party holds, and nothing else; ``samples`` are others to predict than the test samples.

    Raises ValueError for files that cannot be used.
    """
    source = open_source(config)
    data = source.held_by(name)
    wanted = None if samples is None else _wanted(source, samples, name, data.train)
    labels: TrainingLabels | None = None
    if config.training.labels == "shared":
        if config.data.labels_file is None:
            raise ConfigError("data.labels_file: is missing; with training.labels shared a party has the labels too")
        shared = load_shared_labels(config.data.labels_file)
        if shared.ids_digests()["train"] != data.train.ids_digest():
            raise ConfigError(f"data.labels_file: {config.data.labels_file} is of other samples than data.file")
        labels = training_labels(shared, config)
    digests = DataDigests(data.train.ids_digest(), (wanted or data.test).ids_digest(), labels_digest(labels))
    return Holding(prepare_party(source, data), wanted, labels, digests)


def _wanted(source: Source, path: Path, name: str, train: Samples) -> Samples:
    """Read the samples to predict: from the owner's own table, or a file of prediction_files."""
    rows = source.own_rows(path, name)
    return load_samples(path, name, train, source.check) if rows is None else rows.parts[source.parties.index(name)]


class Participation:
    """Carries out what the server orders until it says goodbye.

    Args:
        dialer: brings the orders.
        run_dir: the party's folder, for its audit log.
        begin: returns what answers orders, within what the owner agrees to, given the server's welcome.
        console: shows what happens.
    """

    def __init__(self, dialer: Dialer, run_dir: Path, begin: Callable[[Envelope], Answer], console: Console) -> None:
        self.dialer = dialer
        self.begin = begin
        self.console = console
        self.audit = Audit(run_dir)
        self.leaving = False
        self.run = ""
        """As the server's welcome has it; empty before the first one."""
        self.answer: Answer
        self.stream: Stream | None = None
        """The one on which the server has welcomed this party."""

    def follow_orders(self) -> Goodbye:
        """Carry out orders; the first signal asks the server for leave."""
        with stop_on_signal(self._ask_for_leave):
            while True:
                event = self.dialer.inbox.get(LISTEN_S)
                if event is None:
                    if self.leaving and self.dialer.stream is None:
                        raise KeyboardInterrupt
                elif isinstance(event, Over):
                    raise event.error
                elif kind_of(event.parcel.envelope) == "goodbye":
                    return event.parcel.envelope.goodbye
                elif kind_of(event.parcel.envelope) == "welcome" or event.stream is self.stream:
                    self._carry_out(event)
                # else of a stream that has ended: nobody waits for the answer
                del event  # or its message stays in memory while the next one comes

    def _carry_out(self, order: Order) -> None:
        try:
            if kind_of(order.parcel.envelope) == "welcome":
                self._enter(order)
                return
            answer, content = self.answer(order.parcel)
            order.stream.send(answer, content)
            if kind_of(answer) == "saved":
                self.audit.note("saved", self.dialer.server, f"round {order.parcel.envelope.save.round}")
        except (ValueError, OSError) as error:
            self.audit.note("refused", self.dialer.server, plain(str(error)))
            self.dialer.refuse(last_word(error))
            raise

    def _enter(self, welcome: Order) -> None:
        self.answer = self.begin(welcome.parcel.envelope)
        self.run = welcome.parcel.envelope.run
        self.stream = welcome.stream
        self.console.print(f"joined run {self.run}")
        self.audit.note("joined", self.dialer.server, f"run {self.run}")
        if self.leaving:
            self._send_leaving()

    def _ask_for_leave(self, signal_name: str) -> None:
        self.leaving = True
        self.console.print(f"{signal_name}: leaving after this round and its checkpoint (again: at once)")
        self._send_leaving()

    def _send_leaving(self) -> None:
        if self.stream is not None and self.stream is self.dialer.stream:  # else once the server's welcome is read
            self.stream.send(Envelope(version=PROTOCOL_VERSION, run=self.run, leaving=Leaving()))


def _forget_attempt(run_dir: Path) -> None:
    """Let a party that was never let in start again with a file that is mended: its folder holds nothing else."""
    if run_dir.is_dir() and {path.name for path in run_dir.iterdir()} <= {"config.yaml", AUDIT}:
        with only_process_in(run_dir):
            (run_dir / "config.yaml").unlink(missing_ok=True)


def _check_welcome(run_dir: Path, run: str) -> None:
    """Raise EnvelopeError for a run that is not the one that the folder belongs to, or none."""
    known = read_run_id(run_dir)
    if not run or known not in ("", run):
        raise EnvelopeError(
            f"welcome to run {run or '(none)'} came, this party's folder belongs to run {known or '(none)'}"
        )


def _note_run(run_dir: Path, run: str) -> None:
    """Note the run to which the folder belongs from its first order on."""
    if not read_run_id(run_dir):
        write_run_id(run_dir, run)
