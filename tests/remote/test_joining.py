"""Who is let in, and what everybody else is told: a listening hub, and clients that speak to it over real TLS."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hub_clients import made, reason_of, talk

from vfl.base.errors import PeerLost, TryLater, may_pass
from vfl.config import ConfigError, NetworkConfig
from vfl.messages.messages import Kind, Message, Part, PartKind, control
from vfl.parties.launch.supervisor import free_port
from vfl.parties.network.admission import SERVED, DataDigests, Expected, JoinRefused, check_hello
from vfl.parties.network.server.hub import Hub
from vfl.parties.network.tls.certificates import Authority
from vfl.parties.network.tls.files import TlsFiles
from vfl.parties.network.training_terms import agreement
from vfl.parties.network.transport import rpc
from vfl.parties.network.transport.rpc import grpc, open_channel, open_stream
from vfl.parties.network.wire.frame import PIECE_BYTES, Assembler, cut, pack, unpack
from vfl.parties.network.wire.session import Hello, Refusal

RUN = "0123456789abcdef"
DATA = DataDigests("a" * 64, "b" * 64, "c" * 64)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("tests", 2000, datetime.now(UTC) - timedelta(days=1000))


@dataclass
class Listening:
    """A hub for party_1 and party_2, and what it said."""

    hub: Hub
    address: str
    settings: str
    said: list[str] = field(default_factory=list[str])

    def hello(self, party: str = "party_1", **changes: Any) -> Message:
        fields: dict[str, Any] = {
            "party": party,
            "instance": "one",
            "embedding_width": 8,
            "agreement": self.settings,
            "train_ids": DATA.train_ids,
            "test_ids": DATA.test_ids,
            "labels": DATA.labels,
        }
        return Message(Kind.HELLO, parts=(Hello(**fields | changes).part(),))


@pytest.fixture
def listening(authority: Authority, configure) -> Iterator[Listening]:
    with listen(made(authority, "server"), configure) as each:
        yield each


class listen:  # noqa: N801 - reads as a verb: with listen(...)
    def __init__(self, tls: TlsFiles | None, configure: Callable[..., Any]) -> None:
        address = f"127.0.0.1:{free_port()}"
        settings = agreement(configure())
        said: list[str] = []
        expected = {name: Expected(8, settings, DATA) for name in ("party_1", "party_2")}
        network = NetworkConfig(listen=address, server=address, max_message_mb=1)
        self.listening = Listening(Hub(RUN, expected, network, tls, log=said.append), address, settings, said)

    def __enter__(self) -> Listening:
        self.listening.hub.__enter__()
        return self.listening

    def __exit__(self, *error: Any) -> None:
        self.listening.hub.__exit__(None, None, None)


def test_a_party_with_its_certificate_is_in(listening: Listening, authority: Authority):
    (answer,) = talk(listening.address, made(authority, "party_1"), pack(listening.hello()))
    assert isinstance(answer, Message)
    assert (answer.kind, answer.run) == (Kind.WELCOME, RUN)
    assert "party_1 joined" in listening.said


STRANGERS = {
    "an expired certificate": lambda ours, other: made(ours, "party_1", age_days=200, days=100),
    "another authority's": lambda ours, other: TlsFiles(
        made(ours, "party_1").ca, (its := made(other, "party_1")).certificate, its.key
    ),
    "its own authority's": lambda ours, other: made(other, "party_1"),
    "a server's": lambda ours, other: made(ours, "server"),
    "plaintext": lambda ours, other: None,
}


@pytest.mark.parametrize("who", STRANGERS)
def test_without_a_good_certificate_nothing_is_heard(listening: Listening, authority: Authority, who: str):
    tls = STRANGERS[who](authority, Authority.create("other", 200))
    (answer,) = talk(listening.address, tls, pack(listening.hello()))
    assert isinstance(answer, str)
    assert answer.startswith("UNAVAILABLE"), answer
    assert listening.said == []
    assert listening.hub.joined() == {}


def test_without_any_certificate_nothing_is_heard(listening: Listening, authority: Authority, monkeypatch):
    ca = made(authority, "party_1").ca
    monkeypatch.setattr(grpc, "ssl_channel_credentials", lambda *given, real=grpc.ssl_channel_credentials: real(ca))
    (answer,) = talk(listening.address, made(authority, "party_1"), pack(listening.hello()))
    assert isinstance(answer, str)
    assert answer.startswith("UNAVAILABLE"), answer
    assert listening.said == []


def test_tls_1_2_is_not_spoken(listening: Listening, authority: Authority, tmp_path):
    import socket
    import ssl

    tls = made(authority, "party_1")
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_bytes(getattr(tls, name))
    host, port = listening.address.split(":")
    versions: dict[str, str | None] = {}
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context(cafile=str(tmp_path / "ca"))
        context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        with socket.create_connection((host, int(port)), timeout=30) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="server") as secure:
                    versions[version.name] = secure.version()
            except OSError:  # ssl's errors are of it
                versions[version.name] = None
    assert versions == {"TLSv1_2": None, "TLSv1_3": "TLSv1.3"}


def test_another_partys_identity(listening: Listening, authority: Authority):
    (answer,) = talk(listening.address, made(authority, "party_2"), pack(listening.hello("party_1")))
    assert reason_of(answer) == ("the certificate is of 'party_2', the hello says 'party_1'; use party_1's certificate")
    assert listening.hub.joined() == {}


def test_a_party_that_nobody_expects(listening: Listening, authority: Authority):
    (answer,) = talk(listening.address, made(authority, "party_3"), pack(listening.hello("party_3")))
    assert "the server expects party_1, party_2, not 'party_3'" in reason_of(answer)


def changed(settings: str, key: str, value: Any) -> str:
    return json.dumps(json.loads(settings) | {key: value})


DIFFERENT: dict[str, tuple[Callable[[str], dict[str, Any]], str]] = {
    "a setting": (
        lambda s: {"agreement": changed(s, "training.batch_size", 17)},
        "training.batch_size (server 16, party 17)",
    ),
    "settings that one side lacks": (lambda s: {"agreement": changed(s, "new", 1)}, "new (server null, party 1)"),
    "the embedding": (lambda s: {"embedding_width": 9}, "embedding_size (server 8, party 9)"),
    "training samples": (
        lambda s: {"train_ids": "d" * 64},
        "ids of the training samples (sha256: server aaaaaaaaaaaa, party dddddddddddd)",
    ),
    "test samples": (lambda s: {"test_ids": ""}, "ids of the test samples (sha256: server bbbbbbbbbbbb, party none)"),
    "labels": (lambda s: {"labels": "e" * 64}, "training labels (sha256: server cccccccccccc, party eeeeeeeeeeee)"),
    "serving scores": (
        lambda s: {"agreement": changed(s, SERVED, "plain")},
        "the party serves rows to be scored, the server trains or predicts: start lvfl serve for it",
    ),
    "no settings": (lambda s: {"agreement": "{"}, "the party's settings are not JSON"),
    "settings of another kind": (lambda s: {"agreement": "[" * 100_000}, "the party's settings are not JSON"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_must_agree_and_does_not(listening: Listening, authority: Authority, what: str):
    changes, message = DIFFERENT[what]
    hello = listening.hello(**changes(listening.settings))
    (answer,) = talk(listening.address, made(authority, "party_1"), pack(hello))
    assert message in reason_of(answer)
    assert listening.hub.joined() == {}


def test_a_party_that_trains_is_told_that_the_server_serves(listening: Listening):
    serving = Expected(8, changed(listening.settings, SERVED, "plain"), DATA)
    with pytest.raises(
        JoinRefused, match="the server serves scores, the party does not: start lvfl party with --serve"
    ):
        check_hello(Hello.of(listening.hello()), serving)


def test_another_run(listening: Listening, authority: Authority):
    hello = replace(listening.hello(), run="fedcba9876543210")
    (answer,) = talk(listening.address, made(authority, "party_1"), pack(hello))
    assert reason_of(answer).startswith(f"party_1's folder belongs to run fedcba9876543210, the server's to run {RUN};")


STRANGE = {
    "another version": (
        lambda hello: b"\x05" + pack(hello)[1:],
        "protocol version 5 came, this side speaks 4; install the same release",
    ),
    "the release before, in protobuf": (
        lambda hello: b"\x08\x02" + pack(hello),
        "protocol version 8 came, this side speaks 4; install the same release",
    ),
    "no frame": (lambda hello: b"\x04" * 20, "20 bytes are no frame"),
    "nothing inside": (lambda hello: pack(Message(Kind.HELLO)), "HELLO message with 0 CONTROL parts instead of 1"),
    "more behind it": (lambda hello: pack(hello) + b"x", "bytes of a HELLO came where"),
    "a field more": (
        lambda hello: pack(Message(Kind.HELLO, parts=(control({"party": "party_1", "agreement": "{}", "x": 1}),))),
        "Hello: 'x': Extra inputs are not permitted",
    ),
    "a field of another type": (
        lambda hello: pack(
            Message(Kind.HELLO, parts=(control({"party": "party_1", "agreement": "{}", "embedding_width": "8"}),))
        ),
        "Hello: 'embedding_width': Input should be a valid integer",
    ),
    "no hello": (lambda hello: pack(Message(Kind.DONE)), "a stream begins with HELLO, not with DONE"),
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_stream_that_does_not_begin_with_a_hello(listening: Listening, authority: Authority, what: str):
    first, message = STRANGE[what]
    (answer,) = talk(listening.address, made(authority, "party_1"), first(listening.hello()))
    assert message in reason_of(answer)


def test_a_second_party_of_the_same_name_is_refused_while_the_first_is_here(listening: Listening, authority: Authority):
    tls = made(authority, "party_1")
    second: list[Message | str] = []

    async def while_the_first_is_here() -> None:
        opened = open_channel(listening.address, tls)
        call = open_stream(opened)
        await call.write(pack(listening.hello()))
        assert unpack(await call.read()).kind is Kind.WELCOME
        hello = pack(listening.hello(instance="two"))
        second.extend(await asyncio.to_thread(talk, listening.address, tls, hello))
        assert listening.hub.joined().keys() == {"party_1"}
        # The same process may dial again: its first stream is as good as dead.
        again = await asyncio.to_thread(talk, listening.address, tls, pack(listening.hello()))
        assert isinstance(again[0], Message)
        assert again[0].kind is Kind.WELCOME
        await opened.close()

    asyncio.run(while_the_first_is_here())
    assert reason_of(second[0]).startswith("party_1 is already here; stop the other process of that name")
    assert isinstance(second[0], Message)
    assert Refusal.of(second[0]).again  # one that died without a word is let go later


def test_what_breaks_the_protocol_after_joining_is_told_and_the_party_lost(listening: Listening, authority: Authority):
    reply = Message(Kind.DONE, run=RUN, session=1, sequence=1)
    answers = talk(
        listening.address,
        made(authority, "party_1"),
        pack(listening.hello()),
        *cut(reply),
        answers=2,
    )
    assert reason_of(answers[1]) == "DONE of session 1 came, this is session 0"
    wait_until_gone(listening)


def test_what_was_wrong_is_told_in_the_middle_of_a_message_too(listening: Listening, authority: Authority):
    heard: list[Message] = []
    request = Message(Kind.END_ROUND, parts=(Part(PartKind.HEAD, bytes((1 << 20) - 37)),))  # as large as can be

    async def converse() -> None:
        opened = open_channel(listening.address, made(authority, "party_1"))
        call = open_stream(opened)
        await call.write(pack(listening.hello()))
        await call.read()
        connection = listening.hub.joined()["party_1"]
        connection.order(request, lambda answer: answer)
        await call.write(b"\xff" * 40)
        await asyncio.sleep(0.3)  # more is on its way than the network holds
        assembler = Assembler(1)
        while not heard or heard[-1].kind is not Kind.REFUSAL:
            message = assembler.add(await asyncio.wait_for(call.read(), 30))
            heard.extend([message] if message is not None else [])
        await opened.close()

    asyncio.run(converse())
    assert [each.size for each in heard if each.kind is Kind.END_ROUND] == [request.size]
    assert reason_of(heard[-1]) == "protocol version 255 came, this side speaks 4; install the same release"


def test_a_message_above_the_limit_is_not_taken(listening: Listening, authority: Authority):
    answers = talk(
        listening.address,
        made(authority, "party_1"),
        pack(listening.hello()),
        next(cut(Message(Kind.EMBEDDING, parts=(Part(PartKind.EMBEDDING, bytes((1 << 20) - 36)),), run=RUN))),
        answers=2,
    )
    assert reason_of(answers[1]) == (
        "a EMBEDDING of 1048577 bytes came, network.max_message_mb allows 1 MiB here; raise it on both sides"
    )
    wait_until_gone(listening)


def test_a_piece_above_the_limit_of_pieces_is_not_taken(listening: Listening, authority: Authority, monkeypatch):
    monkeypatch.setattr(rpc, "_OPTIONS", [])  # of the sender
    hello = listening.hello(agreement=" " * (2 * PIECE_BYTES))
    (answer,) = talk(listening.address, made(authority, "party_1"), pack(hello))
    assert isinstance(answer, str)
    assert answer.startswith("RESOURCE_EXHAUSTED"), answer
    assert listening.hub.joined() == {}


def wait_until_gone(listening: Listening) -> None:
    import time

    until_s = time.monotonic() + 30
    while listening.hub.joined():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_whoever_stays_away_is_named(listening: Listening):
    with pytest.raises(PeerLost, match=r"party_1, party_2 did not join within network.wait_s = 0.2 s"):
        listening.hub.wait_for(("party_1", "party_2"), 0.2)


def test_a_port_that_is_taken(listening: Listening, configure):
    network = NetworkConfig(listen=listening.address)
    with (
        pytest.raises(TryLater, match=rf"network.listen: {listening.address} cannot be bound"),
        Hub(RUN, {}, network, None, log=print),
    ):
        pass


def test_an_address_that_can_never_be_bound_is_bad_input():
    with (
        pytest.raises(ConfigError, match=r"network.listen: 192.0.2.1:50051 .*Cannot assign requested addr") as caught,
        Hub(RUN, {}, NetworkConfig(listen="192.0.2.1:50051"), None, log=print),
    ):
        pass
    assert not may_pass(caught.value)


def test_the_port_is_free_afterwards(authority: Authority, configure):
    with listen(made(authority, "server"), configure) as first:
        network = NetworkConfig(listen=first.address)
    with Hub(RUN, {}, network, None, log=print) as second:
        assert second.joined() == {}, "it listens: a taken port is refused, see above"
