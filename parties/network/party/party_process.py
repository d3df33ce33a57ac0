"""A party as a separate process: its data, its folder, and the server's orders until the server says goodbye."""

import secrets
import signal
import warnings
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from vfl.base.errors import PeerLost
from vfl.base.modules import blaming
from vfl.config import ConfigError, ExperimentConfig
from vfl.config.registry import is_own
from vfl.core.build import TrainingLabels, build_initial_model, build_party, feature_config, training_labels
from vfl.core.party import SECTION, FeatureParty
from vfl.core.privacy.message_recorder import MessageRecorder
from vfl.core.team import Team
from vfl.data.files import in_classes, load_shared_labels, numbered
from vfl.data.prediction_files import load_samples
from vfl.data.samples import Samples
from vfl.data.source import Prepared, Source, load_all_names, open_source, prepare_party
from vfl.messages.messages import Kind, Message
from vfl.parties.network.action_log import NAME as ACTIONS
from vfl.parties.network.action_log import ActionLog
from vfl.parties.network.admission import DataDigests, Terms, check_party
from vfl.parties.network.clock_and_threads import SYSTEM, System
from vfl.parties.network.party.dialer import Dialer
from vfl.parties.network.party.order_checks import agree, check_welcome
from vfl.parties.network.party.participation import Answer, Participation
from vfl.parties.network.party.party_monitor import OwnReasons, PartyMonitor, note_action
from vfl.parties.network.party.training_session import PartyWorker, open_store
from vfl.parties.network.training_terms import agreement, labels_digest, make_hello
from vfl.parties.network.transport.security import load_identity, noise_key
from vfl.parties.network.wire.frame import pack, unpack
from vfl.parties.network.wire.session import Goodbye
from vfl.predict.start_from import party_start
from vfl.predict.trained_run import without_weights
from vfl.runs.checkpoint import ReadOnlyStore, State
from vfl.runs.run_folder import (
    begin_run,
    check_folder,
    forget_attempt,
    only_process_in,
    read_run_id,
    update_config,
    with_threads_of_run,
    write_run_id,
)
from vfl.runs.runtime import start_runtime, use_threads_for
from vfl.runs.torchrun_group import SingleProcess, Workers

TRAINING = frozenset({Kind.RESTORE, Kind.START_ROUND, Kind.EMBED, Kind.UPDATE, Kind.END_ROUND, Kind.TRAIN_ALONE})
"""Orders that all processes carry out; to look at the model takes one."""
REASONS = "reasons.csv"
"""File in a party's folder: what each of its columns moved in the scores that were explained."""
TEAM_WAIT_S = 1800.0
"""Seconds that a party's process waits for the others before it considers them lost."""


def check_team(name: str, config: ExperimentConfig, processes: int) -> float:
    """Return the seconds that a party's processes wait for each other. Raises ConfigError as ``check_party``."""
    check_party(config, name)
    return TEAM_WAIT_S


class Follower(PartyWorker):
    """Carries out orders that the first process has checked."""

    def _admit(self, order: Message) -> None:
        """Return the order's message unchecked: the first process has checked it, and not every order comes here."""


def pass_on(workers: SingleProcess, order: Message) -> None:
    """Pass an order to the other processes if they take part in it. Raises PeerLost."""
    if order.kind in TRAINING:
        workers.say(pack(order))


@contextmanager
def leading(workers: SingleProcess) -> Generator[None]:
    """Release the other processes at the end."""
    try:
        yield
    finally:
        with suppress(PeerLost):
            workers.say()


