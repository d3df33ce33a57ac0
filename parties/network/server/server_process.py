"""The head server as a separate process: it trains whenever all parties are here, from a round that all have."""

import secrets
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from vfl.base.errors import PeerLost, PeerMisbehaved
from vfl.base.metrics import headline
from vfl.config import ExperimentConfig
from vfl.console import DONE, INTERRUPTED
from vfl.core.build import Start, TrainingLabels, build_head_server, build_roster, macs_of_head, training_labels
from vfl.core.costs.controllers import past_ratios
from vfl.core.costs.ledger import Ledger
from vfl.core.embeddings import EmbeddingReceiver
from vfl.core.link import PartyLink
from vfl.core.parties import Parties, PartyProxy
from vfl.core.pruning_pictures import ShowWidths
from vfl.data.files import LabelData, in_classes
from vfl.data.samples import Labels
from vfl.data.source import open_source
from vfl.parties.network.action_log import NAME as ACTIONS
from vfl.parties.network.action_log import ActionLog
from vfl.parties.network.admission import DataDigests
from vfl.parties.network.clock_and_threads import SYSTEM, System
from vfl.parties.network.server.connection import RemoteLink, checkpoint_reference
from vfl.parties.network.server.hub import Connections, Hub, in_sessions
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.training_page import TrainingPage
from vfl.parties.network.training_terms import expected_of, labels_digest
from vfl.parties.network.transport.security import load_identity, noise_key
from vfl.predict.mode import VERTICAL
from vfl.predict.start_from import server_start
from vfl.runs.checkpoint import CheckpointStore, State
from vfl.runs.loop import Callback, TrainingLoop
from vfl.runs.mode import Built
from vfl.runs.run import RunOutcome, train
from vfl.runs.run_folder import (
    RUN_ID,
    begin_run,
    check_run,
    forget_attempt,
    only_process_in,
    read_run_id,
    with_threads_of_run,
    write_run_id,
)
from vfl.runs.runtime import Runtime, start_runtime, use_threads_for
from vfl.runs.stored_run import Run
from vfl.runs.tensorboard import how_to_watch, opening

ABSENT = "absent"
"""Key in the server's checkpoint, beside the reference to a party's state: the party was absent."""


class DroppableParty(PartyProxy):
    """A party that is absent from the moment that it is lost, to the end of the session.

    Args:
        receiver, link, ledger: as of any party; without a link it is absent already.
        on_loss: called when the party is lost; what it raises the order in question raises.
    """

    def __init__(
        self,
        receiver: EmbeddingReceiver,
        link: PartyLink | None,
        ledger: Ledger,
        on_loss: Callable[[str, PeerLost], None],
    ) -> None:
        super().__init__(receiver, link, ledger)
        self.on_loss = on_loss
        self._saved = checkpoint_reference(0, "")

    def lose(self, lost: PeerLost) -> None:
        """Continue without the party."""
        self.link = None
        self.on_loss(self.name, lost)

    def save(self, rounds: int) -> Callable[[], State]:
        """Let the party save; the outcome refers to its last state on its disk."""
        saving = self.attempt(lambda link: link.save())

        def kept() -> State:
            saved = None if saving is None else self._outcome(saving)
            if saved is None:
                return self._saved | {"as_of": rounds, ABSENT: True}
            self._refer_to(saved)
            return saved | {ABSENT: False}

        return kept

    def load(self, state: State) -> Callable[[], None]:
        """Let the party restore the state of a reference."""
        self._refer_to({key: state[key] for key in self._saved})
        return super().load(state)

    def _outcome(self, saving: "Future[State]") -> State | None:
        return self.attempt(lambda _: saving.result())

    def _refer_to(self, saved: State) -> None:
        self._saved, self.saved_digest = saved, saved["digest"]


@dataclass(frozen=True, eq=False)
class ServerLabels:
    """Labels and digests of the server."""

    train: TrainingLabels
    test: Labels
    digests: DataDigests


