"""A party that serves: it embeds its own rows by key, for whoever scores with the trained model.

It joins as for a training, goes back to the checkpoint that the server's refers to, and answers LOOK_UP and what asks
for reasons. Its rows are in a file, or fetched by key.
"""

import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from vfl.base.errors import one_line
from vfl.base.macs import count_macs
from vfl.config import ConfigError, ExperimentConfig
from vfl.config.network import ConsentConfig
from vfl.config.tables import ServedRowsConfig
from vfl.core.column_paths import POINTS_A_STEP
from vfl.core.finished_party import FinishedParty
from vfl.core.row_by_row import is_light
from vfl.data.drift import DRIFT
from vfl.data.samples import Samples
from vfl.data.tables.one_row import RowReader
from vfl.data.tables.source import Tables
from vfl.messages.control import Explained
from vfl.messages.keys import LOOKED, Found, announced_keys, keys_part, presence_part, read_keys
from vfl.messages.messages import REPLIES, Kind, Message, MessageError, Part, PartKind
from vfl.parties.network.action_log import NAME as ACTIONS
from vfl.parties.network.action_log import ActionLog
from vfl.parties.network.admission import check_party
from vfl.parties.network.clock_and_threads import SYSTEM, System
from vfl.parties.network.party.dialer import Dialer
from vfl.parties.network.party.order_checks import Worker, check_welcome
from vfl.parties.network.party.participation import Answer, Participation
from vfl.parties.network.party.party_monitor import OwnReasons, note_action
from vfl.parties.network.party.training_session import open_store
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.training_page import TrainingPage
from vfl.parties.network.training_terms import make_hello, serving_agreement
from vfl.parties.network.transport.security import load_identity
from vfl.parties.network.wire.session import Goodbye, Restore
from vfl.parties.serving.fetched_rows import FetchedRows
from vfl.parties.serving.file_rows import FileRows, FoundRows, ServedDrift
from vfl.parties.serving.row_connections import http_connections, query_connections
from vfl.predict.trained_run import load_party
from vfl.runs.run_folder import check_folder, forget_attempt, only_process_in, read_run_id, read_secret
from vfl.runs.stored_run import Run

NOTED_S = 60.0
"""Seconds between lines of the log about keys that were explained."""


@dataclass(eq=False)
class ExplainedKeys:
    """Keeps for the owner what its columns moved, and counts the keys in its log."""

    file: OwnReasons
    note: Callable[[str], None]
    """Adds a line to the log of actions."""
    say: Callable[[str], None]
    """Shows a line."""
    machine: System = SYSTEM
    _keys: int = 0
    _noted_s: float = -NOTED_S
    _failed: bool = False

    def keep(self, keys: Sequence[object], moved_nC: Tensor, errors_n: Tensor) -> None:
        """Keep what each column moved; a file that cannot be written is reported once, and spoils no answer."""
        self._keys += len(keys)
        try:
            self.file.append(keys, moved_nC, errors_n)
            if self.machine.now_s() - self._noted_s >= NOTED_S:
                self.flush()
            self._failed = False
        except OSError as error:
            if not self._failed:
                self.say(f"{self.file.path}: cannot be written: {one_line(error)}")
            self._failed = True

    def flush(self) -> None:
        """Note the keys that were explained since the last line. Raises OSError."""
        if self._keys:
            self.note(f"{self._keys} keys")
        self._keys, self._noted_s = 0, self.machine.now_s()

    def close(self) -> None:
        """Note what is left; where the log cannot be written, what ends the process must be seen."""
        with suppress(OSError):
            self.flush()


