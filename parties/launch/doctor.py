"""Checks of everything that can keep a party from joining or a server from starting, in the order in which it comes."""

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.request import getproxies

from vfl.base.errors import one_line
from vfl.config import ConfigError, ExperimentConfig
from vfl.data.drift import DRIFT, SHIFTED
from vfl.data.source import open_source
from vfl.messages.messages import Kind, Message
from vfl.parties.network.admission import Terms, check_party
from vfl.parties.network.party.dialer import Dialer, as_welcomed, welcomed_by
from vfl.parties.network.party.order_checks import agree, check_welcome
from vfl.parties.network.party.party_process import (
    Holding,
    check_brought,
    last_state,
    load_holding,
)
from vfl.parties.network.party.training_session import open_store
from vfl.parties.network.server.server_process import server_labels
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.tls.diagnosis import Symptom, probe
from vfl.parties.network.tls.files import TlsFiles
from vfl.parties.network.tls.folders import describe
from vfl.parties.network.tls.lists import Lists
from vfl.parties.network.training_terms import agreement, make_hello
from vfl.parties.network.transport.listening import listening
from vfl.parties.network.transport.security import load_identity
from vfl.parties.network.wire.session import Hello
from vfl.predict.start_from import party_start, server_start
from vfl.runs.run_folder import check_folder, read_run_id

T = TypeVar("T")
LEAST_FREE = 100_000_000
"""Bytes of a disk below which a training hardly has room for its checkpoints."""
DRIFT_S = 60.0
"""Seconds by which a file may be newer than this machine's clock: file servers have clocks of their own."""


class Check(NamedTuple):
    """Result of one check."""

    name: str
    text: str
    """Finding, and if something is wrong, the fix."""
    good: bool = True
    may_pass: bool = False
    """The check failed only because the server is not there (yet)."""


def examine(config: ExperimentConfig, name: str, run_dir: Path, *, insecure: bool) -> Iterator[Check]:
    """Check a party's configuration, data, keys and folder, then its connection to the server. Changes nothing.

    Checks that depend on a failed one are left out. The server lets nobody in for it.
    """
    _, known = _look("config", lambda: _known(config, name))
    yield known
    if not known.good:
        return
    holding, data = _look("data", lambda: _data(config, name, run_dir))
    yield data
    tls, keys = _look("keys", lambda: _keys(config, name, insecure=insecure))
    yield keys
    _, folder = _look("folder", lambda: (None, _folder(config, run_dir)))
    yield folder
    yield from _drift(run_dir)
    if not keys.good:
        return
    yield from _proxy(config)
    finding = probe(config.network.server, tls)
    answers = finding.kind is Symptom.ANSWERS
    yield Check("connection", finding.text, answers, may_pass=finding.kind.may_pass)
    if answers and holding is not None and folder.good:
        hello = Hello.of(make_hello(config, name, run_dir, "doctor", agreement(config), holding.digests))
        own = Terms.of(config, name, holding.evaluated)
        _, joining = _look("joining", lambda: _join(config, tls, hello, own, run_dir))
        yield joining


def _look(name: str, check: Callable[[], tuple[T, str]]) -> tuple[T | None, Check]:
    """Return the result of ``check`` and its finding; None and the error if it raises ValueError."""
    try:
        found, text = check()
    except ValueError as error:
        return None, Check(name, one_line(error), good=False)
    return found, Check(name, text)


def _known(config: ExperimentConfig, name: str) -> tuple[None, str]:
    check_party(config, name)
    return None, f"{name} of experiment {config.name!r}, training.labels={config.training.labels}"


def _data(config: ExperimentConfig, name: str, run_dir: Path) -> tuple[Holding, str]:
    last = last_state(run_dir, config)
    holding = load_holding(config, name, kept=party_start(config, name, run_dir), last=last)
    check_brought(config, name, holding.prepared, last)
    held = holding.prepared
    counts = f"{len(held.train)} training and {len(held.test)} test samples of {held.preparation.features}"
    return holding, f"{counts}, {'with' if holding.labels else 'without'} labels"


def _keys(config: ExperimentConfig, name: str, *, insecure: bool) -> tuple[TlsFiles | None, str]:
    """Return the keys of a process and their description. Raises ValueError."""
    tls = load_identity(name, config.network, insecure=insecure)
    listed: list[str] = []
    Lists(config.network.tls, listed.append)
    certificate = config.network.tls.certificate
    identity = "plaintext" if tls is None or certificate is None else describe(certificate)[0]
    return tls, "; ".join([identity, *listed])


