"""What anybody who reaches the port can do, and who holds a certificate: nobody else notices."""

import asyncio
import errno
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography.x509 import load_pem_x509_certificate
from hub_clients import LIMIT_S, made, reason_of, talk

from vfl.base.errors import PeerLost
from vfl.config import ConfigError, NetworkConfig
from vfl.config.network import TlsConfig
from vfl.messages.messages import Kind, Message, MessageError, control
from vfl.parties.launch.supervisor import free_port
from vfl.parties.network.action_log import LINES_A_MINUTE, ActionLog, limited
from vfl.parties.network.admission import DataDigests, Expected
from vfl.parties.network.clock_and_threads import System
from vfl.parties.network.party.dialer import MOST_WAITING, Dialer, Inbox, ReceivedOrder
from vfl.parties.network.server import hub as hub_module
from vfl.parties.network.server.hub import Hub
from vfl.parties.network.tls import diagnosis
from vfl.parties.network.tls.certificates import Authority, peer
from vfl.parties.network.tls.files import TlsFiles
from vfl.parties.network.transport import rpc
from vfl.parties.network.transport.rpc import is_end, open_channel, open_stream
from vfl.parties.network.wire.frame import pack, unpack
from vfl.parties.network.wire.session import Hello, Save

NAMES = tuple(f"party_{number}" for number in range(1, 64))
RUN = "0123456789abcdef"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("attacked", 200, datetime.now(UTC))


@contextmanager
def listening(
    authority: Authority, folder: Path, said: list[str] | None = None, **tls: Path
) -> Iterator[tuple[Hub, NetworkConfig]]:
    address = f"127.0.0.1:{free_port()}"
    network = NetworkConfig(listen=address, server=address, heartbeat_s=0.2, silence_s=10)
    servers = network.model_copy(update={"tls": TlsConfig(**tls)})
    expected = {name: Expected(8, "{}", DataDigests()) for name in NAMES}
    log = [].append if said is None else said.append
    with Hub(RUN, expected, servers, made(authority, "server"), log=log, folder=folder) as hub:
        yield hub, network


def hello(name: str = "party_1", **changes: Any) -> Message:
    """A hello, whatever is in it."""
    fields = {"party": name, "instance": "one", "embedding_width": 8, "agreement": "{}"}
    return Message(Kind.HELLO, parts=(Hello.model_construct(**fields | changes).part(),))


@contextmanager
def dialling(network: NetworkConfig, tls: TlsFiles, name: str = "party_1") -> Iterator[Dialer]:
    with Dialer(lambda: hello(name), network, tls, log=lambda line: None) as dialer:
        yield dialer


def welcomed(dialer: Dialer) -> bool:
    event = dialer.inbox.get(LIMIT_S)
    return isinstance(event, ReceivedOrder) and event.message.kind is Kind.WELCOME


@pytest.mark.release
def test_63_parties_that_dial_at_once_all_get_in(authority: Authority, tmp_path: Path):
    with listening(authority, tmp_path) as (hub, network), ExitStack() as stack:
        dialers = [stack.enter_context(dialling(network, made(authority, name), name)) for name in NAMES]
        assert all(welcomed(dialer) for dialer in dialers)
        assert hub.joined().keys() == set(NAMES)


def test_a_full_server_is_dialled_again(authority: Authority):
    """A server of gRPC alone, which takes one stream at a time and answers all others RESOURCE_EXHAUSTED."""
    address = f"127.0.0.1:{free_port()}"
    network = NetworkConfig(server=address, heartbeat_s=0.2, silence_s=10)

    async def fill() -> list[bool]:
        async def serve(incoming: Any, context: Any) -> None:
            await anext(incoming)
            await busy.wait()
            await context.write(
                pack(Message(Kind.WELCOME, parts=(control({"heartbeat_s": 1, "silence_s": 9, "terms": ""}),), run=RUN))
            )
            await asyncio.sleep(LIMIT_S)

        busy = asyncio.Event()
        server = grpc.aio.server(maximum_concurrent_rpcs=1)
        method = grpc.stream_stream_rpc_method_handler(serve)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("lvfl.Federation", {"Join": method}),))
        server.add_insecure_port(address)
        await server.start()
        channel = open_channel(address, None)
        first = open_stream(channel)
        await first.write(b"here")
        with Dialer(hello, network, None, log=said.append) as dialer:
            async with asyncio.timeout(LIMIT_S):
                while not (told := [line for line in said if "RESOURCE_EXHAUSTED" in line]):
                    await asyncio.sleep(0.05)
            first.cancel()
            busy.set()
            joined = await asyncio.to_thread(welcomed, dialer)
        await channel.close()
        await server.stop(0)
        return [bool(told), joined]

    said: list[str] = []
    assert asyncio.run(fill()) == [True, True], said