@dataclass(eq=False)
class ServerProcess(Callback):
    """Trains in sessions. Each continues from the last round that every party has, until one is lost or leaves.

    A session also ends, after its round and checkpoint, where a party wants to leave or is back.
    """

    config: ExperimentConfig
    run_dir: Path
    labels: ServerLabels
    runtime: Runtime
    start: Start | None = None
    """The run that the training starts from, with what it keeps of it; None without one."""

    def __post_init__(self) -> None:
        self.page = TrainingPage(self.config.parties)
        network, self.names = self.config.network, self.config.parties
        self.leaving = set[str]()
        self.returned = set[str]()
        self._loop: TrainingLoop | None = None
        self.drops = network.on_party_loss == "drop"
        self.away = self._away_at_checkpoint()
        """Parties that were dropped and are not back."""

    def leave(self, name: str) -> None:
        """Note, in the hub's thread, a party that wants to leave."""
        self.leaving.add(name)
        self._stop()

    def joined(self, name: str) -> None:
        """Note, in the hub's thread, that a party is here: perhaps one that was lost."""
        if name in self.away:
            self._come_back(name)

    def on_start(self, loop: TrainingLoop) -> None:
        """Note the session, and end it at once for a party that asked earlier."""
        self._loop = loop
        self._stop()

    def on_end(self, loop: TrainingLoop) -> None:
        """Release the loop."""
        self._loop = None

    def _come_back(self, name: str) -> None:
        self.returned.add(name)
        self._stop()

    def _stop(self) -> None:
        loop, asking = self._loop, self.leaving or self.returned
        if loop is not None and loop.stop_reason is None and asking:
            how = "leaves" if self.leaving else "is back"
            loop.request_stop(f"{', '.join(sorted(asking))} {how}", to_resume=True)

    def serve(self, hub: Hub, console: Console) -> RunOutcome:
        """Run sessions until the training is finished or interrupted, and say goodbye to the parties.

        Raises PeerLost if a party stays away or network.on_party_loss is abort.
        """
        work = partial(self._train, hub, console)
        return in_sessions(hub, partial(self._gather, hub), work, self._last_word, self._note_loss)

    def _train(self, hub: Hub, console: Console, connections: Connections, session: int) -> RunOutcome | None:
        """Train one session; return its outcome if it is the last one."""
        if not connections:
            return self._ended()
        store = self._open_store(connections)
        stage = VERTICAL.stage(self.config, self.runtime, self.run_dir, console)
        # Built anew, as every party is by the session's first order: nothing of a broken session remains.
        server = build_head_server(
            self._roster(hub, connections, session, console),
            self.labels.train,
            self.labels.test,
            self.config,
            self.runtime,
            stage.progress.on_step,
            noise_key(self.config, self.run_dir),
        )
        server.past_ratios = past_ratios(self.config, self.run_dir)
        if self.start is not None and not store.rounds():
            kept = self.start.sections
            server.begin_with(kept[SERVER])
            # Round 0 of a party with a digest is its own checkpoint of the run that is started from.
            server.roster.load({name: checkpoint_reference(0, kept[name]["digest"]) for name in self.names})
        built = Built(server, [ShowWidths(server, stage.tensorboard)])
        outcome = train(built, self.config, stage, store, [self, self.page])
        if outcome.finished or outcome.signal_name:
            return outcome
        self._let_leave(hub, outcome)
        return None

    def _last_word(self, outcome: RunOutcome) -> tuple[str, int]:
        reason = f"the server ended after {outcome.summary['rounds']} rounds"
        reason += f", {headline(outcome.summary)}" if self.config.evaluation.tell_parties else ""
        return reason, DONE if outcome.finished else INTERRUPTED

    def _away_at_checkpoint(self) -> set[str]:
        """Return the parties that an earlier server had dropped, which this one does not wait for either."""
        loaded = CheckpointStore(self.run_dir / "checkpoints").load_latest() if self.drops else None
        return {name for name in self.names if loaded is not None and loaded[1][name].get(ABSENT)}

    def _gather(self, hub: Hub) -> Connections:
        """Return the parties' connections, without waiting for dropped ones that are absent."""
        self.returned.clear()  # before the look: a party that returns in between counts in both, not in none
        self.away -= hub.joined().keys()
        names = tuple(name for name in self.names if name not in self.away)
        if not names:
            dropped = [f"{name} was dropped or has left" for name in sorted(self.away - hub.barred.keys())]
            raise PeerLost(f"no party is left: {'; '.join([*hub.barred.values(), *dropped])}")
        try:
            return hub.wait_for(names, self.config.network.wait_s)
        except PeerLost:
            if self._ended() is None:
                raise
            return {}  # nobody is needed any more

    def _ended(self) -> RunOutcome | None:
        """Return the outcome of all rounds, if an earlier server was killed after the last one and parties have
        left."""
        run = Run(self.run_dir)
        summary = run.summary if run.finished else {}
        whole = summary.get("rounds") == self.config.training.rounds
        return RunOutcome(summary, finished=True, signal_name=None, stop_reason=None) if whole else None

    def _open_store(self, connections: Connections) -> CheckpointStore:
        """Return the server's checkpoints, only those whose parts every party has.

        Raises PeerMisbehaved for a party that has none of them, such as one without its folder.
        """
        store = CheckpointStore(self.run_dir / "checkpoints", keep=self.config.checkpoint.keep)
        if self.drops:  # a party that was away has no part of the rounds without it
            return store
        usable = set(store.rounds())
        for name, connection in connections.items():
            if usable and not usable & connection.rounds:
                lost = PeerMisbehaved(
                    name, f"of the checkpoints after rounds {sorted(usable)} it has none: restore its folder"
                )
                connection.expel(lost)
                raise lost
            # A round counts only where all have it: one that the server saved but a party did not was never finished.
            usable &= connection.rounds
        store.usable = usable
        return store

    def _roster(self, hub: Hub, connections: Connections, session: int, console: Console) -> Parties:
        links = {name: RemoteLink(connection, session) for name, connection in connections.items()}
        if not self.drops:
            return build_roster(links, self.labels.train, self.config)

        def drop(name: str, lost: PeerLost) -> None:
            last = hub.note_offence(lost)
            alone = self.away | {name} >= set(self.names)
            if last or not alone:  # else it is awaited, and nobody who was dropped before
                self.away.add(name)
            if alone:
                raise PeerLost(f"{lost}; no party is left")
            if name in hub.joined():  # back already
                self._come_back(name)
            until = f"to the end: {last}" if last else "until it is back"
            console.print(f"warning: {lost}; dropped: trained without {until}")

        return build_roster(links, self.labels.train, self.config, partial(DroppableParty, on_loss=drop))

    def _note_loss(self, lost: PeerLost) -> None:
        if self.config.network.on_party_loss == "abort":
            raise PeerLost(f"{lost}; network.on_party_loss is abort") from None

    def _let_leave(self, hub: Hub, outcome: RunOutcome) -> None:
        names, self.leaving = tuple(self.leaving), set()
        if not names:
            return  # one is back
        if self.drops:
            self.away |= set(names)
        hub.dismiss(names, exit_code=INTERRUPTED, reason=f"left after {outcome.summary['rounds']} rounds")
        if self.config.network.on_party_loss == "abort":
            raise PeerLost(f"{outcome.stop_reason}; network.on_party_loss is abort")


