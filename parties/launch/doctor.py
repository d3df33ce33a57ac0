"""Checks of everything that can keep a party from joining, in the order in which it would meet it."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.request import getproxies

from vfl.base.errors import one_line
from vfl.config import ConfigError, ExperimentConfig
from vfl.data.drift import DRIFT, SHIFTED
from vfl.messages.messages import Message, MessageError
from vfl.parties.network.admission import Terms, check_party
from vfl.parties.network.party.consent import agree
from vfl.parties.network.party.dialer import JOIN_LIMIT_S, as_welcomed, say_hello, welcomed_by
from vfl.parties.network.party.party_process import (
    Holding,
    check_brought,
    check_welcome,
    last_state,
    load_holding,
    make_hello,
)
from vfl.parties.network.party.training_session import open_store
from vfl.parties.network.tls.certificates import peer
from vfl.parties.network.tls.diagnosis import Symptom, probe
from vfl.parties.network.tls.files import TlsFiles, fetch_certificate
from vfl.parties.network.tls.folders import describe
from vfl.parties.network.tls.lists import Lists
from vfl.parties.network.training_terms import agreement
from vfl.parties.network.transport.rpc import error_text, open_channel, open_stream
from vfl.parties.network.transport.security import load_identity
from vfl.parties.network.wire.session import Hello
from vfl.predict.start_from import party_start
from vfl.runs.run_folder import check_folder, read_run_id

T = TypeVar("T")


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
    _, known = look("config", lambda: _known(config, name))
    yield known
    if not known.good:
        return
    holding, data = look("data", lambda: _data(config, name, run_dir))
    yield data
    tls, keys = look("keys", lambda: find_keys(config, name, insecure=insecure))
    yield keys
    _, folder = look("folder", lambda: (None, find_folder(config, run_dir)))
    yield folder
    yield from _drift(run_dir)
    if not keys.good:
        return
    yield from _proxy(config)
    finding = probe(config.network.server, tls)
    answers = finding.kind is Symptom.ANSWERS
    yield Check("connection", finding.text, answers, may_pass=finding.kind.may_pass)
    if answers and holding is not None and folder.good:
        hello = make_hello(config, name, run_dir, "doctor", agreement(config), holding.digests)
        own = Terms.of(config, name, holding.evaluated)
        _, joining = look("joining", lambda: _join(config, tls, hello, own, run_dir))
        yield joining


def look(name: str, fetch_certificate: Callable[[], tuple[T, str]]) -> tuple[T | None, Check]:
    """Return the result of ``fetch_certificate`` and its check; None and the error if it raises ValueError."""
    try:
        found, text = fetch_certificate()
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


def find_keys(config: ExperimentConfig, name: str, *, insecure: bool) -> tuple[TlsFiles | None, str]:
    """Return the keys of a process and their description. Raises ValueError."""
    tls = load_identity(name, config.network, insecure=insecure)
    listed: list[str] = []
    Lists(config.network.tls, listed.append)
    certificate = config.network.tls.certificate
    identity = "plaintext" if tls is None or certificate is None else describe(certificate)[0]
    return tls, "; ".join([identity, *listed])


def find_folder(config: ExperimentConfig, run_dir: Path) -> str:
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
    """Yield the proxy that the environment sets, if there is one."""
    proxy = getproxies().get("https")
    if proxy is not None:
        use = "is used, as network.use_proxy says" if config.network.use_proxy else "is not used (network.use_proxy)"
        yield Check("proxy", f"{proxy.rpartition('@')[2]}, which the environment names, {use}")


def _join(
    config: ExperimentConfig, tls: TlsFiles | None, hello: Message, own: Terms, run_dir: Path
) -> tuple[None, str]:
    """Ask the server whether it would let the party in, on terms that its owner agrees to.

    Raises ValueError with the reason if not.
    """
    asking = Hello.of(hello).model_copy(update={"only_asks": True})
    hello = replace(hello, parts=(asking.part(),))
    try:
        answer = asyncio.run(asyncio.wait_for(_ask(config, tls, hello), JOIN_LIMIT_S))
    except ConfigError:
        raise
    except MessageError as error:
        raise ValueError(f"the server at {config.network.server}: {error}") from None
    except Exception as error:  # gRPC's own, and a server that is frozen or gone
        raise ValueError(f"the server at {config.network.server} does not answer ({error_text(error)})") from None
    as_welcomed(welcomed_by(answer), config.network)
    check_welcome(run_dir, answer.run)
    agree(answer, agreement(config), own, config.network.consent, run_dir, accept=False)
    return None, f"the server of run {answer.run} would let {asking.party} in"


async def _ask(config: ExperimentConfig, tls: TlsFiles | None, hello: Message) -> Message:
    network = config.network
    if tls is not None and not network.use_proxy:  # as the party itself does
        server = peer(await fetch_certificate(network.server, tls))
        if objection := Lists(network.tls, lambda _line: None).objection(server):
            raise ConfigError(f"network.tls: {objection}")
    channel = open_channel(network.server, tls, use_proxy=network.use_proxy)
    try:
        return await say_hello(open_stream(channel), hello)
    finally:
        await channel.close()