@dataclass(eq=False)
class OwnedReasons:
    """Answers OFFER, EXPLAIN and ATTRIBUTE for one model."""

    party: FinishedParty
    take: Callable[[int], Found | None]
    """Counts keys; returns why the owner does not agree to answer for them, if so."""
    hashed: bool
    """Keys travel as HMAC."""
    _rows: tuple[Samples, Tensor, list[str]] | None = None
    """Those of the last EXPLAIN, and their keys."""

    def answer(self, request: Message, samples: Samples | None, places: Mapping[bytes, int]) -> tuple[Part, ...]:
        """Return the parts of the reply. Raises MessageError for a request that is not due or agreed to.

        ``samples`` and ``places`` are those of the last look-up, the places by key.
        """
        if request.kind is Kind.OFFER:
            return (self.party.offer().part(),)
        if self.party.offer().tells == "nothing":
            raise MessageError("the reasons of scores are asked for; network.consent.reasons does not agree")
        wanted = Explained.of(request)
        if request.kind is Kind.EXPLAIN:
            return (self._explain(wanted, read_keys(request.only(PartKind.KEYS)), samples, places),)
        if self._rows is None:
            raise MessageError("ATTRIBUTE came without an EXPLAIN that was answered")
        (rows, rows_n, keys), self._rows = self._rows, None
        return self.party.attribute(rows, rows_n, wanted, request.only(PartKind.GRADIENT), keys)

    def _explain(
        self, wanted: Explained, keys: Sequence[bytes], samples: Samples | None, places: Mapping[bytes, int]
    ) -> Part:
        """Return the paths to the rows of keys; none where the owner declines, or has no such row any more."""
        self._rows = None
        if (wanted.start, wanted.stop) != (0, len(keys)):
            raise MessageError(f"EXPLAIN names samples {wanted.start} to {wanted.stop} and {len(keys)} keys")
        # A point of a path reveals as much as a row does.
        declined = self.take(len(keys) * wanted.steps)
        if declined is not None or samples is None or not all(key in places for key in keys):
            return Part(PartKind.EMBEDDING, b"")
        rows_n = torch.tensor([places[key] for key in keys])
        self._rows = samples, rows_n, [key.hex() if self.hashed else key.decode() for key in keys]
        return self.party.embed_paths(samples, rows_n, wanted.steps)


MINUTE_S = 60.0
WAITED = 0.8
"""Share of ``serving.timeout_ms`` in which rows must come: the others of a batch still reach the server in time."""
SERVED_REASONS = "served_reasons.csv"
"""File in a party's folder: what each of its columns moved in the scores of keys."""


@dataclass(eq=False)
class Allowance:
    """Limit of the keys that the owner answers for: a number per minute, until a date."""

    bounds: ConsentConfig
    machine: System = SYSTEM
    _answered: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])
    _keys: int = 0
    """Keys of the last minute: the sum over ``_answered``."""

    def take(self, keys: int) -> Found | None:
        """Count keys; return why the owner does not agree to answer for them, if so."""
        if self.bounds.until is not None and datetime.now(UTC).date() > self.bounds.until:
            return Found(outcome="expired")
        now_s = self.machine.now_s()
        while self._answered and self._answered[0][0] <= now_s - MINUTE_S:
            self._keys -= self._answered.popleft()[1]
        if self._keys + keys > self.bounds.scored_keys:
            return Found(outcome="too_many")
        self._answered.append((now_s, keys))
        self._keys += keys
        return None


