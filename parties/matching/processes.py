"""A match between processes: the server's and an owner's, over the connections that training has."""

import json
import multiprocessing
import os
import secrets
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from rich.console import Console

from vfl.config import ConfigError, ExperimentConfig
from vfl.config.tables import TableConfig, label_owner
from vfl.console import DONE
from vfl.data.tables.matching_input import of_rows, own_keys
from vfl.data.tables.matching_result import read_match
from vfl.messages.messages import Kind, Message, MessageError
from vfl.parties.launch.supervisor import Supervisor, make_keys, networked, party_commands, write_configs
from vfl.parties.matching.owner import MatchingOwner
from vfl.parties.matching.server import MatchOutcome, match_keys
from vfl.parties.network.action_log import ActionLog
from vfl.parties.network.admission import DataDigests, Expected, check_owner
from vfl.parties.network.party.dialer import Dialer
from vfl.parties.network.party.order_checks import Worker
from vfl.parties.network.party.participation import Answer, Participation
from vfl.parties.network.server.connection import RemoteLink
from vfl.parties.network.server.hub import Connections, Hub, in_sessions
from vfl.parties.network.tls.certificates import SERVER, Peer
from vfl.parties.network.transport.security import load_identity
from vfl.parties.network.wire.session import Goodbye, Hello, Restore
from vfl.runs.run_folder import PROCESSES, only_process_in, private_files
from vfl.runs.signals import end_with_parent

TELL_S = 5.0
"""Seconds between two lines of progress."""


def serve_match(
    config: ExperimentConfig, run_dir: Path, *, rows: bool = False, insecure: bool, console: Console
) -> MatchOutcome:
    """Listen, and match the keys of the owners that dial in; after a loss, wait for the owner and start anew.

    With ``rows``, they are those of new rows (``for_rows``).

    Raises ValueError for unusable settings, PeerLost if an owner stays away.
    """
    _check(config)
    leader = label_owner(config.data.tables)
    if leader is None:
        raise ConfigError("data.tables: no owner has a label; name its column at one, so that no other can claim to")
    tls = load_identity(SERVER, config.network, insecure=insecure)
    run = secrets.token_hex(8)
    expected = {name: Expected(0, match_agreement(config, rows=rows), DataDigests()) for name in config.owners}

    def match(connections: Connections, session: int) -> MatchOutcome:
        links = [RemoteLink(connections[name], session) for name in config.owners]
        return match_keys(links, leader, config.data.join, config.network.consent.keys, ShowPace(console))

    with private_files():
        run_dir.mkdir(parents=True, exist_ok=True)
    hub = Hub(run, expected, config.network, tls, log=console.print, folder=run_dir)
    with only_process_in(run_dir), hub:
        console.print(f"{config.name}: match {run}, listening on {config.network.listen}")
        gather = partial(hub.wait_for, config.owners, config.network.wait_s)
        return in_sessions(hub, gather, match, lambda outcome: (describe_to_owners(outcome), DONE))


def match_owner(
    config: ExperimentConfig, name: str, run_dir: Path, *, rows: bool = False, insecure: bool, console: Console
) -> Goodbye:
    """Take part in a match until it is over; return the server's goodbye. The result is in the table's ``match``.

    With ``rows``, new rows are matched (``for_rows``).

    Raises ValueError for unusable data or settings or a refusal, PeerLost if the server stays away.
    """
    _check(config)
    check_owner(config, name)
    path = _result_of(config, name)
    hello = Hello(party=name, instance=secrets.token_hex(8), agreement=match_agreement(config, rows=rows))
    first = Message(Kind.HELLO, parts=(hello.part(),))
    tls = load_identity(name, config.network, insecure=insecure)
    dialer = Dialer(lambda: first, config.network, tls, log=console.print)
    keys = own_keys(config.data, name, config.seed)
    workers = config.threads or os.cpu_count() or 1

    owners: list[MatchingOwner] = []

    def start(restore: Restore) -> MatchingOwner:  # each session is a match, with its own secrets
        if restore.round:
            raise MessageError(f"RESTORE after round {restore.round} came, a match has none")
        most, others = config.network.consent.keys, len(config.owners) - 1
        owners.append(MatchingOwner(name, keys, config.data.join, path, pool, workers, most, others))
        return owners[-1]

    def begin(welcome: Message) -> Answer:
        return Worker(welcome.run, start).answer

    sizes = " and ".join(f"{len(each):,}" for each in keys.lists)
    console.print(f"{name}: {sizes} keys; dialling the server at {config.network.server}")
    with private_files():
        run_dir.mkdir(parents=True, exist_ok=True)
    audit = ActionLog(run_dir)
    with multiplying(workers) as pool, only_process_in(run_dir), audit.noting_end() as say_end, dialer:
        try:
            goodbye = Participation(dialer, run_dir, begin, console).follow_orders()
        finally:  # also of a match that failed: points may be guesses at this owner's keys
            told = f"{sum(owner.raised for owner in owners):,} points of others were multiplied"
            audit.note("multiplied", Peer(name, ""), told)
            console.print(f"{name}: {told}")
        say_end(goodbye.exit_code, goodbye.reason)
    console.print(f"{name}: the result is {path}")
    return goodbye


