"""What answers an order, and what does not belong on the stream: the server's end, without a network."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from parties.remote.server.connection import PartyConnection
from parties.remote.server.link import RemoteLink
from vfl.errors import PeerLost
from vfl.wire.envelope import (
    PROTOCOL_VERSION,
    Envelope,
    EnvelopeError,
    Heartbeat,
    Hello,
    Restored,
    Saved,
    Welcome,
    refusal,
)
from vfl.wire.messages import Buffer, Kind, Message, unpack
from vfl.wire.parcel import Parcel, cut

RUN = "0123456789abcdef"


class Wire:
    """Takes what a connection sends."""

    def __init__(self) -> None:
        self.sent: list[Envelope] = []
        self.ended: list[str] = []

    def send(self, envelope: Envelope, content: Sequence[Buffer] = ()) -> None:
        self.sent.append(Envelope.FromString(b"".join(cut(envelope, content))))

    def end(self, reason: str, *, violation: bool = False) -> None:
        self.ended.append(reason)


def connect(**limits: float) -> tuple[PartyConnection, Wire, list[str]]:
    said: list[str] = []
    times: dict[str, Any] = {"reply_limit_s": 1000.0, "slow_s": 1000.0} | limits
    connection = PartyConnection(
        Hello(party="party_1"), RUN, log=said.append, on_leaving=lambda name: said.append(f"{name} leaves"), **times
    )
    wire = Wire()
    connection.stream = wire  # pyright: ignore[reportAttributeAccessIssue]  # all that it uses of a stream
    return connection, wire, said


def reply_to(order: Envelope, content: bytes = b"", **changes: Any) -> Parcel:
    """The right answer to a request, but for the changes."""
    fields: dict[str, Any] = {
        "version": PROTOCOL_VERSION,
        "run": RUN,
        "session": order.session,
        "sequence": order.sequence,
        "round": order.round,
        "exchange": order.exchange,
        "reply": b"",
    }
    return Parcel(Envelope(**fields | changes), content)


def two_requests() -> tuple[PartyConnection, list[Envelope], list[Future[Buffer]]]:
    """A link in its second session with restore answered and two requests on their way."""
    connection, wire, _ = connect()
    RemoteLink(connection, 1)
    link = RemoteLink(connection, 2)
    connection.receive(reply_to(wire.sent[-1], reply=None, restored=Restored()))
    futures = [link.send(Message(Kind.EMBED, 4, exchange)) for exchange in (0, 1)]
    return connection, wire.sent[-2:], futures


def test_orders_are_numbered_and_answers_reach_their_futures():
    connection, (first, second), futures = two_requests()
    header = [(e.version, e.run, e.session, e.sequence, e.round, e.exchange) for e in (first, second)]
    assert header == [(PROTOCOL_VERSION, RUN, 2, 2, 4, 0), (PROTOCOL_VERSION, RUN, 2, 3, 4, 1)]
    assert [unpack(e.request) for e in (first, second)] == [Message(Kind.EMBED, 4, exchange) for exchange in (0, 1)]
    connection.receive(reply_to(first, b"one"))
    assert futures[0].result(0) == b"one"
    assert not futures[1].done()
    connection.receive(reply_to(second, b"two"))
    assert futures[1].result(0) == b"two"


STRANGE = {
    "of another run": ({"run": "fedcba9876543210"}, "reply of run fedcba9876543210 came, this is run 0123456789abcdef"),
    "without a run": ({"run": ""}, r"reply of run \(none\) came"),
    "of a session to come": ({"session": 3}, "reply of session 3 came, this is session 2"),
    "duplicated": ({"sequence": 1}, "reply to order 1 came again: a duplicate or a replay"),
    "reordered": ({"sequence": 3, "exchange": 1}, "reply to order 3 came out of order, reply to order 2 is due"),
    "never asked for": ({"sequence": 4}, "reply to order 4 came out of order"),
    "of a future round": ({"round": 5}, "reply of round 5, exchange 0 came where round 4, exchange 0 is due"),
    "of another exchange": ({"exchange": 1}, "reply of round 4, exchange 1 came where"),
    "of another kind": ({"reply": None, "saved": Saved()}, "saved came where reply is due"),
    "a request": ({"reply": None, "request": b""}, "request came, which only a server sends"),
    "a second hello": ({"reply": None, "hello": Hello()}, "hello came"),
    "a welcome": ({"reply": None, "welcome": Welcome()}, "welcome came"),
}


@pytest.mark.parametrize("case", STRANGE)
def test_an_answer_that_does_not_belong_here(case: str):
    changes, message = STRANGE[case]
    connection, (first, _), futures = two_requests()
    with pytest.raises(EnvelopeError, match=message):
        connection.receive(reply_to(first, **changes))
    assert not any(future.done() for future in futures)


def test_an_answer_once_more_when_nothing_is_due():
    connection, orders, _ = two_requests()
    for order in orders:
        connection.receive(reply_to(order))
    with pytest.raises(EnvelopeError, match="reply to order 3 came again"):
        connection.receive(reply_to(orders[1]))


def test_answers_of_an_earlier_session_are_passed_over():
    connection, (first, _), futures = two_requests()
    connection.receive(reply_to(first, session=1))
    assert not any(future.done() for future in futures)


def test_a_lost_party_fails_what_is_under_way_and_what_follows():
    connection, _, futures = two_requests()
    connection.fail(PeerLost("party_1 is lost: silent"))
    connection.fail(ValueError("later"))
    for future in [*futures, RemoteLink(connection, 3).send(Message(Kind.EMBED))]:
        with pytest.raises(PeerLost, match="party_1 is lost: silent"):
            future.result(0)


def test_a_party_that_cannot_go_on_says_why():
    connection, _, futures = two_requests()
    connection.receive(Parcel(refusal("disk full")))
    with pytest.raises(ValueError, match="party_1: disk full"):
        futures[0].result(0)


def test_a_save_is_a_reference_and_the_round_is_on_the_partys_disk():
    connection, wire, _ = connect()
    link = RemoteLink(connection, 1)
    connection.receive(reply_to(wire.sent[-1], reply=None, restored=Restored()))
    link.send(Message(Kind.END_ROUND, 6))
    connection.receive(reply_to(wire.sent[-1]))
    future = link.save()
    assert wire.sent[-1].save.round == 7
    connection.receive(reply_to(wire.sent[-1], reply=None, saved=Saved(digest="abc")))
    assert future.result(0) == {"round": 7, "digest": "abc", "as_of": 7}
    assert connection.rounds == {7}


def test_the_state_of_a_party_in_the_servers_process_is_no_reference():
    connection, _, _ = connect()
    with pytest.raises(ValueError, match=r"resume with train\.py alone"):
        RemoteLink(connection, 1).load({"model": {}})


def test_a_slow_party_is_told_once_and_stays():
    connection, wire, said = connect(slow_s=0.0)
    RemoteLink(connection, 1)
    connection.check_pace()
    connection.check_pace()
    assert said == ["party_1 is slow: it lives, but its restored of round 1, exchange 1 takes more than 0 s"]
    assert wire.ended == []


def test_a_party_beyond_the_limit_is_lost():
    connection, wire, _ = connect(reply_limit_s=0.0)
    future = RemoteLink(connection, 1).send(Message(Kind.EMBED))
    connection.check_pace()
    with pytest.raises(PeerLost, match=r"party_1 lives but gave no restored .* within network.reply_limit_s = 0"):
        future.result(0)
    assert len(wire.ended) == 1


def test_leaving_is_passed_on():
    connection, _, said = connect()
    leaving = Envelope(version=PROTOCOL_VERSION, run=RUN)
    leaving.leaving.SetInParent()
    connection.receive(Parcel(leaving))
    assert said == ["party_1 leaves"]


def test_heartbeats_are_not_for_the_connection():
    connection, _, _ = connect()
    with pytest.raises(EnvelopeError, match="heartbeat came"):
        connection.receive(Parcel(Envelope(version=PROTOCOL_VERSION, run=RUN, heartbeat=Heartbeat())))
