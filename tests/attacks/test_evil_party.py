"""An evil party with a valid certificate, against a real server and an honest party over mutual TLS.

One federation lives through all cases: after each the attacker is told what was wrong, lost by name, comes back and
attacks again; at the end the honest party and the server have the bits of a training in which nobody attacked.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from attacks.cases import CASES, HELLOS, LIES, ORDER
from attacks.wire import Frame
from attacks.wire_party import Answer, Attack, TurnedAway, WireParty, frame
from remote.conftest import Federation, ForkServer

from vfl.parties.network.party.party_process import load_holding
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.training_terms import agreement, make_hello
from vfl.parties.network.wire.frame import pack

pytestmark = pytest.mark.release
SETTINGS: dict[str, Any] = {
    "training": {"rounds": 2, "steps_per_round": 1, "local_iterations": 1},
    "models": {"feature": {"kind": "mlp", "width": 0.05}},
    "lightweighting": {"alpha": 0.0, "beta": 0.3, "error_feedback": False},
    "network": {"max_offences": 1000},
}
EVIL, HONEST = "party_2", "party_1"
GROWTH_BYTES = 150e6
"""What all attacks together may add to the server's memory, its caches included."""


def attacker(federation: Federation) -> WireParty:
    """Return party_2, as evil as it is told to be."""
    config = federation.configs[EVIL]
    digests = load_holding(config, EVIL).digests
    hello = make_hello(config, EVIL, federation.folder / EVIL, "ab" * 8, agreement(config), digests)
    training = config.training
    work = 3 * (training.steps_per_round or 0) * training.batch_size * training.local_iterations
    keys = federation.folder / "keys" / EVIL
    return WireParty(
        config.network.server, keys, Frame.read(pack(hello)).control, batch_size=training.batch_size, width=8, work=work
    )


def start(federation: Federation) -> WireParty:
    federation.start(SERVER)
    federation.start(HONEST)
    federation.wait_for_line(SERVER, "listening")
    return attacker(federation)


def peak_bytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@dataclass
class Record:
    """What came of all attacks."""

    told: dict[str, str] = field(default_factory=dict[str, str])
    """The server's last word to the attacker, by case."""
    said: dict[str, str] = field(default_factory=dict[str, str])
    """The server's lines meanwhile."""
    growth_bytes: int = 0
    outcome: dict[str, Any] = field(default_factory=dict[str, Any])
    codes: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    undisturbed: dict[str, Any] = field(default_factory=dict[str, Any])


def lines_after(federation: Federation, mark: int) -> str:
    """Return what the server has said of the loss since, when it has."""
    until_s = time.monotonic() + 60
    while f"{EVIL} is lost: " not in (said := federation.log(SERVER)[mark:]):
        assert time.monotonic() < until_s, federation.logs()
        time.sleep(0.005)
    return said


def play(federation: Federation, record: Record) -> None:
    """Play all cases one after another, then train to the end."""
    party = start(federation)
    for name, (changes, _) in HELLOS.items():
        with pytest.raises(TurnedAway) as refused:
            party.dial(**changes)
        record.told[name] = str(refused.value)
    before = 0
    for name, case in sorted(CASES.items(), key=lambda item: ORDER.index(item[1].at)):
        mark = len(federation.log(SERVER))
        record.told[name] = party.dial().follow(case.at, case.attack)
        record.said[name] = lines_after(federation, mark)
        before = before or peak_bytes(federation.running[SERVER])
    record.growth_bytes = peak_bytes(federation.running[SERVER]) - before
    assert party.dial().follow() == "the server ended after 2 rounds"
    federation.finish()
    record.codes, record.outcome = dict(federation.codes), federation.outcome()


@pytest.fixture(scope="module")
def record(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    made = Record()
    attacked, quiet = (
        Federation(fork_server, tmp_path_factory.mktemp(name), SETTINGS) for name in ("attacked", "quiet")
    )
    try:
        assert start(quiet).dial().follow() == "the server ended after 2 rounds"
        quiet.finish()
        made.undisturbed = quiet.outcome()
        play(attacked, made)
        yield made
    finally:
        attacked.close()
        quiet.close()


@pytest.mark.parametrize("name", CASES)
def test_the_attacker_is_told_and_lost_by_name(record: Record, name: str):
    assert re.search(CASES[name].told, record.told[name]), record.told[name]
    assert f"{EVIL} is lost: " in record.said[name]
    assert len(record.told[name]) < 1000


@pytest.mark.parametrize("name", HELLOS)
def test_a_false_hello_is_refused_at_the_door(record: Record, name: str):
    assert re.search(HELLOS[name][1], record.told[name]), record.told[name]


def test_everybody_else_ends_with_the_bits_of_an_undisturbed_training(record: Record):
    assert record.codes == {SERVER: [0], HONEST: [0], EVIL: []}
    assert record.outcome == record.undisturbed


def test_the_servers_memory_is_bounded(record: Record):
    assert record.growth_bytes < GROWTH_BYTES


def test_every_lie_is_told_about_some_field():
    told = {name.rsplit(" ", 1)[-1] for name in CASES}
    assert {lie.rsplit(" ", 1)[-1] for lie in LIES} <= told


def spoilt(order: Frame, honest: Frame) -> list[Answer]:
    honest.parts = [(1, frame((16, 8), float("nan")))]
    return [honest]


def garbage(order: Frame, honest: Frame) -> list[Answer]:
    return [b"\xff" * 40]


def hang_up(order: Frame, honest: Frame) -> list[Answer]:
    raise TurnedAway("hung up")


@pytest.mark.parametrize("at", ["EMBED", "END_ROUND", "save"])
def test_a_dropped_offender_is_lost_like_one_that_dies(federate, at: str):
    outcomes: list[dict[str, Any]] = []
    for attack in (garbage, hang_up):
        federation = federate(**SETTINGS | {"network": {"on_party_loss": "drop"}})
        dialled = start(federation).dial()
        dialled.follow(at, attack)
        dialled.hang_up()
        federation.finish()
        assert federation.codes == {SERVER: [0], HONEST: [0], EVIL: []}, federation.logs()
        outcomes.append(federation.outcome())
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("attack", [spoilt, garbage])
def test_who_misbehaves_too_often_ends_the_training_that_would_wait(federate, attack: Attack):
    federation = federate(**SETTINGS | {"network": {"max_offences": 1}})
    party = start(federation)
    for _ in range(2):
        party.dial().follow("EMBED", attack)
    federation.finish()
    assert federation.codes == {SERVER: [3], HONEST: [3], EVIL: []}, federation.logs()
    error = federation.log(SERVER).splitlines()[-1]
    assert error.startswith("error: party_2 has misbehaved 2 times, network.max_offences is 1; last: "), error


def test_who_misbehaves_too_often_is_not_let_in_any_more_where_the_others_go_on(federate):
    settings = {"on_party_loss": "drop", "max_offences": 0, "silence_s": 60}
    federation = federate(**SETTINGS | {"network": settings, "training": SETTINGS["training"] | {"rounds": 15}})
    party = start(federation)
    party.dial().follow("END_ROUND", spoilt)
    # It is hung up on a moment before it is barred.
    federation.wait_for_line(SERVER, "dropped: trained without to the end")
    with pytest.raises(TurnedAway, match=r"party_2 has misbehaved 1 times, network\.max_offences is 0"):
        party.dial()
    federation.finish()
    assert federation.codes == {SERVER: [0], HONEST: [0], EVIL: []}, federation.logs()
    assert "dropped: trained without to the end: party_2 has misbehaved" in federation.log(SERVER)