@dataclass(eq=False)
class ServingParty:
    """Answers for an owner's rows with the model of one checkpoint."""

    party: FinishedParty
    macs: int
    """Multiply-accumulates of a row."""
    rows: FileRows | FetchedRows
    drift: ServedDrift
    allowance: Allowance
    refused: Callable[[str], None]
    """Called with a refusal's reason."""
    hashed: bool
    """Keys travel as HMAC."""

    def __post_init__(self) -> None:
        self._looked: FoundRows | None = None
        """The rows of the last look-up."""
        self._reasons = OwnedReasons(self.party, self._take, self.hashed)

    def is_light(self, request: Message) -> bool:
        """Return whether the answer takes less than handing the request to another thread. Raises MessageError."""
        match request.kind:
            case Kind.LOOK_UP:
                keys = sum(map(announced_keys, request.payloads(PartKind.KEYS)))
                return self.rows.is_at_hand(self.party) and is_light(self.macs, keys)
            case Kind.EXPLAIN | Kind.ATTRIBUTE:
                asked = Explained.of(request)
                # The points of a path are computed at once; of each forward, and for ATTRIBUTE twice as much backward.
                points = asked.steps * (1 if request.kind is Kind.EXPLAIN else 3 * POINTS_A_STEP)
                return is_light(points * self.macs, asked.stop - asked.start)
            case _:
                return False

    def handle(self, request: Message) -> Message:
        """Answer LOOK_UP and what asks for reasons. Raises MessageError for anything else."""
        match request.kind:
            case Kind.LOOK_UP:
                parts = self._look_up(read_keys(request.only(PartKind.KEYS)))
            case Kind.OFFER | Kind.EXPLAIN | Kind.ATTRIBUTE:
                rows = self._looked
                samples, places = (None, {}) if rows is None else (rows.samples, rows.places)
                parts = self._reasons.answer(request, samples, places)
            case _:
                raise MessageError(f"{self.party.name} serves scores; it does not answer {request.kind.name}")
        return Message(REPLIES[request.kind], request.round_index, request.exchange, parts)

    def _take(self, keys: int) -> Found | None:
        """Count keys; return why the owner does not agree to answer for them, if so."""
        if (declined := self.allowance.take(keys)) is not None:
            self.refused(f"{declined.outcome}: {keys} keys were asked for")
        return declined

    def _look_up(self, keys: list[bytes]) -> tuple[Part, ...]:
        declined, frame, foreign, away = self._take(len(keys)), b"", list[bytes](), ()
        there = np.zeros(len(keys), dtype=bool)
        if declined is None:
            rows = self._looked = self.rows.find(self.party, keys)
            away = tuple(place for place, key in enumerate(keys) if key in rows.away)
            places = np.array([rows.places.get(key, -1) for key in keys])
            there = places >= 0
            held = places[there]
            frame = self.party.frame_of(self.party.embed_new(rows.samples, torch.from_numpy(held)))  # pyright: ignore[reportUnknownMemberType]  # numpy is untyped in torch
            self.drift.note(self.party.preparation.histograms, rows.raw, held.tolist())
            foreign = [known[place] for known in rows.known_as for place in held.tolist()]
        said = Part(PartKind.CONTROL, LOOKED) if declined is None else declined.part()
        said = Found(away=away).part() if away else said
        return said, presence_part(there), Part(PartKind.EMBEDDING, frame), keys_part(foreign)


@dataclass(frozen=True, eq=False)
class ServedModels:
    """The trained models that answer: that of the last checkpoint asked for is kept."""

    run_dir: Path
    config: ExperimentConfig
    rows: FileRows | FetchedRows
    drift: ServedDrift
    allowance: Allowance
    refused: Callable[[str], None]
    """Called with a refusal's reason."""
    explained: ExplainedKeys
    _kept: dict[tuple[int, str], FinishedParty] = field(default_factory=dict[tuple[int, str], FinishedParty])

    def serve(self, restore: Restore) -> ServingParty | None:
        """Return a party that answers from this checkpoint; None for round 0, with which a session begins.

        Raises ValueError where the party has another checkpoint.
        """
        if not restore.round:
            return None
        which = restore.round, restore.digest
        if which not in self._kept:
            self._kept.clear()
            party = self._kept[which] = _finished(self.run_dir, self.config, restore)
            party.tells, party.on_reasons = self.config.network.consent.reasons, self.explained.keep
            party.column_names = self.explained.file.names
        party, hashed = self._kept[which], self.config.serving.key_secret is not None
        macs = count_macs(party.model, *party.batch(party.train, torch.arange(1)))
        return ServingParty(party, macs, self.rows, self.drift, self.allowance, self.refused, hashed)


