"""What answers an order, and what does not belong on the stream: the server's end, without a network."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from refusals import refuses

from vfl.base.errors import PeerLost, PeerMisbehaved
from vfl.config import NetworkConfig
from vfl.core.link import read
from vfl.messages.messages import REPLIES, Kind, Message, MessageError, Part, PartKind, control
from vfl.parties.network.clock_and_threads import close
from vfl.parties.network.server import connection as server_connection
from vfl.parties.network.server.connection import PartyConnection, RemoteLink
from vfl.parties.network.wire.frame import cut, unpack
from vfl.parties.network.wire.session import Hello, Refusal, Save, Saved, refusal

RUN = "0123456789abcdef"


class Wire:
    """Takes what a connection sends."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.ended: list[str] = []

    def send(self, message: Message) -> None:
        self.sent.append(unpack(b"".join(cut(message))))

    def end(self, reason: str, *, violation: bool = False) -> None:
        self.ended.append(reason)


def connect(**limits: float) -> tuple[PartyConnection, Wire, list[str]]:
    said: list[str] = []
    network = NetworkConfig().model_copy(update={"silence_s": 1000.0} | limits)
    connection = PartyConnection(
        Hello(party="party_1", agreement="{}"),
        RUN,
        network,
        said.append,
        on_leaving=lambda name: said.append(f"{name} leaves"),
    )
    wire = Wire()
    connection.stream = wire  # pyright: ignore[reportAttributeAccessIssue]  # all that it uses of a stream
    return connection, wire, said


FRAME = Part(PartKind.EMBEDDING, b"embedded")


def reply_to(order: Message, *parts: Part, **changes: Any) -> Message:
    """The right answer to an order, but for the changes; of an EMBED with an embedding."""
    own = (FRAME,) if order.kind is Kind.EMBED else ()
    return replace(order, **{"kind": REPLIES[order.kind], "parts": parts or own} | changes)


Waiting = Callable[[], Message]


def send(link: RemoteLink, message: Message) -> Waiting:
    return link.send(message).result


def two_requests() -> tuple[PartyConnection, list[Message], list[Waiting]]:
    """A link in its second session with restore answered and two requests on their way."""
    connection, wire, _ = connect()
    RemoteLink(connection, 1)
    link = RemoteLink(connection, 2)
    connection.receive(reply_to(wire.sent[-1]))
    waiting = [send(link, Message(Kind.EMBED, 4, exchange)) for exchange in (0, 1)]
    return connection, wire.sent[-2:], waiting


def test_orders_are_numbered_and_answers_reach_who_waits():
    connection, (first, second), (one, two) = two_requests()
    assert first == Message(Kind.EMBED, 4, 0, run=RUN, session=2, sequence=2)
    assert second == Message(Kind.EMBED, 4, 1, run=RUN, session=2, sequence=3)
    for order, wait in ((first, one), (second, two)):
        connection.receive(reply_to(order))
        assert wait() == reply_to(order)


STRANGE = {
    "of another run": (
        {"run": "fedcba9876543210"},
        "EMBEDDING of run fedcba9876543210 came, this is run 0123456789abcdef",
    ),
    "without a run": ({"run": ""}, r"EMBEDDING of run \(none\) came"),
    "of a session to come": ({"session": 3}, "EMBEDDING of session 3 came, this is session 2"),
    "duplicated": ({"sequence": 1}, "EMBEDDING to order 1 came again: a duplicate or a replay"),
    "reordered": (
        {"sequence": 3, "exchange": 1},
        "EMBEDDING to order 3 came out of order, EMBEDDING to order 2",
    ),
    "never asked for": ({"sequence": 4}, "EMBEDDING to order 4 came out of order"),
    "of a future round": (
        {"round_index": 5},
        "EMBEDDING of round 6, exchange 1 came where EMBEDDING of round 5",
    ),
    "of another exchange": ({"exchange": 1}, "EMBEDDING of round 5, exchange 2 came where"),
    "of an earlier session": ({"session": 0}, "EMBEDDING of session 0 came, this is session 2"),
    "of another kind": ({"kind": Kind.SAVED}, "SAVED of round 5, exchange 1 came where EMBEDDING"),
    "the answer to another request": ({"kind": Kind.REPORT}, "REPORT of round 5, exchange 1 came where EMBEDDING"),
    "without its part": ({"parts": ()}, "EMBEDDING with 0 parts instead of 1"),
    "with two": ({"parts": (FRAME, FRAME)}, "EMBEDDING with 2 parts instead of 1"),
    "an order": ({"kind": Kind.EMBED}, "EMBED came, which only a server sends"),
    "a second hello": ({"kind": Kind.HELLO}, "HELLO came"),
    "a welcome": ({"kind": Kind.WELCOME}, "WELCOME came"),
}


