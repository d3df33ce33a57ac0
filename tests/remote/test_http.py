"""The HTTP service of scores over real sockets, with a scorer that stands in: who is answered, who is hung up on."""

import errno
import http.client
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub_clients import made, write
from shorthand import release, wait_until

from vfl.config.serving import ServingConfig
from vfl.data.drift import FEWEST
from vfl.parties.network.server import hub
from vfl.parties.network.tls.certificates import Authority
from vfl.parties.network.transport.listening import Bounded, bounded, listening
from vfl.parties.serving import client_connection
from vfl.parties.serving import http as service
from vfl.parties.serving.client_connection import ClientConnection
from vfl.parties.serving.request_queue import Score, Scored

BODY = b'{"keys": ["1"]}'
MOST = 8


class Drift:
    """The window of a version's latest scores."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def stability(self, columns: list[str]) -> dict[str, float]:
        return dict.fromkeys(columns, 9.0)


def stand_in(drift: int = 0, **settings: Any) -> Any:
    """A scorer that scores the key 1 alone."""

    async def submit(keys, reasons=None):
        scores = [Score(key, (0.5,) if key == ("1",) else None, {"bank": "row"}) for key in keys]
        return Scored("v", tuple(scores))

    told = SimpleNamespace(note=lambda pairs: [], last=lambda task: (0, {}))
    version = SimpleNamespace(digest="v", columns=("k",), drift=Drift(drift), task=SimpleNamespace(names=()))
    scorer = {"settings": ServingConfig(**settings), "submit": submit, "version": version, "outcomes": told}
    counters = SimpleNamespace(rows=Counter(), reasons=Counter(), batches=0)
    return SimpleNamespace(**scorer, counters=counters, ready=lambda: {"bank": True}, waiting=0, cached=0)


@contextmanager
def served(scorer: Any, most: int = MOST) -> Iterator[int]:
    """Serve in a thread; yield the port."""
    server = service.http_server(scorer)
    with listening("serving.listen", "127.0.0.1:0") as sockets:
        listeners = bounded(sockets, most)
        loop = client_connection.PunctualLoop()
        thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(listeners),))
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield listeners[0].getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
            loop.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a service that several tests ask."""
    with served(stand_in()) as port:
        yield port


