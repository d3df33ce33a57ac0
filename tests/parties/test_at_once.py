"""Light orders are carried out where they arrive, while the party's thread waits, and by that thread otherwise."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from vfl.messages.messages import Kind, Message, MessageError
from vfl.parties.network.party.dialer import Inbox, ReceivedOrder
from vfl.parties.network.party.participation import Participation
from vfl.parties.network.tls.certificates import Peer


@pytest.fixture
def party(tmp_path: Path):
    """A party's inbox, its participation, its stream with the answers sent, and the refusals told to the server."""
    inbox, refused = Inbox(), list[str]()
    stream: Any = SimpleNamespace(sent=[])
    stream.send = stream.sent.append
    dialer: Any = SimpleNamespace(inbox=inbox, server=Peer("server"), refuse=refused.append, stream=stream)
    light = lambda order: order.kind is Kind.LOOK_UP  # noqa: E731
    taking = Participation(dialer, tmp_path, lambda welcome: lambda order: order, Console(quiet=True), light=light)
    taking.answer, taking.stream = (lambda order: order), stream
    return inbox, taking, stream, refused


def test_a_light_order_is_carried_out_where_it_arrives_only_while_the_partys_thread_waits(party):
    inbox, _taking, stream, _ = party
    order = ReceivedOrder(Message(Kind.LOOK_UP), stream)
    inbox.put(order)  # nobody waits yet
    assert stream.sent == []
    assert inbox.get(0) is order
    inbox.put(order)  # the thread carries out the one before
    assert stream.sent == []
    assert inbox.get(0) is order
    assert inbox.get(0) is None
    inbox.put(order)
    assert stream.sent == [order.message]
    assert inbox.get(0) is None
    elsewhere: Any = SimpleNamespace()
    for other in (ReceivedOrder(Message(Kind.EVALUATE), stream), ReceivedOrder(order.message, elsewhere)):
        inbox.put(other)  # heavy, or of a stream that is not the present one
        assert inbox.get(0) is other
        assert inbox.get(0) is None
    assert stream.sent == [order.message]


def test_the_error_of_a_light_order_ends_the_party_as_any_other(party):
    inbox, taking, stream, refused = party

    def answer(order: Message) -> Message:
        raise MessageError("no keys")

    taking.answer = answer
    assert inbox.get(0) is None
    inbox.put(ReceivedOrder(Message(Kind.LOOK_UP), stream))
    left = inbox.get(0)
    with pytest.raises(MessageError, match="no keys"):
        taking._carry_out(left)
    assert (stream.sent, refused) == ([], ["no keys"])