@dataclass(frozen=True, eq=False)
class Holding:
    """A party's data: its samples, and the training labels if they are shared."""

    prepared: Prepared
    wanted: Samples | None
    """Raw samples to predict in place of the test samples."""
    labels: TrainingLabels | None
    digests: DataDigests
    wanted_row: Callable[[int], str] = numbered
    """Name of a sample to predict, for its owner."""

    @property
    def evaluated(self) -> int:
        """Return the number of samples to evaluate."""
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
    machine: System = SYSTEM,
    workers: SingleProcess | None = None,
) -> Goodbye:
    """Take part in the training, or in a prediction, until it is over; return the server's goodbye.

    Of several ``workers`` the first one does; all others call ``follow_party``. ``samples`` are predicted in place of
    the test samples; a training server refuses a party with such samples. ``accept``: the owner agrees to terms that
    its file does not contain. Raises ValueError for data that cannot be used, terms that are not agreed to, and a
    refusal of the server, PeerLost if the server stays away, and KeyboardInterrupt if this process is stopped while no
    server is there.
    """
    workers = workers or SingleProcess()
    check_party(config, name)
    instance = secrets.token_hex(8)

    def hello() -> Message:
        return make_hello(config, name, run_dir, instance, agreement(config), holding.digests)

    tls, ahead = load_identity(name, config.network, insecure=insecure), config.training.staleness
    dialer = Dialer(hello, config.network, tls, log=console.print, ahead=ahead, machine=machine)
    forget_attempt(run_dir, ACTIONS)
    config = with_threads_of_run(run_dir, config)
    check_folder(run_dir, config)
    start = partial(party_start, config, name, run_dir)
    last = last_state(run_dir, config)
    holding = load_holding(config, name, samples, start(), last)
    check_brought(config, name, holding.prepared, last)
    restore = restorer(config, name, holding, workers, run_dir)
    begin_run(run_dir, config)
    store = open_store(run_dir, config.checkpoint.keep)
    of_samples = len(holding.prepared.train), holding.evaluated, holding.wanted, holding.wanted_row
    log_action = partial(note_action, ActionLog(run_dir), dialer)
    view = PartyMonitor(name, config, run_dir, console, *of_samples, log_action)

    def begin(welcome: Message) -> Answer:
        own = Terms.of(config, name, holding.evaluated)
        check_welcome(config, run_dir, welcome.run)
        consent = agree(welcome, agreement(config), own, config.network.consent, run_dir, accept=accept)
        passed_on, warn = partial(pass_on, workers), view.warn_of_unseen_values
        worker = PartyWorker(welcome.run, restore, store, start, consent, passed_on, view.note, holding.wanted, warn)
        return partial(_obey, worker, run_dir, welcome.run, config)

    console.print(f"{name}: folder {run_dir}; dialling the server at {config.network.server}")
    with leading(workers), only_process_in(run_dir):
        participation = Participation(dialer, run_dir, begin, console)
        return participation.take_part(view.page, closing(view))


def follow_party(config: ExperimentConfig, name: str, run_dir: Path, samples: Path | None, workers: Workers) -> None:
    """Carry out the first process's orders. Raises ValueError for unusable data, PeerLost without that process."""
    check_party(config, name)
    holding = load_holding(config, name, samples, party_start(config, name, run_dir))
    restore = restorer(config, name, holding, workers, run_dir)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # torchrun signals all; the first one decides when it is over
    start = partial(party_start, config, name, run_dir)
    follower = Follower("", restore, ReadOnlyStore(run_dir / "checkpoints"), start)
    while order := workers.hear():
        follower.answer(unpack(order))


def restorer(
    config: ExperimentConfig, name: str, holding: Holding, workers: SingleProcess, run_dir: Path
) -> Callable[[State | None], FeatureParty]:
    """Return the function that makes the party from a saved state, or as built."""
    if workers.size > 1 and "embeddings" in config.privacy.noisy and config.privacy.noise_seed is None:
        raise ConfigError("privacy.noise_seed: the processes of a party need one, to draw the same noise")
    if workers.size > 1 and config.privacy.record:
        raise ConfigError("privacy.record: of several processes each sees a part; let the party train as one process")
    runtime = start_runtime(config)
    team = Team(workers) if isinstance(workers, Workers) else None
    held = f"{config.settings_fixed_on_resume()} {holding.digests}"
    if workers.from_first(held) != held:
        raise ConfigError("torchrun: the party's processes differ; give all the same files and settings")

    def restore(state: State | None) -> FeatureParty:
        secret = noise_key(config, run_dir)
        begun = config if state is None else without_weights(config)
        party = build_party(name, holding.prepared, holding.labels, begun, runtime, team, secret)
        if config.training.labels == "server":
            use_threads_for(config, party.macs)
        if state is not None:
            with blaming("--run-dir"):
                party.load_state_dict(state)
        party.tells = config.network.consent.reasons
        if workers.rank == 0:
            party.on_reasons = OwnReasons(run_dir / REASONS, holding.prepared.column_names).append
        if config.privacy.record:
            party.recorder = MessageRecorder(party.views)
        return party

    return restore