def ask(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body, {"Content-Type": "application/json"} | headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def raw(port: int, *lines: str, body: bytes = BODY) -> bytes:
    """Send a request's head and body as they are; return all that comes until the service hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall("\r\n".join(["POST /v1/predict HTTP/1.1", *lines, "", ""]).encode() + body)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def certified(folder: Path) -> dict[str, Any]:
    """Settings of a service with a certificate."""
    paths = write(made(Authority.create("a", 10), "server", hosts=("localhost",), days=5), folder)
    return {name: paths[name] for name in ("certificate", "key")}


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize("encrypted", [False, release(True)])
def test_idle_connections_hold_no_more_descriptors_than_they_may(encrypted: bool, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(client_connection, "REQUEST_LIMIT_S", 1.0)
    settings = certified(tmp_path) if encrypted else {}
    with served(stand_in(**settings)) as port, ExitStack() as held:
        idle = [held.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3 * MOST)]
        wait_until(lambda: sum(map(is_open, idle)) <= MOST)
        assert sum(map(is_open, idle)) > 0
        wait_until(lambda: not any(map(is_open, idle)))  # also those that have not shaken hands
        if encrypted:
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=trusting())
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            connection.close()
        else:
            assert ask(port, "GET", "/healthz")[0] == 200


class Recorded(ClientConnection):
    """Notes how much connections hold at most."""

    most_waiting = most_unsent = 0

    def parse_waiting(self) -> None:
        super().parse_waiting()
        Recorded.most_waiting = max(Recorded.most_waiting, len(self._waiting))

    def pause_writing(self) -> None:
        super().pause_writing()
        Recorded.most_unsent = max(Recorded.most_unsent, self.transport.get_write_buffer_size())


def flood(clients: list[socket.socket], asked: bytes) -> int:
    """Send requests on all connections and read nothing until the service has closed them; return how many bytes."""
    sent, still, end_s = 0, list(clients), time.monotonic() + 60
    for client in clients:
        client.setblocking(False)
    while still:
        assert sent < len(clients) << 22
        assert time.monotonic() < end_s
        for client in list(still):
            try:
                sent += client.send(asked)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                time.sleep(0.001)
            except OSError:
                still.remove(client)
    return sent


TOKEN = b"0123456789abcdef"
SCORES = b"POST /v1/predict HTTP/1.1\r\nContent-Type: application/json\r\n"
ASKED = {
    "scores": SCORES + b"Authorization: Bearer " + TOKEN + b"\r\n",
    "no token": SCORES,
    "interface": b"GET /openapi.json HTTP/1.1\r\n",
    "nothing": b"GET /nothing HTTP/1.1\r\n",
    "compressed": SCORES + b"Content-Encoding: gzip\r\n",
}


@pytest.mark.parametrize(
    ("kind", "encrypted"),
    [("scores", False), *(release(kind, False) for kind in ASKED if kind != "scores"), release("no token", True)],
)
def test_clients_that_never_read_fill_no_memory_and_make_room_for_others(kind, encrypted, tmp_path, monkeypatch):
    monkeypatch.setattr(client_connection, "REQUEST_LIMIT_S", 1.0)
    monkeypatch.setattr(service, "ClientConnection", Recorded)
    monkeypatch.setattr(Recorded, "most_waiting", 0)
    monkeypatch.setattr(Recorded, "most_unsent", 0)
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    token.chmod(0o600)
    settings: dict[str, Any] = {"token": token} | (certified(tmp_path) if encrypted else {})
    asked = ASKED[kind] + b"Host: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    with served(stand_in(**settings), most=3) as port, ExitStack() as held:
        clients: list[socket.socket] = []
        for _ in range(3):
            client = held.enter_context(socket.socket())
            for kernel in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                client.setsockopt(socket.SOL_SOCKET, kernel, 1 << 16)
            client.connect(("127.0.0.1", port))
            clients.append(held.enter_context(trusting().wrap_socket(client)) if encrypted else client)
        flood(clients, asked * 100)
        wait_until(lambda: answers(port, encrypted))
    assert Recorded.most_waiting <= 1 << 19  # what one read takes, of TLS more than of the kernel
    assert Recorded.most_unsent <= 1 << 19


def answers(port: int, encrypted: bool) -> bool:
    try:
        if not encrypted:
            return ask(port, "GET", "/healthz")[0] == 200
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=trusting())
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
        connection.close()
    except (OSError, http.client.HTTPException):
        return False
    return status == 200


def test_without_a_descriptor_left_clients_are_hung_up_on_and_little_is_logged(caplog, monkeypatch):
    real, refused = socket.socket.accept, list[int]()

    def exhausted(listener: socket.socket) -> Any:
        if isinstance(listener, Bounded) and listener._spare >= 0 and len(refused) < 50:
            refused.append(1)
            raise OSError(errno.EMFILE, "Too many open files")
        return real(listener)

    monkeypatch.setattr(socket.socket, "accept", exhausted)
    with served(stand_in()) as port, ExitStack() as held:
        idle = [held.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(50)]
        wait_until(lambda: not any(map(is_open, idle)))
        assert len(refused) == 50
        assert ask(port, "GET", "/healthz")[0] == 200
    assert len(caplog.text) < 1000


def test_clients_that_send_no_http_write_no_log(caplog, capfd):
    with served(stand_in()) as port:
        for line in ("NONSENSE", "GET / HTTP/1.1\x00", "X" * 100):
            for _ in range(20):
                assert raw(port, line, body=b"")
    assert len(caplog.text) + len("".join(capfd.readouterr())) < 1000


@pytest.mark.parametrize("idle_s", [1, release(3600)])
def test_an_idle_connection_stays_open_as_long_as_is_set(idle_s: int):
    with served(stand_in(idle_s=idle_s)) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        client = connection.sock
        if idle_s == 1:
            assert client.recv(1) == b""
        else:
            time.sleep(6)  # longer than uvicorn's own limit
            assert is_open(client)
        connection.close()


@pytest.mark.parametrize(("hard", "spared"), [(1024, 256), (1 << 20, service.MOST_CONNECTIONS)])
def test_the_parties_keep_descriptors_of_their_own(hard: int, spared: int, monkeypatch):
    monkeypatch.setattr(hub.resource, "getrlimit", lambda _kind: (1024, hard))
    monkeypatch.setattr(hub.resource, "setrlimit", lambda _kind, _limits: None)
    assert hub.spare_files(service.MOST_CONNECTIONS) == spared
    left = hub._connection_limit(4, hub.RESERVED_FILES + spared)
    assert left == min(hard - hub.RESERVED_FILES - spared, hub.MOST_CONNECTIONS)
    assert left + spared + hub.RESERVED_FILES <= hard


@pytest.mark.parametrize("outcome", ["9" * 400, "-" + "9" * 400, '"' + "9" * 400 + '"', "1e400", "9" * 5000])
def test_an_outcome_that_no_number_holds_is_refused(outcome: str, port: int):
    body = f'{{"outcomes": [{{"key": "1", "outcome": {outcome}}}]}}'.encode()
    status, text = ask(port, "POST", "/v1/outcomes", body)
    assert status in (400, 422), text
    assert len(text) < 600


def test_metrics_have_a_prefix_and_count_scores_apart_from_probes():
    with served(stand_in()) as port:
        for _ in range(3):
            assert ask(port, "GET", "/readyz")[0] == 200
        assert ask(port, "POST", "/v1/predict", b'{"keys": ["1", "2"]}')[0] == 200
        _, text = ask(port, "GET", "/metrics")
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names
    assert all(name.startswith("lvfl_") for name in names)
    assert "\nlvfl_predictions_total 1.0\n" in text
    assert '\nlvfl_requests_total{status="200"} 4.0\n' in text
    documented = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    assert not [name for name in names if not name.endswith("_created") and name not in documented]


@pytest.mark.parametrize(("rows", "shown"), [(0, False), (FEWEST - 1, False), (FEWEST, True)])
def test_the_drift_index_is_shown_once_there_are_rows_enough(rows: int, shown: bool):
    with served(stand_in(drift=rows)) as port:
        _, text = ask(port, "GET", "/metrics")
    assert f"\nlvfl_drift_rows {float(rows)}\n" in text
    assert ("\nlvfl_score_stability_index 9.0\n" in text) == shown


def test_the_first_page_leads_to_the_others(port: int):
    status, text = ask(port, "GET", "/")
    assert status == 200
    assert json.loads(text)["interface"] == "/docs"