def match_together(config: ExperimentConfig, run_dir: Path, console: Console) -> int:
    """Start a match's server and all owners, wait for their end, and return the server's exit code.

    Each owner's process knows only its own table. Raises ValueError for unusable settings or a folder that cannot be
    used, and for an owner whose result has no file.
    """
    _check(config)
    paths = [_result_of(config, name).resolve() for name in config.owners]
    if len(set(paths)) < len(paths):
        raise ConfigError("data.tables: two owners have the same match; each needs a file of its own")
    folder = run_dir / PROCESSES
    configs = {name: _known_to(name, own) for name, own in networked(config, folder, config.owners).items()}
    with private_files():
        make_keys(config, folder, configs)
        write_configs(folder, configs)
    serve = ["align", str(folder / f"{SERVER}.yaml"), "--run-dir", str(run_dir)]
    return Supervisor(serve, party_commands("align", folder, config.owners), folder, console).run()


def _result_of(config: ExperimentConfig, name: str) -> Path:
    """Return the file of an owner's result.

    Raises ConfigError if none is named, if it cannot be written, and if it would replace anything but a match.
    """
    path, field = config.data.tables[name].match, f"data.tables.{name}.match"
    if path is None:
        raise ConfigError(f"{field}: is missing; name the file that the result is written to")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(f"{field}: {path} cannot be written ({error.strerror}); name another file") from None
    if path.exists():
        try:
            read_match(path, name)
        except ValueError as error:
            raise ConfigError(f"{error}; it is not replaced: name another file, or remove it") from None
    return path


def _known_to(name: str, config: ExperimentConfig) -> ExperimentConfig:
    """Return the settings that a side knows: an owner its own table, the server no more than who has the label."""
    tables = {
        owner: table if owner == name else TableConfig(label=table.label if name == SERVER else None)
        for owner, table in config.data.tables.items()
    }
    return config.model_copy(update={"data": config.data.model_copy(update={"tables": tables})})


def multiplying(workers: int) -> ProcessPoolExecutor:
    """Return processes that multiply points; they import only the group, and end with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vfl.parties.matching.group", "vfl.runs.signals"])
    return ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent)


def for_rows(config: ExperimentConfig, name: str | None = None, path: Path | None = None) -> ExperimentConfig:
    """Return the settings of a match of new rows; at the owner ``name`` those in the table ``path``."""
    return config.model_copy(update={"data": of_rows(config.data, name, path)})


def match_agreement(config: ExperimentConfig, *, rows: bool = False) -> str:
    """Return the settings that all sides of a match must share, as JSON: {dotted key: value}."""
    agreed = {"a match of keys": True, "--rows": rows, "data.join": config.data.join}
    return json.dumps(agreed | {"data.tables": list(config.owners)})


def describe_to_server(outcome: MatchOutcome) -> str:
    """Return an outcome in one line, for the server only: owners must not learn what others lack."""
    lacking = [f"{count:,} of them not at {name}" for name, count in outcome.missing.items() if count]
    return ", ".join([describe_to_owners(outcome), *lacking])


def describe_to_owners(outcome: MatchOutcome) -> str:
    """Return of an outcome what every owner may know, in one line."""
    if outcome.again:
        return "matched already: all owners have the same result; to match again, remove one of their files"
    hint = "" if outcome.samples else ", keys are compared byte for byte (docs/data.md)"
    return f"{outcome.samples:,} samples are matched{hint}"


class ShowPace:
    """Shows progress, speed and expected end of a match."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.started_s = self.told_s = time.monotonic()

    def __call__(self, share: float, keys: int) -> None:
        """Show the share of the work that is done: a line every ``TELL_S``, and one at the end."""
        now_s = time.monotonic()
        if now_s - self.told_s < TELL_S and share < 1:
            return
        self.told_s = now_s
        rate = share * keys / max(now_s - self.started_s, 1e-9)
        end = datetime.now() + timedelta(seconds=(1 - share) * keys / rate)
        self.console.print(f"{share:.0%} of {keys:,} keys, {rate:,.0f} keys/s, done at {end:%H:%M:%S}")


def _check(config: ExperimentConfig) -> None:
    if config.data.dataset.kind != "tables" or len(config.data.tables) < 2:
        raise ConfigError("data.tables: a match needs data.dataset.kind=tables and two owners; {} for those elsewhere")