def run_server(
    config: ExperimentConfig,
    run_dir: Path,
    *,
    resume: bool,
    insecure: bool,
    console: Console,
    machine: System = SYSTEM,
) -> RunOutcome:
    """Serve the experiment in ``run_dir``; the first SIGINT or SIGTERM ends it after a checkpoint.

    Raises ValueError for data or a folder that cannot be used, PeerLost if a party stays away.
    """
    if config.simulation.given:
        console.print("warning: simulation: ignored, between processes the clock is real")
    tls = load_identity(SERVER, config.network, insecure=insecure)
    forget_attempt(run_dir, RUN_ID, ACTIONS)
    config = with_threads_of_run(run_dir, config)
    check_run(run_dir, config, resume=resume)
    runtime = start_runtime(config)
    if config.training.labels == "server":  # else parties repeat the head's steps, with PyTorch's number as well
        use_threads_for(config, macs_of_head(config))
    start = server_start(config, run_dir)
    labels = server_labels(config, open_source(config).held_labels(), start)
    begin_run(run_dir, config)
    with only_process_in(run_dir), ActionLog(run_dir).noting_end() as say_end:
        run = read_run_id(run_dir)
        if not run:
            run = secrets.token_hex(8)
            write_run_id(run_dir, run)
        process = ServerProcess(config, run_dir, labels, runtime, start)
        hub = Hub(
            run,
            expected_of(config, labels.digests, len(labels.test.values)),
            config.network,
            tls,
            log=console.print,
            folder=run_dir,
            on_leaving=process.leave,
            on_joined=process.joined,
            machine=machine,
        )
        process.page.present = hub.joined
        with process.page.served(config.network.metrics, console.print), hub:
            console.print(f"{config.name}: run {run}, folder {run_dir}, listening on {config.network.listen}")
            console.print(how_to_watch(run_dir, opening(VERTICAL.front_page, labels.train.task.metric)))
            outcome = process.serve(hub, console)
        say_end(DONE if outcome.finished else INTERRUPTED, "")
        return outcome


def server_labels(config: ExperimentConfig, data: LabelData, start: Start | None = None) -> ServerLabels:
    """Return the server's labels, as ``start`` has them, and the digests that parties' are compared with."""
    kept = None if start is None else start.sections[SERVER]
    if kept is not None:
        data = in_classes(data, kept["task"])
    train = training_labels(data, config, kept)
    ids = data.ids_digests()
    shared = train if config.training.labels == "shared" else None
    digests = DataDigests(ids["train"], ids["test"], labels_digest(shared))
    return ServerLabels(train, data.test, digests)
