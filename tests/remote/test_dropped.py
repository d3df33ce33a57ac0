"""network.on_party_loss: drop. The others train on, nothing is booked for who is away, and it may return."""

import json
import signal
from concurrent.futures import Future
from typing import Any, NoReturn

import pytest

from vfl.base.errors import PeerLost
from vfl.config.wire import WireConfig
from vfl.core.costs.ledger import Ledger, Workload
from vfl.core.costs.reports import Reports
from vfl.core.embeddings import EmbeddingReceiver, build_compressor
from vfl.core.link import done
from vfl.core.local import LocalLink
from vfl.messages.control import RoundReport
from vfl.messages.messages import Kind, Message, Part, PartKind
from vfl.parties.network.server.server_process import DroppableParty
from vfl.parties.network.tls.certificates import SERVER

EXCHANGES = 2
"""In a round."""
DROP = {"lightweighting": {"error_feedback": False}, "network": {"on_party_loss": "drop"}}


def rows_of(federation) -> list[dict[str, float]]:
    return [json.loads(line) for line in (federation.run_dir / "metrics.jsonl").read_text().splitlines()]


def test_the_others_train_on(federate):
    federation = federate(**DROP | {"training": {"staleness": 1}})
    for name in federation.names:
        federation.start(name, *([("embeds", EXCHANGES + 2, "SIGKILL")] if name == "party_2" else []))
    federation.finish()
    assert federation.codes == {SERVER: [0], "party_1": [0], "party_2": [-signal.SIGKILL]}, federation.logs()
    assert "party_2 is lost: " in federation.log(SERVER)
    assert "; dropped: trained without until it is back" in federation.log(SERVER)
    rows = rows_of(federation)
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert [row["uplink_bytes/party_2"] > 0 for row in rows] == [True, True, False]
    assert rows[2]["downlink_bytes/party_2"] == 0
    assert rows[2]["uplink_bytes/party_1"] > 0
    summary = json.loads((federation.run_dir / "summary.json").read_text())
    assert summary["rounds"] == 3


IN_ROUND_3 = 2 * EXCHANGES + 1


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """Room for what a training without party_2 from round 2 on reaches."""
    return {}


@pytest.mark.release
@pytest.mark.parametrize("blow", ["SIGTERM", "SIGKILL"])
def test_a_server_goes_on_while_a_dropped_party_is_away(federate, undisturbed, blow: str):
    settings = DROP | {"training": {"rounds": 4}}
    lose_party_2 = ("embeds", EXCHANGES + 2, "SIGKILL")
    if not undisturbed:
        through = federate(**settings)
        for name in through.names:
            through.start(name, *([lose_party_2] if name == "party_2" else []))
        through.finish()
        undisturbed |= through.outcome()
    federation = federate(**settings)
    federation.start(SERVER, ("asks for embeddings", IN_ROUND_3, blow))
    federation.start("party_1")
    federation.start("party_2", lose_party_2)
    assert federation.wait("party_2") == -signal.SIGKILL
    assert federation.wait(SERVER) == (130 if blow == "SIGTERM" else -signal.SIGKILL)
    if blow == "SIGTERM":
        assert federation.wait("party_1") == 130
        federation.start("party_1")
    federation.start(SERVER)
    federation.finish()
    assert {federation.codes[name][-1] for name in (SERVER, "party_1")} == {0}, federation.logs()
    assert federation.outcome() == undisturbed


