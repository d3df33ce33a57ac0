"""Rows to be scored from an HTTP service: the bits of the same rows in a file, or away; nothing else ends."""

import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hub_clients import made, write
from refusals import refused, refuses
from served_owner import KEYS, check_same, key

from vfl.data.tables.arrow import pq
from vfl.parties.network.tls.certificates import Authority
from vfl.parties.serving import fetched_rows, row_connections
from vfl.parties.serving.fetched_rows import CONNECTIONS

QUERY = "SELECT * FROM rows WHERE k = ?"


class Service:
    """A service of an owner's rows; ``answer`` may be replaced."""

    def __init__(self, path: Path, context: ssl.SSLContext | None = None) -> None:
        self.rows = {str(row["k"]): row for row in pq.read_table(path).to_pylist()}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Callable[[Any, str], None] = self.give
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                service.asked.append(self.path)
                service.headers.append(dict(self.headers))
                service.answer(self, unquote(self.path.rsplit("/", 1)[-1]))

            def log_message(self, format: str, *args: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None: ...  # the client has gone

        self.server = Server(("127.0.0.1", 0), Handler)
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"http{'' if context is None else 's'}://127.0.0.1:{self.server.server_port}/rows/{{key}}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def give(self, handler: Any, cell: str) -> None:
        row = self.rows.get(cell)
        self.send(handler, 404 if row is None else 200, json.dumps(row).encode())

    def send(self, handler: Any, status: int, body: bytes, **headers: str) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    def always(self, status: int, body: bytes, **headers: str) -> None:
        self.answer = lambda handler, cell: self.send(handler, status, body, **headers)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def service(new_rows: dict[str, Path]) -> Iterator[Service]:
    made = Service(new_rows["shop"])
    yield made
    made.close()


def test_a_service_s_rows_have_the_bits_of_their_file(owned, service: Service, new_rows: dict[str, Path]):
    own = owned("shop")
    rows, whole = own.served(url=service.url), own.from_file(new_rows["shop"])
    for keys in (KEYS, KEYS[7:8], [*KEYS[::-3], key("nobody")]):
        found = rows.find(own.party, keys)
        check_same(own, found, whole, keys)
        assert found.away == frozenset()
        assert found.places.keys() == {*keys} & whole.places.keys()
    for row in service.rows.values():
        row.pop("k")  # an answer without the key is that of the key which was asked for
    check_same(own, rows.find(own.party, KEYS), whole, KEYS)


def test_of_a_service_that_fails_and_is_late_rows_are_right_or_away(owned, service: Service, new_rows: dict[str, Path]):
    own, draw = owned("shop"), random.Random(3)
    rows, whole = own.served(limit_s=0.1, url=service.url), own.from_file(new_rows["shop"])
    outcomes = set[str]()

    def shaky(handler: Any, cell: str) -> None:
        match draw.random():
            case chance if chance < 0.02:
                service.send(handler, 503, b"{}")
            case chance if chance < 0.04:
                handler.connection.close()
            case chance if chance < 0.05:
                service.send(handler, 200, json.dumps(service.rows[cell]).encode()[:-3], Content_Length="500")
                handler.connection.close()
            case chance if chance < 0.15:
                time.sleep(0.12)
                service.give(handler, cell)
            case _:
                service.give(handler, cell)

    service.answer = shaky
    for at in range(0, 2 * len(KEYS), 4):
        keys = [KEYS[place % len(KEYS)] for place in range(at, at + 4)]
        found = rows.find(own.party, keys)
        check_same(own, found, whole, keys)
        assert found.away | found.places.keys() == {*keys}
        outcomes |= {"away"} if found.away else {"row"}
    assert outcomes == {"away", "row"}
    assert len(rows._connections._threads) <= CONNECTIONS
    service.answer = service.give
    rows.limit_s = 20.0
    assert rows.find(own.party, KEYS).away == frozenset()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"", "JSON"),
        (200, b"[]", "no object"),
        (200, b"null", "no object"),
        (200, b"{", "JSON"),
        (200, b"\xff\xfe", "JSON"),
        (200, b"[" * 100_000, "JSON"),
        (200, b'{"spent": NaN, "visits": 1}', "NaN"),
        (200, b'{"spent": -Infinity, "visits": 1}', "Infinity"),
        (200, b'{"spent": 1e999, "visits": 1}', "too large"),
        (200, b'{"spent": 1' + b"0" * 5000 + b', "visits": 1}', "JSON"),
        (200, b'{"spent": 1' + b"0" * 40 + b', "visits": 1}', "too large"),
        (200, b'{"spent": 1, "spent": 2, "visits": 1}', "twice"),
        (200, b'{"spent": {"x": 1}, "visits": 1}', "no column 'spent'"),
        (200, b'{"spent": "much", "visits": 1}', "'much' is no number"),
        (200, b'{"spent": "\\ud800", "visits": 1}', ""),
        (200, b'{"visits": 1}', "no column 'spent'"),
        (200, b'{"spent": 1, "visits": 1, "x": "' + b"y" * (1 << 20) + b'"}', "1 MiB"),
        (302, b'{"spent": 1, "visits": 1}', "status 302"),
        (500, b'{"spent": 1, "visits": 1}', "status 500"),
        (206, b'{"spent": 1, "visits": 1}', "status 206"),
    ],
)
def test_an_answer_that_is_no_row_is_one_line_and_away(status: int, body: bytes, said: str, owned, service: Service):
    own = owned("shop")
    service.always(status, body, Location=service.url.replace("{key}", "1001"))
    rows = own.served(url=service.url)
    for _ in range(2):
        found = rows.find(own.party, KEYS[:1])
        assert (found.places, found.away) == ({}, {KEYS[0]})
    (line,) = own.told()
    assert said in line
    assert "\n" not in line
    assert {*service.asked} == {"/rows/1000"}  # no redirect is followed
    service.answer = service.give
    assert rows.find(own.party, KEYS[:1]).away == frozenset()