@pytest.mark.parametrize(
    ("answer", "size"),
    [(grpc.Compression.Gzip, 100 * 2**20), (grpc.Compression.NoCompression, 3 * 2**20)],
    ids=["bomb", "large"],
)
def test_an_answer_without_end_is_told_as_the_servers(answer: grpc.Compression, size: int):
    async def answer_to(dial: Callable[[str], Exception | None]) -> Exception | None:
        async def serve(incoming: Any, context: Any) -> None:
            await anext(incoming)
            await context.write(bytes(size))

        server = grpc.aio.server(compression=answer, options=[("grpc.max_send_message_length", -1)])
        method = grpc.stream_stream_rpc_method_handler(serve)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("lvfl.Federation", {"Join": method}),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            return await asyncio.to_thread(dial, address)
        finally:
            await server.stop(0)

    def dial(address: str) -> Exception | None:
        with (
            Dialer(hello, NetworkConfig(server=address), None, log=said.append) as dialer,
            pytest.raises(ValueError, match="the server: ") as over,
        ):
            dialer.inbox.get(LIMIT_S)
        return over.value

    said: list[str] = []
    told = str(asyncio.run(answer_to(dial)))
    assert told.startswith("the server: its answer to the hello is above 1048576 bytes (RESOURCE_EXHAUSTED: "), said


def test_a_hello_that_no_server_takes_is_not_sent():
    with (
        Dialer(lambda: hello(agreement="x" * 2**22), NetworkConfig(), None, log=print) as dialer,
        pytest.raises(ConfigError, match=r"a HELLO of 4194.* shorten the settings"),
    ):
        dialer.inbox.get(LIMIT_S)


@pytest.mark.release
def test_1100_silent_connections_take_no_descriptor_that_others_need(authority: Authority, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(hub_module, "MOST_CONNECTIONS", 200)
    options = dict(rpc._SERVER_OPTIONS) | {"grpc.server_handshake_timeout_ms": 2000}
    monkeypatch.setattr(rpc, "_SERVER_OPTIONS", [*options.items()])
    with listening(authority, tmp_path) as (hub, network), dialling(network, made(authority, "party_1")) as dialer:
        assert welcomed(dialer)
        host, _, port = network.listen.rpartition(":")
        others = most_descriptors_in(0.0)
        with ExitStack() as stack:
            for _ in range(1100):
                stack.enter_context(socket.create_connection((host, int(port)), LIMIT_S))
            before = hub.joined()["party_1"]
            assert most_descriptors_in(1.0) < others + 1100 + 250
            with dialling(network, made(authority, "party_2"), "party_2") as later:
                assert welcomed(later), "as soon as the silent ones are hung up on"
            assert hub.joined()["party_1"] is before, "whose stream lives on"


def most_descriptors_in(seconds: float) -> int:
    """Return how many descriptors this process has had open at once, the server's and the attacker's."""
    until_s, most = time.monotonic() + seconds, 0
    while not most or time.monotonic() < until_s:
        most = max(most, len(list(Path("/proc/self/fd").iterdir())))
        time.sleep(0.05)
    return most


def test_without_an_audit_log_nobody_joins_but_is_lost_all_the_same(authority: Authority, tmp_path, monkeypatch):
    noted: list[str] = []

    def note(event: str, peer: object, detail: str = "") -> None:
        noted.append(event)
        if noted != ["joined", "joined"]:
            raise OSError(errno.EMFILE, "Too many open files", "audit.jsonl")

    heard: list[str] = []
    with listening(authority, tmp_path) as (hub, network):
        monkeypatch.setattr(hub.audit, "note", note)
        tls = made(authority, "party_1")
        with Dialer(hello, network, tls, log=heard.append) as dialer:
            assert welcomed(dialer), "by the second dial"
            assert not any("audit" in line for line in heard), "the server's files are its own business"
            connection = hub.wait_for(("party_1",), LIMIT_S)["party_1"]
            answer = connection.order(Message(Kind.SAVE, parts=(Save(round=1).part(),)), lambda answer: answer)
        with pytest.raises(PeerLost, match="party_1 is lost: "):
            answer.result(LIMIT_S)
        assert noted == ["joined", "joined", "lost"]
        assert hub.joined() == {}


def test_a_party_that_says_for_ever_that_it_leaves_is_answered_once(authority: Authority, tmp_path: Path):
    """As by a server that predicts or matches: its answers would fill it where the party reads none."""

    async def leave(address: str) -> list[Kind]:
        channel = open_channel(address, made(authority, "party_1"))
        call = open_stream(channel)
        await call.write(pack(hello()))
        for _ in range(200):
            await call.write(pack(Message(Kind.LEAVING, run=RUN)))
        await call.write(pack(Message(Kind.SAVED, parts=(control({}),), run=RUN)))  # not due: the stream ends
        kinds: list[Kind] = []
        while not is_end(data := await call.read()):
            kinds.append(unpack(data).kind)
        await channel.close()
        return [kind for kind in kinds if kind is not Kind.HEARTBEAT]

    with listening(authority, tmp_path) as (_hub, network):
        assert asyncio.run(leave(network.listen)) == [Kind.WELCOME, Kind.GOODBYE, Kind.REFUSAL]


def test_a_partys_refusal_is_noted_as_one_and_in_short(authority: Authority, tmp_path: Path):
    async def refuse(address: str) -> None:
        channel = open_channel(address, made(authority, "party_1"))
        call = open_stream(channel)
        for message in (hello(), Message(Kind.REFUSAL, parts=(control({"reason": "never\n" * 1000}),))):
            await call.write(pack(message))
        while not is_end(await call.read()):
            pass
        await channel.close()

    said: list[str] = []
    with listening(authority, tmp_path) as (hub, network):
        hub.tell = lambda _peer, line: said.append(line)
        asyncio.run(refuse(network.listen))
    assert said[0] == "party_1 joined"
    assert said[1].startswith("warning: party_1 is lost: "), "also while no training needs it"
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["joined", "refused", "lost"]
    assert [len(line["detail"]) for line in lines[:2]] == [0, 300]


def test_a_peer_that_does_not_take_its_refusal_is_no_traceback(authority, tmp_path, monkeypatch, capfd):
    """Its window is 0: neither the refusal nor gRPC's status can be written. Frames of HTTP/2 by RFC 9113."""
    monkeypatch.setattr(hub_module, "LAST_WORD_S", 0.2)

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload

    fields = {":method": "POST", ":scheme": "https", ":path": "/lvfl.Federation/Join", ":authority": "server"}
    fields |= {"te": "trailers", "content-type": "application/grpc"}
    literal = b"".join(
        b"\0%c%b%c%b" % (len(key), key.encode(), len(text), text.encode()) for key, text in fields.items()
    )
    strange = pack(hello("nobody"))
    no_window, headers = frame(4, 0, 0, bytes((0, 4, 0, 0, 0, 0))), frame(1, 4, 1, literal)
    data = frame(0, 0, 1, b"\0" + len(strange).to_bytes(4) + strange)
    with listening(authority, tmp_path) as (hub, network):
        host, _, port = network.listen.rpartition(":")
        with (
            socket.create_connection((host, int(port)), LIMIT_S) as plain,
            diagnosis._context(made(authority, "party_1")).wrap_socket(plain, server_hostname="server") as secured,
        ):
            secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + no_window + headers + data)
            while not (tmp_path / "audit.jsonl").exists() or +hub._streams:
                time.sleep(0.05)
    assert capfd.readouterr().err == ""