@pytest.mark.release
def test_a_dropped_party_returns_to_a_server_that_was_started_again(federate):
    federation = federate(**DROP | {"training": {"rounds": 5}})
    federation.start(SERVER, ("asks for embeddings", IN_ROUND_3, "SIGTERM"))
    federation.start("party_1")
    federation.start("party_2", ("embeds", EXCHANGES + 2, "SIGKILL"))
    federation.finish()
    federation.start(SERVER)
    federation.start("party_1", ("embeds", 1, "SIGSTOP"))  # holds round 4 until party_2 is back
    federation.wait_until_stopped("party_1")
    federation.start("party_2")
    federation.wait_for_line(SERVER, "party_2 joined", times=2)
    federation.signal("party_1", signal.SIGCONT)
    federation.finish()
    assert {codes[-1] for codes in federation.codes.values()} == {0}, federation.logs()
    rows = rows_of(federation)
    assert [row["uplink_bytes/party_2"] > 0 for row in rows] == [True, True, False, False, True]
    assert rows[4]["alpha/party_2"] == 0.5
    assert "missing" not in federation.log("party_2")  # rows of the rounds that were trained without it


def test_what_is_under_way_when_a_party_is_lost_is_of_nobody():
    """With staleness an answer may be here, not yet taken, when the party turns out to be lost by a later order."""

    class Lost(LocalLink):
        def __init__(self) -> None: ...

        def send(self, request: Message) -> "Future[Message]":
            if request.exchange:
                raise PeerLost("party_1 is lost")
            return done(Message(Kind.EMBEDDING, parts=(Part(PartKind.EMBEDDING, b"its own"),)))

    party, told = droppable(Lost())
    asked = [party.ask(Message(Kind.EMBED, 0, number)) for number in (0, 1)]
    assert [each.read(lambda reply: bytes(reply.only(PartKind.EMBEDDING))) for each in asked] == [None, None]
    assert told == ["party_1 is lost"]
    assert not party.present
    assert party.ledger
    assert party.ledger.costs["party_1"].uplink_bytes == {}


def test_a_party_whose_reply_is_wrong_is_dropped_and_nothing_of_it_booked():
    class Wrong(LocalLink):
        def __init__(self) -> None: ...

        def send(self, request: Message) -> "Future[Message]":
            return done(Message(Kind.DONE))

        def reject_reply(self, error: Exception) -> NoReturn:
            raise PeerLost(f"party_1 is lost: {error}")

    party, told = droppable(Wrong())
    assert party.ask(Message(Kind.EMBED)).read(lambda reply: reply.only(PartKind.EMBEDDING)) is None
    assert told == ["party_1 is lost: DONE message with 0 EMBEDDING parts instead of 1"]
    assert party.ledger
    assert party.ledger.costs["party_1"].uplink_bytes == {}
    assert party.ask(Message(Kind.DESCRIBE)).reply is None


def droppable(link: LocalLink | None) -> tuple[DroppableParty, list[str]]:
    told: list[str] = []
    receiver = EmbeddingReceiver("party_1", 4, build_compressor(WireConfig()))
    return DroppableParty(receiver, link, Ledger(["party_1"]), lambda name, lost: told.append(str(lost))), told


def test_an_absent_party_is_idle_and_keeps_its_ratios():
    told = RoundReport(
        alpha=0.5,
        beta=0.3,
        macs_per_sample=7,
        parameters=9,
        train_macs=11,
        unpruned_train_macs=12,
        train_time_s="1.000000e+00",
        omega=1.0,
        psi=2.0,
    )
    reports = Reports(Workload(exchanges=2, local_iterations=1), {"party_1": told})
    report = reports.add("party_1", None)
    assert (report.alpha, report.parameters) == (0.5, 9)
    assert (report.train_macs, report.omega, report.elapsed_s) == (0, 0.0, 0.0)
    assert reports.add("party_2", None).parameters == 0


def test_what_is_kept_of_an_absent_party_is_its_last_checkpoint():
    party, _ = droppable(None)
    party.load({"round": 3, "digest": "ab", "as_of": 4, "absent": True})()
    assert party.save(5)() == {"round": 3, "digest": "ab", "as_of": 5, "absent": True}
    first = party.described().weights_digest
    party.load({"round": 4, "digest": "cd", "as_of": 5})()
    assert party.described().weights_digest != first