def test_another_key_s_row_is_not_taken(owned, service: Service):
    own = owned("shop")
    service.always(200, b'{"k": 1001, "spent": 1, "visits": 2}')
    found = own.served(url=service.url).find(own.party, KEYS[:2])
    assert found.places.keys() == {key(1001)}


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_row_that_drips_is_away_in_time(part: str, owned, service: Service):
    own, ended = owned("shop"), threading.Event()

    def drip(handler: Any, cell: str) -> None:
        if part == "body":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        else:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        while not ended.wait(0.01):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    service.answer = drip
    rows = own.served(limit_s=0.2, url=service.url)
    for _ in range(2):
        found = rows.find(own.party, KEYS)
        assert (found.places, found.away) == ({}, {*KEYS})
    service.answer, rows.limit_s = service.give, 20.0
    assert rows.find(own.party, KEYS).away == frozenset()  # the threads are free: what dripped was ended
    ended.set()


@pytest.mark.parametrize("cell", ["a/b", "a b", "../x", "?a=1#b", "%2e", "\u00e9", "a&b", "a\u2028b", "http://x"])
def test_a_key_is_quoted_in_the_address(cell: str, owned, service: Service):
    own = owned("shop")
    service.rows[cell] = {"k": cell, "spent": 1.0, "visits": 2.0}
    assert own.served(url=service.url).find(own.party, [key(cell)]).places.keys() == {key(cell)}
    (path,) = service.asked
    assert path.startswith("/rows/")
    assert path.isascii()
    assert path.count("/") == 2


@pytest.mark.parametrize("cell", [".", ".."])
def test_a_key_that_would_be_another_address_is_not_asked_for(cell: str, owned, service: Service):
    own = owned("shop")
    assert own.served(url=service.url).find(own.party, [key(cell)]).away == {key(cell)}
    assert service.asked == []


def test_a_row_is_kept_for_its_seconds_and_never_after_an_error(owned, service: Service, monkeypatch):
    own, now_s = owned("shop"), [1000.0]
    rows = own.served(cache_s=5.0, url=service.url)
    clock: Any = type("Clock", (), {"monotonic": staticmethod(lambda: now_s[0])})
    with monkeypatch.context() as patch:
        patch.setattr(fetched_rows, "time", clock)
        patch.setattr(row_connections, "time", clock)
        for _ in range(3):
            assert rows.find(own.party, KEYS[:2]).places.keys() == {*KEYS[:2]}
        assert len(service.asked) == 2
        service.always(500, b"")
        assert rows.find(own.party, KEYS[:2]).away == frozenset()
        now_s[0] += 6
        assert rows.find(own.party, KEYS[:2]).away == {*KEYS[:2]}
        assert rows.find(own.party, KEYS[:2]).away == {*KEYS[:2]}
        service.answer = service.give
        monkeypatch.setattr(rows._kept, "most", 3)
        for each in KEYS[:9]:
            rows.find(own.party, [each])
        assert len(rows._kept) == 3


