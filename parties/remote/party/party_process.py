"""A party as a process of its own: its data, its folder, and the server's orders until the server says goodbye."""

import queue
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from parties.build import TrainingLabels, build_party, feature_config
from parties.feature_party import FeatureParty
from parties.remote.joining import DataDigests, agreement, check_mode, labels_digest
from parties.remote.party.dialer import Dialer, Order, Over
from parties.remote.party.worker import PartyWorker, open_store
from parties.remote.tls.diagnosis import explain
from parties.remote.transport.security import load_identity
from vfl.checkpoint import CheckpointStore, State
from vfl.config import ConfigError, ExperimentConfig
from vfl.data.files import load_shared_labels
from vfl.data.prediction_files import load_samples
from vfl.data.samples import Samples
from vfl.data.source import Prepared, open_source, prepare_party
from vfl.loop import stop_on_signal
from vfl.run_folder import check_run, only_process_in, open_run, read_run_id, write_run_id
from vfl.runtime import start_runtime
from vfl.wire.envelope import PROTOCOL_VERSION, Envelope, Goodbye, Hello, Leaving, kind_of

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


def run_party(
    config: ExperimentConfig,
    name: str,
    run_dir: Path,
    *,
    insecure: bool,
    console: Console,
    samples: Path | None = None,
) -> Goodbye:
    """Take part in the training, or in a prediction, until it is over; return the server's last word.

    ``samples`` are to be predicted in place of the test samples; a training server refuses who has them. Raises
    ValueError for what cannot be used or the server refuses, PeerLost where it stays away, and KeyboardInterrupt where
    this process is stopped while no server is there.
    """
    check_mode(config)
    if name not in config.parties:
        raise ConfigError(f"--party: data.partition knows {', '.join(config.parties)}, not {name!r}")
    tls = load_identity(name, config.network, "server", insecure=insecure)
    check_run(run_dir, config, resume=True)
    runtime = start_runtime(config)
    holding = load_holding(config, name, samples)
    open_run(run_dir, config)
    store = open_store(run_dir, config.checkpoint.keep)
    instance = secrets.token_hex(8)

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

    dialer = Dialer(hello, config.network, tls, log=console.print, explain=explanation)
    console.print(f"{name}: folder {run_dir}; dialling the server at {config.network.server}")
    with only_process_in(run_dir), dialer:
        return follow_orders(dialer, run_dir, store, restore, console)


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
    wanted = None if samples is None else load_samples(samples, name, data.train, source.check)
    labels: TrainingLabels | None = None
    if config.training.labels == "shared":
        if config.data.labels_file is None:
            raise ConfigError("data.labels_file: is missing; with training.labels shared a party has the labels too")
        shared = load_shared_labels(config.data.labels_file)
        if shared.ids_digests()["train"] != data.train.ids_digest():
            raise ConfigError(f"data.labels_file: {config.data.labels_file} is of other samples than data.file")
        labels = TrainingLabels(shared.train.values, len(shared.classes))
    digests = DataDigests(data.train.ids_digest(), (wanted or data.test).ids_digest(), labels_digest(labels))
    return Holding(prepare_party(source, data), wanted, labels, digests)


def follow_orders(
    dialer: Dialer,
    run_dir: Path,
    store: CheckpointStore,
    restore: Callable[[State | None], FeatureParty],
    console: Console,
) -> Goodbye:
    """Carry out what the server orders until it says goodbye. The first signal asks it for leave."""
    leaving: list[str] = []
    worker: PartyWorker | None = None
    welcome: Order | None = None

    def ask_for_leave(signal_name: str) -> None:
        leaving.append(signal_name)
        console.print(f"{signal_name}: leaving after this round and its checkpoint (again: at once)")
        _send_leaving(dialer, read_run_id(run_dir))

    with stop_on_signal(ask_for_leave):
        while True:
            try:
                event = dialer.inbox.get(timeout=LISTEN_S)
            except queue.Empty:
                if leaving and dialer.stream is None:
                    raise KeyboardInterrupt from None
                continue
            if isinstance(event, Over):
                raise event.error
            match kind_of(event.parcel.envelope):
                case "welcome":
                    welcome = event
                    worker = PartyWorker(_enter_run(run_dir, event.parcel.envelope.run), restore, store)
                    console.print(f"joined run {worker.run}")
                    if leaving:
                        _send_leaving(dialer, worker.run)
                case "goodbye":
                    return event.parcel.envelope.goodbye
                case _ if worker is not None and welcome is not None and event.stream is welcome.stream:
                    _carry_out(worker, event, dialer)
                case _:  # of a stream that has ended: nobody waits for the answer
                    pass
            del event  # or its message stays in memory while the next one comes


def _carry_out(worker: PartyWorker, order: Order, dialer: Dialer) -> None:
    try:
        order.stream.send(*worker.answer(order.parcel))
    except (ValueError, OSError) as error:
        dialer.refuse(" ".join(str(error).split()))
        raise


def _send_leaving(dialer: Dialer, run: str) -> None:
    if dialer.stream is not None:
        dialer.stream.send(Envelope(version=PROTOCOL_VERSION, run=run, leaving=Leaving()))


def _enter_run(run_dir: Path, run: str) -> str:
    if read_run_id(run_dir) != run:
        write_run_id(run_dir, run)
    return run