def _folder(config: ExperimentConfig, run_dir: Path) -> str:
    """Return the description of a run's folder and its checkpoints. Raises ValueError."""
    check_folder(run_dir, config)
    run = read_run_id(run_dir)
    if not run:
        return f"{run_dir} is of no run yet"
    rounds = open_store(run_dir, config.checkpoint.keep).rounds()
    return f"{run_dir} is of run {run}, checkpoints after rounds {', '.join(map(str, rounds)) or '(none)'}"


def _drift(run_dir: Path) -> Iterator[Check]:
    """Yield what the party's service last found about the rows that it scored, if it has."""
    try:
        found = json.loads((run_dir / DRIFT).read_bytes())
    except (OSError, ValueError):
        return
    index = found["stability_index"]
    named = ", ".join(f"{name} {index[name]:.2f}" for name in found["shifted"]) or "no column has shifted"
    yield Check("drift", f"{named}; stability index above {SHIFTED}, by the last {found['rows']} rows scored")


def _proxy(config: ExperimentConfig) -> Iterator[Check]:
    proxy = getproxies().get("https")
    if proxy is not None:
        use = "is used, as network.use_proxy says" if config.network.use_proxy else "is not used (network.use_proxy)"
        yield Check("proxy", f"{proxy.rpartition('@')[2]}, which the environment names, {use}")


def _join(config: ExperimentConfig, tls: TlsFiles | None, hello: Hello, own: Terms, run_dir: Path) -> tuple[None, str]:
    """Ask the server whether it would let the party in, on terms that its owner agrees to.

    Raises ValueError with the reason if not.
    """
    asking = Message(Kind.HELLO, parts=(hello.model_copy(update={"only_asks": True}).part(),), run=read_run_id(run_dir))
    answer = asyncio.run(Dialer(lambda: asking, config.network, tls, log=lambda _line: None).ask())
    as_welcomed(welcomed_by(answer), config.network)
    check_welcome(config, run_dir, answer.run)
    agree(answer, agreement(config), own, config.network.consent, run_dir, accept=False)
    return None, f"the server of run {answer.run} would let {hello.party} in"


def examine_server(config: ExperimentConfig, file: Path, run_dir: Path, *, insecure: bool) -> Iterator[Check]:
    """Check a server's configuration, data, keys, folder, disk, port and clock. Starts and changes nothing.

    ``file`` is the configuration's own. Without a usable configuration nothing else is checked.
    """
    _, known = _look("config", lambda: _known_to_server(config))
    yield known
    if not known.good:
        return
    for name, check in {
        "data": lambda: _labels(config, run_dir),
        "keys": lambda: _keys(config, SERVER, insecure=insecure),
        "folder": lambda: (None, _folder(config, run_dir)),
    }.items():
        yield _look(name, check)[1]
    yield _disk(run_dir)
    yield _port(config.network.listen)
    yield _clock(file)


def _known_to_server(config: ExperimentConfig) -> tuple[None, str]:
    parties = ", ".join(config.parties)
    return None, f"server of experiment {config.name!r} for {parties}, training.labels={config.training.labels}"


def _labels(config: ExperimentConfig, run_dir: Path) -> tuple[None, str]:
    start = server_start(config, run_dir)
    labels = server_labels(config, open_source(config).held_labels(), start)
    return None, f"labels of {len(labels.train.labels_N)} training and {len(labels.test.values)} test samples"


def _disk(run_dir: Path) -> Check:
    there = next(each for each in (run_dir.absolute(), *run_dir.absolute().parents) if each.is_dir())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        return Check("disk", f"{there} cannot be written by this user; name another --run-dir", good=False)
    enough = free >= LEAST_FREE
    return Check("disk", f"{free / 1e9:.1f} GB free at {there}{'' if enough else '; make room'}", enough, not enough)


def _port(address: str) -> Check:
    try:
        with listening("network.listen", address):
            return Check("port", f"network.listen={address} can be bound")
    except ConfigError as error:
        return Check("port", str(error), good=False, may_pass=True)


def _clock(file: Path) -> Check:
    now = time.time()
    shown = f"{datetime.fromtimestamp(now, UTC):%F %R} UTC"
    if file.is_file() and file.stat().st_mtime > now + DRIFT_S:
        written = f"{datetime.fromtimestamp(file.stat().st_mtime, UTC):%F %R} UTC"
        return Check("clock", f"{shown}, but {file} was written on {written}; set this machine's clock", good=False)
    return Check("clock", f"{shown}; certificates go by it")
