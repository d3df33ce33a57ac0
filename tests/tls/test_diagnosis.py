"""What is wrong with a connection, found against real listeners: gRPC, TLS of other kinds, plain sockets."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from vfl.parties.network.tls import diagnosis
from vfl.parties.network.tls.certificates import SERVER, Authority, CertificateSubject, Peer
from vfl.parties.network.tls.diagnosis import Symptom, explain, probe
from vfl.parties.network.tls.files import TlsFiles
from vfl.parties.network.transport.rpc import Pipe, make_server

PATIENCE_S = 60.0
OTHER = Authority.create("other", 999)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A machine that does much else must not look like a silent server."""
    monkeypatch.setattr(diagnosis, "STEP_LIMIT_S", PATIENCE_S)


def pem(files) -> TlsFiles:
    return TlsFiles(files.ca.read_bytes(), files.certificate.read_bytes(), files.key.read_bytes())


@contextlib.contextmanager
def grpc_server(tls: TlsFiles | None) -> Iterator[str]:
    """The transport's own server, which says nothing to whom it lets in."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"

    async def serve(_pipe: Pipe, _caller: Peer | None) -> None:
        return

    async def start():
        server = make_server(address, tls, 4, serve)
        await server.start()
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE_S)
    try:
        yield address
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def listener(serve: Callable[[socket.socket], None] | None) -> Iterator[str]:
    """A listener whose connections ``serve`` gets, one after another; None leaves them waiting."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.settimeout(PATIENCE_S)
                        assert serve is not None
                        serve(connection)

        thread = threading.Thread(target=run) if serve else None
        if thread:
            thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        if thread:
            thread.join(PATIENCE_S)


def test_a_server_that_lets_us_in_answers(credentials):
    party = pem(credentials("party_1"))
    with grpc_server(pem(credentials(SERVER))) as address:
        assert probe(address, party).kind is Symptom.ANSWERS
        assert probe(f"localhost:{address.rpartition(':')[2]}", party).kind is Symptom.ANSWERS
        assert explain(address, party) is None
    with grpc_server(None) as address:
        assert probe(address, None).kind is Symptom.ANSWERS


def test_nobody_there_may_pass(credentials, monkeypatch):
    party = pem(credentials("party_1"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = f"127.0.0.1:{free.getsockname()[1]}"
    finding = probe(closed, party)
    assert finding.kind is Symptom.CLOSED
    assert finding.text == f"nobody listens at {closed}; start lvfl server there, or check the port in network.server"
    assert explain(closed, party) is None

    finding = probe("no-such-host.invalid:50051", party)
    assert finding.kind is Symptom.NO_HOST
    assert "'no-such-host.invalid' is not known" in finding.text

    monkeypatch.setattr(diagnosis, "STEP_LIMIT_S", 0.2)
    with listener(None) as frozen:
        for tls in (party, None):
            assert probe(frozen, tls).kind is Symptom.SILENT
            assert explain(frozen, tls) is None

    def no_answer(*_args: object) -> socket.socket:
        raise TimeoutError("timed out")

    monkeypatch.setattr(diagnosis.socket, "create_connection", no_answer)
    finding = probe("10.0.0.7:50051", party)
    assert finding.kind is Symptom.UNREACHABLE
    assert "firewall" in finding.text


def own(name: str, **how):
    """An owner's credentials, in order but for ``how``."""
    return lambda credentials: pem(credentials(name, **how))


def signed_by_other(name: str):
    """A certificate of another authority, in the hands of one who trusts ours."""

    def make(credentials) -> TlsFiles:
        return replace(pem(credentials(name, signer=OTHER)), ca=pem(credentials(name)).ca)

    return make


def trusting_other(credentials) -> TlsFiles:
    """A server in order that trusts another authority than the one that signed it."""
    return replace(pem(credentials(SERVER)), ca=pem(credentials(SERVER, signer=OTHER)).ca)


def wrongly_named(credentials) -> TlsFiles:
    """A server's certificate in all but the name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CertificateSubject, "usage", CertificateSubject(SERVER).usage)
        return pem(credentials("somebody"))


def nothing(_credentials) -> None:
    """Plaintext."""


EXPIRED, TOO_NEW = {"age_days": 50, "days": 40}, {"age_days": -2}
SERVERS, PARTYS = own(SERVER), own("party_1")
PERMANENT = {
    "own expired": (
        SERVERS,
        own("party_1", **EXPIRED),
        Symptom.OURS_EXPIRED,
        "network.tls.certificate: expired on ",
    ),
    "server's expired": (
        own(SERVER, **EXPIRED),
        PARTYS,
        Symptom.SERVER_EXPIRED,
        "is expired; its operator renews it",
    ),
    "server's too new": (
        own(SERVER, **TOO_NEW),
        PARTYS,
        Symptom.SERVER_TOO_NEW,
        "check the clocks of both machines",
    ),
    "server of another authority": (
        signed_by_other(SERVER),
        PARTYS,
        Symptom.UNKNOWN_AUTHORITY,
        "compare both sides'",
    ),
    "party's certificate as the server's": (own("party_2"), PARTYS, Symptom.WRONG_NAME, "is not a server's"),
    "server of another name": (wrongly_named, PARTYS, Symptom.WRONG_NAME, "does not name 'server'"),
    "server trusts another authority": (
        trusting_other,
        PARTYS,
        Symptom.REFUSED,
        "certificate, which 'tests' signed",
    ),
    "party of another authority": (SERVERS, signed_by_other("party_1"), Symptom.REFUSED, "which 'other' signed"),
    "server's certificate as the party's": (SERVERS, SERVERS, Symptom.REFUSED, "refuses this certificate"),
    "plaintext server": (nothing, PARTYS, Symptom.NOT_TLS, "speaks no TLS: a server started with --insecure"),
    "plaintext party": (SERVERS, nothing, Symptom.WANTS_TLS, "takes no plaintext; leave --insecure out"),
}
"""Name: the server's credentials, the party's, what is found, and words of it."""


@pytest.mark.parametrize("case", PERMANENT)
def test_what_stays_wrong_is_told_apart_with_its_fix(case, credentials, monkeypatch):
    monkeypatch.setattr(diagnosis, "AGAIN_S", 0.01)
    servers, partys, kind, text = PERMANENT[case]
    party = partys(credentials)
    with grpc_server(servers(credentials)) as address:
        finding = probe(address, party)
        assert finding.kind is kind
        assert text in finding.text
        assert "\n" not in finding.text
        assert explain(address, party) == finding.text


def tls_server(files, version: ssl.TLSVersion) -> Callable[[socket.socket], None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = version
    context.load_cert_chain(files.certificate, files.key)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1)

    return serve


def greet(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    connection.recv(1 << 16)


def test_other_services_are_told_apart(credentials):
    party = pem(credentials("party_1"))
    with listener(tls_server(credentials(SERVER), ssl.TLSVersion.TLSv1_3)) as address:
        assert probe(address, party).kind is Symptom.NOT_GRPC
    with listener(tls_server(credentials(SERVER), ssl.TLSVersion.TLSv1_2)) as address:
        assert probe(address, party).kind is Symptom.OLD_TLS
    with listener(greet) as address:
        assert probe(address, party).kind is Symptom.NOT_TLS
        assert probe(address, None).kind is Symptom.NOT_GRPC


def test_a_server_that_is_killed_meanwhile_does_not_count_as_refusing(credentials, monkeypatch):
    party = pem(credentials("party_1"))
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(grpc_server(trusting_other(credentials)))
        monkeypatch.setattr(diagnosis.time, "sleep", lambda _s: stack.close())
        assert explain(address, party) is None