def _obey(worker: PartyWorker, run_dir: Path, run: str, config: ExperimentConfig, order: Message) -> Message:
    """Answer an order; the first one binds the folder to the run, and proves that the data are the run's."""
    answered = worker.answer(order)
    if order.kind is Kind.RESTORE:
        if not read_run_id(run_dir):
            write_run_id(run_dir, run)
        update_config(run_dir, config)
    return answered


def load_holding(
    config: ExperimentConfig,
    name: str,
    samples: Path | None = None,
    kept: State | None = None,
    last: State | None = None,
) -> Holding:
    """Read only the party's data; ``samples`` are predicted in place of the test samples.

    ``kept`` is its state of the run whose preparation, classes and scale of values are kept; ``last`` that of the run
    itself, if it has one. Raises ValueError for files that cannot be used.
    """
    source = open_source(config)
    load_all_names(source, {name: last} if last else {})
    if kept is not None:
        source.keep_names(name, kept["raw"]["names"])
    data = source.held_by(name)
    wanted, wanted_row = (None, numbered) if samples is None else _wanted(source, samples, name, data.train)
    labels: TrainingLabels | None = None
    if config.training.labels == "shared":
        if config.data.labels_file is None:
            raise ConfigError("data.labels_file: is missing; with training.labels shared a party has the labels too")
        shared = load_shared_labels(config.data.labels_file)
        if shared.ids_digests()["train"] != data.train.ids_digest():
            raise ConfigError(f"data.labels_file: {config.data.labels_file} is of other samples than data.file")
        protocol = None if kept is None else kept["protocol"]
        labels = training_labels(in_classes(shared, protocol["task"]) if protocol else shared, config, protocol)
    digests = DataDigests(data.train.ids_digest(), (wanted or data.test).ids_digest(), labels_digest(labels))
    return Holding(prepare_party(source, data, kept), wanted, labels, digests, wanted_row)


def check_brought(config: ExperimentConfig, name: str, data: Prepared, last: State | None) -> None:
    """Try an owner's own model, unless a checkpoint has it: errors must come before others wait for the party.

    Raises ConfigError for code, weights and frozen parts that cannot be used.
    """
    settings = feature_config(config, name)
    if last is None and (settings.weights or settings.freeze or is_own(settings.kind)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is built again and warns then
            build_initial_model(name, data, config)


def last_state(run_dir: Path, config: ExperimentConfig) -> State | None:
    """Return the state of the party's last checkpoint, None if it has none that can be read."""
    store = open_store(run_dir, config.checkpoint.keep)
    with suppress(ValueError):  # a damaged checkpoint: restoring reports it, or takes an older one
        return store.load(store.rounds()[-1])[SECTION] if store.rounds() else None
    return None


def _wanted(source: Source, path: Path, name: str, train: Samples) -> tuple[Samples, Callable[[int], str]]:
    """Read the samples to predict, from the owner's own table or a file of ``prediction_files``, and their names."""
    from vfl.data.tables.new_rows import read_own_rows  # pyarrow, which a training without tables does without

    if (rows := read_own_rows(source, path, name)) is None:
        return load_samples(path, name, train, source.check), numbered
    return rows.parts[source.parties.index(name)], rows.row