@pytest.mark.parametrize("case", STRANGE)
def test_an_answer_that_does_not_belong_here(case: str):
    changes, message = STRANGE[case]
    connection, (first, _), _ = two_requests()
    with pytest.raises(MessageError, match=message):
        connection.receive(reply_to(first, **changes))
    connection.receive(reply_to(first))  # which is still due


def test_an_answer_once_more_when_nothing_is_due():
    connection, orders, _ = two_requests()
    for order in orders:
        connection.receive(reply_to(order))
    with pytest.raises(MessageError, match="EMBEDDING to order 3 came again"):
        connection.receive(reply_to(orders[1]))


def test_answers_of_an_earlier_session_are_passed_over():
    connection, (first, _), _ = two_requests()
    late = reply_to(first, session=1, sequence=1)
    connection.receive(late)
    with pytest.raises(MessageError, match="EMBEDDING of session 1 came, this is session 2"):
        connection.receive(late)  # asked for once
    connection.receive(reply_to(first))


def test_an_answer_is_passed_over_also_where_the_party_dropped_the_orders_before_it():
    connection, (first, _), _ = two_requests()  # that of the first session was never answered
    RemoteLink(connection, 3)
    connection.receive(reply_to(first))
    with pytest.raises(MessageError):
        connection.receive(reply_to(first))


def test_a_lost_party_fails_what_is_under_way_and_what_follows():
    connection, _, waiting = two_requests()
    connection.fail(PeerLost("party_1 is lost: silent"))
    connection.fail(PeerLost("later"))
    for wait in [*waiting, lambda: RemoteLink(connection, 3)]:
        with pytest.raises(PeerLost, match="party_1 is lost: silent"):
            wait()


def test_a_party_that_cannot_go_on_says_why():
    connection, _, waiting = two_requests()
    connection.receive(refusal("disk full"))
    with pytest.raises(PeerMisbehaved, match="party_1 is lost: it refuses to go on: disk full"):
        waiting[0]()


def test_a_party_whose_reply_is_wrong_is_told_and_lost():
    connection, wire, _ = connect()
    link = RemoteLink(connection, 1)
    connection.receive(reply_to(wire.sent[-1]))
    request = Message(Kind.DESCRIBE, 4, 0)
    reply = link.send(request)
    connection.receive(reply_to(wire.sent[-1], control({})))
    with pytest.raises(PeerMisbehaved, match="party_1 is lost: tuple index out of range"):
        read(link, reply, lambda message: message.parts[3])
    assert connection.lost
    assert Refusal.of(wire.sent[-1]).reason == wire.ended[0] == "tuple index out of range"


def test_a_save_is_a_reference_and_the_round_is_on_the_partys_disk():
    connection, wire, _ = connect()
    link = RemoteLink(connection, 1)
    connection.receive(reply_to(wire.sent[-1]))
    send(link, Message(Kind.END_ROUND, 6))
    connection.receive(reply_to(wire.sent[-1], control({})))
    saved = link.save()
    assert Save.of(wire.sent[-1]).round == 7
    with pytest.raises(MessageError, match="'digest': String should match pattern"):
        connection.receive(reply_to(wire.sent[-1], control({"digest": "../../etc/passwd"})))
    assert connection.rounds == set()
    connection.receive(reply_to(wire.sent[-1], Saved(digest="ab" * 32).part()))
    assert saved.result() == {"round": 7, "digest": "ab" * 32, "as_of": 7}
    assert connection.rounds == {7}


def test_the_state_of_a_party_in_the_servers_process_is_no_reference():
    connection, _, _ = connect()
    refuses("--resume", lambda: RemoteLink(connection, 1).load({"model": {}}), "lvfl train")


def test_a_slow_party_is_told_once_and_stays():
    connection, wire, said = connect(silence_s=0.0)
    RemoteLink(connection, 1)
    connection.check_pace()
    connection.check_pace()
    assert said == ["warning: party_1 is slow: it lives, but its RESTORED of round 1, exchange 1 takes more than 0 s"]
    assert wire.ended == []


def test_a_party_beyond_the_limit_is_lost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_connection, "REPLY_LIMIT_S", 0.0)
    connection, wire, _ = connect()
    wait = send(RemoteLink(connection, 1), Message(Kind.EMBED))
    connection.check_pace()
    with pytest.raises(PeerLost, match=r"party_1 lives but gave no RESTORED .* within 0 s"):
        wait()
    assert len(wire.ended) == 1


def test_leaving_is_passed_on():
    connection, _, said = connect()
    connection.receive(Message(Kind.LEAVING, run=RUN))
    assert said == ["party_1 leaves"]


def test_heartbeats_are_not_for_the_connection():
    connection, _, _ = connect()
    with pytest.raises(MessageError, match="HEARTBEAT came"):
        connection.receive(Message(Kind.HEARTBEAT, run=RUN))


def test_what_is_under_way_in_a_loop_ends_before_it_is_closed():
    loop = asyncio.new_event_loop()
    under_way = loop.create_task(asyncio.sleep(60))
    close(loop)
    assert under_way.cancelled()
    assert loop.is_closed()