def serve_party(
    config: ExperimentConfig,
    name: str,
    run_dir: Path,
    *,
    insecure: bool,
    console: Console,
    machine: System = SYSTEM,
) -> Goodbye:
    """Answer for the rows of ``data.tables.NAME.serve`` until the server says goodbye; return its last word.

    ``run_dir`` is the party's folder of the training. Raises ValueError for what cannot be used or the server refuses,
    PeerLost where it stays away, KeyboardInterrupt where this process is stopped while no server is there.
    """
    check_party(config, name)
    served = config.data.tables.get(name)
    if served is None or served.serve is None:
        raise ConfigError(f"data.tables.{name}.serve: is missing; name the table of rows to be scored")
    tls = load_identity(name, config.network, insecure=insecure)
    if not read_run_id(run_dir):
        raise ConfigError(f"--run-dir: {run_dir} is no folder of {name}'s part in a training")
    check_folder(run_dir, config)
    source, audit = _trained_source(run_dir, name), ActionLog(run_dir)
    hello = make_hello(config, name, run_dir, secrets.token_hex(8), serving_agreement(config))
    dialer = Dialer(lambda: hello, config.network, tls, log=console.print, machine=machine)
    columns = source.columns(name).names
    drift = ServedDrift(columns, run_dir / DRIFT, console.print)
    rows = _rows_by_key(config, name, served.serve, source, drift, console.print)
    kept = OwnReasons(run_dir / SERVED_REASONS, columns, "key")
    explained = ExplainedKeys(kept, partial(note_action, audit, dialer, "explained"), console.print, machine)
    refused = partial(note_action, audit, dialer, "refused")
    models = ServedModels(run_dir, config, rows, drift, Allowance(config.network.consent, machine), refused, explained)

    workers = list[Worker[ServingParty]]()
    """That of the present stream, once the server has welcomed the party."""

    def begin(welcome: Message) -> Answer:
        check_welcome(config, run_dir, welcome.run)
        workers[:] = [Worker(welcome.run, models.serve)]
        return workers[0].answer

    def light(order: Message) -> bool:
        serving = workers[0].party if workers else None
        return serving is not None and serving.is_light(order)

    forget_attempt(run_dir, ACTIONS)
    console.print(f"{name}: folder {run_dir}; serving scores, dialling the server at {config.network.server}")
    part = Participation(dialer, run_dir, begin, console, "leaving (again: at once)", light)
    with only_process_in(run_dir), closing(rows), closing(explained):
        return part.take_part(TrainingPage((SERVER,)))


def _rows_by_key(
    config: ExperimentConfig,
    name: str,
    served: ServedRowsConfig,
    source: Tables,
    drift: ServedDrift,
    log: Callable[[str], None],
) -> FileRows | FetchedRows:
    """Return where the owner's rows are. Raises ValueError for what cannot be used, OSError for a file."""
    secret = read_secret(config.serving.key_secret)
    if served.file is not None:
        return FileRows(served.file, source, name, secret, drift, log)
    if secret is not None:
        raise ConfigError(f"data.tables.{name}.serve: asks by key, which serving.key_secret hides; name a file")
    reader, limit_s = RowReader(source, name), WAITED * config.serving.timeout_ms / 1000
    if served.query is not None:
        connect = query_connections(reader.where, config.data.tables[name], len(reader.key), limit_s)
    else:
        connect = http_connections(reader.where, served, reader.key)
    return FetchedRows(reader, connect, limit_s, served.cache_s, drift, log)


def _trained_source(run_dir: Path, name: str) -> Tables:
    loaded = load_party(Run(run_dir))
    if loaded is None:
        raise ConfigError(f"--run-dir: {run_dir} holds no trained model of this party; train first")
    if not isinstance(loaded[1], Tables):
        raise ConfigError(f"data.tables.{name}.serve: {loaded[1].data.dataset.kind} has no tables")
    return loaded[1]


def _finished(run_dir: Path, config: ExperimentConfig, restore: Restore) -> FinishedParty:
    """Return the party as of a checkpoint. Raises ValueError where its own is another one."""
    store = open_store(run_dir, config.checkpoint.keep)
    if restore.round not in store.rounds() or store.digest(restore.round) != restore.digest:
        raise ValueError(
            f"the server scores with the checkpoint after round {restore.round}, which {store.directory} lacks; "
            "restore the party's folder"
        )
    loaded = load_party(Run(run_dir), restore.round)
    assert loaded is not None, "its checkpoint is there"
    return loaded[0]