def test_a_third_stream_and_a_stream_without_hello(authority: Authority, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(hub_module, "HELLO_LIMIT_S", 1.0)
    tls = made(authority, "party_1")

    async def silent(address: str, count: int) -> list[str]:
        """Open streams that say nothing; gRPC opens one with its metadata."""
        channels = [open_channel(address, tls) for _ in range(count)]
        calls = [open_stream(channel) for channel in channels]
        try:
            read = [asyncio.wait_for(call.read(), LIMIT_S) for call in calls]
            return sorted(reason_of(unpack(data)) for data in await asyncio.gather(*read))
        finally:
            for channel in channels:
                await channel.close()

    with listening(authority, tmp_path) as (hub, network):
        answers = asyncio.run(silent(network.listen, 3))
        assert answers == ["no hello within 1 s", "no hello within 1 s", "party_1 has 2 streams open already"]
        assert hub.joined() == {}
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert {(line["event"], line["peer"], line["serial"]) for line in lines} == {
        ("refused", "party_1", peer(tls.certificate).serial)
    }
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_denied_certificate_is_out_at_once_and_an_unlisted_key_never_in(authority: Authority, tmp_path: Path):
    deny, allow = tmp_path / "deny", tmp_path / "allow"
    good, bad, other = (made(authority, name) for name in ("party_1", "party_2", "party_3"))
    deny.write_text("# none yet\n")
    said: list[str] = []
    allow.write_text("".join(f"{peer(each.certificate).fingerprint}  # a party\n" for each in (good, bad)))
    with (
        listening(authority, tmp_path, said, deny=deny, allow=allow) as (hub, network),
        dialling(network, good) as first,
        dialling(network, bad, "party_2") as second,
    ):
        assert welcomed(first)
        assert welcomed(second)
        serial = load_pem_x509_certificate(bad.certificate).serial_number
        assert f"network.tls.deny: {deny} holds no serial number: nobody is kept out" in said
        deny.write_text(f"{serial:X}\n")
        with pytest.raises(ValueError, match=f"the certificate {serial:x} of 'party_2' is on the deny list"):
            second.inbox.get(LIMIT_S)
        assert hub.joined().keys() == {"party_1"}
        answer = talk(network.listen, other, pack(hello("party_3")))[0]
        assert reason_of(answer) == "the key of 'party_3' is not on the allow list"
    assert f"network.tls.deny: {deny} holds 1 serial number" in said
    assert f"network.tls.allow: {allow} holds 2 fingerprints" in said


class Late(System):
    """Its threads begin to run later than they are started."""

    def thread(self, run: Callable[[], object], name: str) -> threading.Thread:
        return super().thread(lambda: (time.sleep(0.1), run()), name)


def test_a_party_can_end_as_it_begins_to_dial():
    with Dialer(hello, NetworkConfig(), None, log=print, machine=Late()) as dialer:
        pass
    assert dialer.inbox.get(0.0) is None


def test_a_party_dials_no_server_that_it_has_denied(authority: Authority, tmp_path: Path):
    with listening(authority, tmp_path) as (hub, network):
        deny = tmp_path / "deny"
        deny.write_text("")
        denying = network.model_copy(update={"tls": TlsConfig(deny=deny)})
        with Dialer(hello, denying, made(authority, "party_1"), log=lambda line: None) as dialer:
            assert welcomed(dialer)
            deny.write_text(dialer.server.serial)
            with pytest.raises(ConfigError, match="of 'server' is on the deny list"):
                dialer.inbox.get(LIMIT_S)
        assert hub.joined() == {}


HELLOS = {
    "a name with escapes": {"party": "party_1\x1b[2J"},
    "a name without end": {"party": "p" * 10**6},
    "an instance with line ends": {"instance": "a\nb"},
    "a digest that is text": {"train_ids": "../../etc/passwd"},
    "more rounds than can be": {"rounds": tuple(range(20_000))},
    "settings nested without end": {"agreement": "[" * 10**6},
    "settings of another kind": {"agreement": "1"},
    "a setting of 1 MB": {"agreement": json.dumps({"x\x1b": "y" * 10**6})},
    "a width of 2**32 - 1": {"embedding_width": 2**32 - 1},
}


@pytest.mark.parametrize("what", HELLOS)
def test_a_hello_is_refused_in_one_short_line(authority: Authority, tmp_path: Path, what: str):
    with listening(authority, tmp_path) as (hub, network):
        data = pack(hello(**HELLOS[what]))
        reason = reason_of(talk(network.listen, made(authority, "party_1"), data)[0])
        assert 0 < len(reason) <= 300
        assert reason.isprintable()
        assert hub.joined() == {}


@pytest.mark.parametrize("ahead", [0, 2])
def test_no_more_waits_at_a_party_than_can_be_under_way(ahead: int):
    inbox, stream = Inbox(ahead=ahead), object()

    def put(kind: Kind, sequence: int = 0) -> None:
        inbox.put(ReceivedOrder(Message(kind, sequence=sequence), stream))  # pyright: ignore[reportArgumentType]

    put(Kind.WELCOME)
    for sequence in (1, 2):
        put(Kind.RESTORE, sequence)
    for _ in range(1 + ahead):
        put(Kind.EMBED)
    with pytest.raises(MessageError, match=f"EMBED came while {4 + ahead} orders wait: more than can be under way"):
        put(Kind.EMBED)
    put(Kind.GOODBYE)
    with pytest.raises(MessageError, match=f"SAVE came while {MOST_WAITING + ahead} orders wait"):
        put(Kind.SAVE)
    put(Kind.RESTORE, 1)  # another session: what was ordered before is void
    kinds = [event.message.kind for event in iter(lambda: inbox.get(0), None)]  # pyright: ignore
    assert kinds == [Kind.WELCOME, Kind.RESTORE]


def test_a_flood_of_refused_streams_writes_few_lines(authority: Authority, tmp_path: Path):
    audit, caller = ActionLog(tmp_path), peer(made(authority, "party_1").certificate)
    for _ in range(10 * LINES_A_MINUTE):
        audit.note("refused", caller)
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) == LINES_A_MINUTE
    said: list[str] = []
    tell = limited(said.append)
    for _ in range(10 * LINES_A_MINUTE):
        tell(caller, "again")
    assert said == ["again"] * LINES_A_MINUTE
    tell(peer(made(authority, "party_2").certificate), "party_2 is lost")
    assert said[-1] == "party_2 is lost", "whatever others do"