def test_a_token_goes_in_the_header_and_into_no_line(owned, service: Service, tmp_path: Path):
    own, secret = owned("shop"), "s3cret-s3cret-s3cret"
    (tmp_path / "token").write_text(secret)
    (tmp_path / "token").chmod(0o644)
    refuses("token", lambda: own.served(url=service.url, token=str(tmp_path / "token")), "others")
    (tmp_path / "token").chmod(0o600)
    rows = own.served(url=service.url, token=str(tmp_path / "token"))
    service.always(401, b"")
    assert rows.find(own.party, KEYS[:1]).away == {KEYS[0]}
    service.close()
    rows.find(own.party, KEYS[1:2])
    assert secret not in repr(rows.connect())
    assert service.headers[0]["Authorization"] == f"Bearer {secret}"
    assert own.told()
    assert secret not in "\n".join(own.said)
    (tmp_path / "token").write_text("line one, long\nX-Injected: line two")
    with refused("data.tables.shop.serve.token", "token") as error:
        own.served(url=service.url, token=str(tmp_path / "token"))
    assert "Injected" not in str(error.value)


def test_tls_knows_the_service_and_the_owner(owned, new_rows: dict[str, Path], tmp_path: Path):
    own, context = owned("shop"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority, other = Authority.create("a", 10), Authority.create("b", 10)
    server = write(made(authority, "server", hosts=("127.0.0.1",), days=5), tmp_path / "server")
    tls = {name: str(path) for name, path in write(made(authority, "shop", days=5), tmp_path / "own").items()}
    (tmp_path / "other.pem").write_bytes(made(other, "shop", days=5).ca)
    context.load_cert_chain(server["certificate"], server["key"])
    context.load_verify_locations(server["ca"])
    context.verify_mode = ssl.CERT_REQUIRED
    service = Service(new_rows["shop"], context)
    try:
        Path(tls["key"]).chmod(0o644)
        refuses("data.tables.shop.serve.key", lambda: own.served(url=service.url, **tls), "users")
        Path(tls["key"]).chmod(0o600)
        rows = own.served(url=service.url, **tls)
        check_same(own, rows.find(own.party, KEYS), own.from_file(new_rows["shop"]), KEYS)
        assert rows.find(own.party, KEYS).away == frozenset()
        for wrong in ({"ca": tls["ca"]}, tls | {"ca": str(tmp_path / "other.pem")}, {}):  # no certificate, other ones
            assert own.served(limit_s=2.0, url=service.url, **wrong).find(own.party, KEYS[:1]).away == {KEYS[0]}
        named = service.url.replace("127.0.0.1", "localhost")
        assert own.served(limit_s=2.0, url=named, **tls).find(own.party, KEYS[:1]).away == {KEYS[0]}
    finally:
        service.close()


@pytest.mark.release
def test_a_handshake_that_never_ends_is_away_in_time(owned, new_rows: dict[str, Path]):
    own, silent = owned("shop"), socket.create_server(("127.0.0.1", 0))
    rows = own.served(limit_s=0.2, url=f"https://127.0.0.1:{silent.getsockname()[1]}/{{key}}")
    for _ in range(3):
        assert rows.find(own.party, KEYS).away == {*KEYS}
    assert len(rows._connections._threads) <= CONNECTIONS
    silent.close()


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        ({}, ("data.tables.bank.serve.file", "name")),
        ({"file": "x.csv", "url": "https://h/{key}"}, ("data.tables.bank.serve.url", "name")),
        ({"query": QUERY}, ("data.tables.bank.serve", "database")),
        ({"query": QUERY, "database": "postgresql://u:s3cret@h/d"}, ("data.tables.bank.serve.database", "password")),
        ({"url": "https://u:s3cret@h/{key}"}, ("data.tables.bank.serve.url", "secret")),
        ({"url": "https://h/{key}?token=s3cret"}, ("data.tables.bank.serve.url", "secret")),
        ({"url": "http://elsewhere.example/{key}"}, ("data.tables.bank.serve.url", "https")),
        ({"url": "https://{key}.example/"}, ("data.tables.bank.serve.url", "behind")),
        ({"url": "https://h/rows"}, ("data.tables.bank.serve.url", "behind")),
        ({"url": "ftp://h/{key}"}, ("data.tables.bank.serve.url", "https")),
        ({"url": "https://h/{key}\r\nX: y"}, ("data.tables.bank.serve.url", "ASCII")),
        ({"url": "https://h:99999/{key}"}, ("data.tables.bank.serve.url", "https")),
        ({"file": "x.csv", "cache_s": 3}, ("data.tables.bank.serve.cache_s",)),
        ({"file": "x.csv", "token": "t"}, ("data.tables.bank.serve.token",)),
        ({"url": "https://h/{key}", "certificate": "c.pem"}, ("data.tables.bank.serve.certificate",)),
    ],
)
def test_settings_that_cannot_be_are_one_line(serve: dict[str, Any], said: tuple[str, ...], owned):
    with refused(*said) as error:
        owned("bank").served(**serve)
    assert "s3cret" not in str(error.value)
