"""A client's connection: requests are read one by one, whatever the pieces in which they come, and within limits."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from vfl.config.serving import ServingConfig
from vfl.core.tasks import Classification
from vfl.parties.serving import client_connection
from vfl.parties.serving import http as service
from vfl.parties.serving.client_connection import MOST_HEAD, ClientConnection
from vfl.parties.serving.request_queue import QueueFull, Score, Scored

BODY = b'{"keys": ["1"]}'
JSON = b"Content-Type: application/json"
TOKEN = "the token of all clients"
START = b"POST /v1/predict HTTP/1.1"
submitted: list[list[tuple[str, ...]]] = []


async def submit(keys: list[tuple[str, ...]], reasons: Any = None) -> Scored:
    submitted.append(keys)
    if ("hangs",) in keys:
        await asyncio.Event().wait()
    if ("full",) in keys:
        raise QueueFull("9 keys wait")
    if ("fails",) in keys:
        raise RuntimeError("the scorer failed")
    return Scored("v", tuple(Score(key, (0.25, 0.75), {"bank": "row"}) for key in keys))


def stand_in(**given: Any) -> Any:
    version = SimpleNamespace(digest="v", columns=("k",), drift=None, task=Classification(2, names=("no", "yes")))
    counters, outcomes = SimpleNamespace(rows={}, reasons={}, batches=0), SimpleNamespace(last=lambda task: (0, {}))
    scorer = {"settings": ServingConfig(**given), "submit": submit, "version": version, "counters": counters}
    return SimpleNamespace(**scorer, outcomes=outcomes, ready=lambda: {"bank": True}, waiting=0, cached=0)


class Client(asyncio.Transport):
    """A client's end: what came, and whether the service has hung up or waits."""

    def __init__(self) -> None:
        super().__init__()
        self.came, self.closed, self.paused = b"", False, False

    def write(self, data: Any) -> None:
        self.came += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def configuration(**given: Any) -> uvicorn.Config:
    config = uvicorn.Config(service.make_app(stand_in(**given)), lifespan="off", ws="none", log_config=None)
    config.load()
    return config


OPEN = configuration()


async def connected(config: uvicorn.Config = OPEN) -> tuple[Any, Client]:
    connection, client = ClientConnection(config, ServerState(), {}), Client()
    connection.connection_made(client)
    return connection, client


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def send(connection: Any, client: Client, *pieces: bytes) -> None:
    """Send pieces, each when the service reads."""
    for piece in pieces:
        if client.paused:
            await settle()
        if not client.closed and not client.paused:
            connection.data_received(piece)
    await settle()


def exchanged(*pieces: bytes, config: uvicorn.Config = OPEN) -> tuple[bytes, bool]:
    """What the service sends, and whether it hangs up."""

    async def exchange() -> tuple[bytes, bool]:
        connection, client = await connected(config)
        await send(connection, client, *pieces)
        connection.connection_lost(None)
        return client.came, client.closed

    return asyncio.run(exchange())


def statuses(answers: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", answers)]


def request_of(*fields: bytes, body: bytes = BODY, start: bytes = START, host: bytes = b"Host: localhost") -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join([start, host, JSON, length, *fields, b"", b""]) + body


def in_chunks(body: bytes, size: int = 4, trailers: bytes = b"") -> bytes:
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(body[at : at + size]), body[at : at + size]) for at in range(0, len(body), size)
    )
    head = b"\r\n".join([START, b"Host: localhost", JSON, b"Transfer-Encoding: chunked", b"", b""])
    return head + chunks + b"0\r\n" + trailers + b"\r\n"


def cut(data: bytes, places: list[int]) -> Iterator[bytes]:
    ends = sorted({place % len(data) for place in places} - {0})
    yield from (data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True))


requests = st.sampled_from(
    [
        request_of(),
        request_of(body=b'{"keys": ["1", "\r\n\r\n"]}'),
        request_of(body=b'{"keys": ["full"]}'),
        request_of(b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings"),
        request_of(b"upgrade: websocket", b"Connection: upgrade"),
        in_chunks(BODY),
        in_chunks(BODY + b"\r\n\r\n", size=3, trailers=b"Host: a\r\nX: y\r\n"),
        b"\r\n" + request_of(body=b"", start=b"GET / HTTP/1.1"),
        request_of(body=b"", start=b"HEAD /readyz HTTP/1.1"),
        request_of(host=b"Host: evil.example"),
        request_of(b"Content-Encoding: gzip"),
        request_of(b"Connection: close"),
        request_of(start=b"\x16\x03\x01"),
    ]
)


@given(st.lists(requests, min_size=1, max_size=4), st.lists(st.integers(0, 10_000), max_size=6))
@settings(max_examples=60, deadline=None)
def test_the_pieces_in_which_requests_come_do_not_matter(asked: list[bytes], places: list[int]):
    data = b"".join(asked)
    assert exchanged(*cut(data, places)) == exchanged(data)


@given(st.lists(requests, max_size=2), st.binary(max_size=5), st.integers(0, 400))
@settings(max_examples=60, deadline=None)
def test_whatever_comes_is_answered_or_waited_for(asked: list[bytes], junk: bytes, place: int):
    data = b"".join(asked)
    came, _ = exchanged(data[:place] + junk + data[place:])
    assert came.startswith(b"HTTP/1.1 ") or not came
    assert 500 not in statuses(came)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request_of(b"User-Agent: a b", b"x-real-ip: 1.2.3.4", b"X:", b"X: \xe9"), 200),
        (request_of(b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings"), 200),
        (in_chunks(BODY, trailers=b"Authorization: x\r\n"), 200),
        (request_of(body=b"", start=b"GET /healthz HTTP/1.0"), 200),
        (request_of(b"Content-Length: 15"), 400),
        (request_of(b"Transfer-Encoding: chunked"), 400),
        (request_of(b"Content-Length : 3"), 400),
        (request_of(b"X: a", b" folded"), 400),
        (request_of(b"X: a\x00b"), 400),
        (request_of(b"X Y: a"), 400),
        (request_of(b"Host: localhost"), 400),
        (request_of(b"Authorization: Bearer a", b"Authorization: Bearer b"), 400),
        (request_of(host=b"X: no host"), 400),
        (request_of().replace(b"\r\n", b"\n"), 400),
        (request_of(start=b"POST /v1/predict HTTP/2.0"), 400),
        (request_of(start=b"POST /v1/predict"), 400),
        (request_of(start=b"CONNECT a:1 HTTP/1.1"), 400),
        (in_chunks(BODY).replace(b": chunked", b": gzip, chunked"), 501),
        (request_of(b"Content-Encoding: gzip"), 415),
        (request_of(b"Content-Encoding: identity"), 200),
    ],
)
def test_a_head_that_can_be_read_in_two_ways_is_refused(asked: bytes, status: int):
    came, closed = exchanged(asked)
    assert statuses(came) == [status]
    assert closed or status != 400


HOSTS = ["evil@localhost", "localhost#", "localhost/", "localhost?", "localhost:80@evil", "localhost\\", "localhost%2f"]
HOSTS += ["[::1", "[::1]x", "127.0.0.1/", "::1", "0x7f.1", "2130706433", "localhost.evil.example", "localhost:x", ""]
HOSTS += ["127.0.0.1.evil.example:80"]


@pytest.mark.parametrize("host", HOSTS)
def test_only_a_name_of_this_machine_with_or_without_a_port_is_one(host: str):
    came, closed = exchanged(request_of(host=b"Host: " + host.encode()))
    assert (statuses(came), closed) == ([400], True)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:8080", "127.3.2.1", "LOCALHOST:1"])
def test_names_of_this_machine_are_answered(host: str):
    assert statuses(exchanged(request_of(host=b"Host: " + host.encode()))[0]) == [200]


@pytest.mark.parametrize("path", [b"/", b"/healthz", b"/readyz", b"/metrics", b"/openapi.json", b"/v1/predict"])
def test_head_is_answered_as_get_without_the_body(path: bytes):
    head, _, body = exchanged(request_of(body=b"", start=b"GET %b HTTP/1.1" % path))[0].partition(b"\r\n\r\n")
    assert body
    if path != b"/metrics":  # which count this request as well
        assert exchanged(request_of(body=b"", start=b"HEAD %b HTTP/1.1" % path))[0] == head + b"\r\n\r\n"
    assert exchanged(request_of(body=b"", start=b"HEAD %b HTTP/1.1" % path) * 2)[0].count(b"HTTP/1.1 ") == 2


@pytest.mark.parametrize(("key", "status"), [(b"1", 200), (b"full", 429), (b"fails", 500)])
def test_owners_are_asked_once_whatever_comes_of_it(key: bytes, status: int):
    submitted.clear()
    asked = request_of(body=b'{"keys": ["%b"]}' % key)
    assert statuses(exchanged(asked)[0]) == [status]
    assert len(submitted) == 1
    counted = exchanged(request_of(body=b"", start=b"GET /metrics HTTP/1.1"))[0]
    assert b'lvfl_requests_total{status="%d"}' % status in counted


def test_refusals_are_counted():
    config = configuration()
    exchanged(request_of(host=b"Host: evil.example"), config=config)
    exchanged(request_of(b"Content-Encoding: br"), config=config)
    counted = exchanged(request_of(body=b"", start=b"GET /metrics HTTP/1.1"), config=config)[0]
    assert b'lvfl_requests_total{status="400"} 1.0' in counted
    assert b'lvfl_requests_total{status="415"} 1.0' in counted


def test_a_request_that_is_cancelled_at_the_end_is_refused_and_its_connection_closed():
    async def end() -> Client:
        connection, client = await connected()
        await send(connection, client, request_of(body=b'{"keys": ["hangs"]}'))
        connection.shutdown()
        assert not client.closed
        for task in connection.tasks:  # as uvicorn does once it has waited long enough
            task.cancel()
        await settle()
        connection.connection_lost(None)
        return client

    client = asyncio.run(end())
    assert client.closed
    assert statuses(client.came) == [500]


def test_what_comes_before_an_answer_waits_for_its_turn_and_the_end_of_the_service_for_the_answer():
    answer, _ = exchanged(request_of())

    async def ask() -> None:
        connection, client = await connected()
        connection.data_received(request_of() * 3)
        assert client.paused
        await settle()
        assert client.came == answer * 3
        assert not client.paused
        connection.data_received(request_of() * 2)
        connection.shutdown()
        assert not client.closed
        await settle()
        assert client.closed
        assert client.came.removeprefix(answer * 3).count(b"HTTP/1.1 200 ") == 1
        connection.connection_lost(None)

    asyncio.run(ask())


def test_nothing_is_parsed_or_read_while_a_request_waits_for_its_answer():
    async def ask() -> None:
        connection, client = await connected()
        submitted.clear()
        many = request_of(body=b'{"keys": ["hangs"]}') * 1000
        await send(connection, client, *[many] * 10)
        assert len(submitted) == 1
        assert client.paused
        assert len(connection._waiting) < len(many)
        assert not connection.pipeline
        connection.connection_lost(None)

    asyncio.run(ask())


@pytest.mark.parametrize(
    "start", [START, b"GET /openapi.json HTTP/1.1", b"GET /nothing HTTP/1.1", b"GET /healthz HTTP/1.1"]
)
def test_no_answer_is_made_while_the_one_before_is_not_taken_and_who_takes_none_is_hung_up_on(start, monkeypatch):
    async def ask() -> None:
        connection, client = await connected()
        connection.pause_writing()
        await send(connection, client, *[request_of(start=start) * 100] * 10)
        assert client.came == b""
        assert client.paused
        connection.resume_writing()
        await settle()
        assert client.came
        monkeypatch.setattr(client_connection, "REQUEST_LIMIT_S", 0.0)
        assert not client.closed
        connection.pause_writing()
        await asyncio.sleep(0.01)
        assert client.closed
        connection.connection_lost(None)

    asyncio.run(ask())


@pytest.mark.parametrize("pieces", [[b""], [b"\r\n"], [b"GET"], [request_of(), b"\r\n"], [request_of(), b"GET / H"]])
def test_who_begins_no_request_or_ends_no_head_is_hung_up_on(pieces: list[bytes], monkeypatch):
    async def begin() -> None:
        connection, client = await connected()
        assert not client.closed
        await send(connection, client, *pieces[:-1])
        monkeypatch.setattr(client_connection, "REQUEST_LIMIT_S", 0.0)
        if len(pieces) == 1:
            connection.connection_lost(None)
            connection, client = await connected()
        await send(connection, client, *pieces[-1:])
        await asyncio.sleep(0.01)
        assert client.closed
        connection.connection_lost(None)

    asyncio.run(begin())


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (START + b"\r\nX: " + b"a" * MOST_HEAD, 431),
        (START + b"\r\nX: " + b"a" * MOST_HEAD + b"\r\n\r\n", 431),
        (b"POST /" + b"a" * MOST_HEAD, 431),
        (in_chunks(b" " * MOST_HEAD + BODY, size=1), 413),
        (in_chunks(BODY, trailers=b"X: a\r\n" * MOST_HEAD), 413),
        (in_chunks(BODY, trailers=b"X: " + b"a" * MOST_HEAD), 413),
        (in_chunks(BODY).replace(b"\r\n4\r\n", b"\r\n4;" + b"a" * MOST_HEAD + b"\r\n", 1), 413),
        (in_chunks(b"\r\n" * MOST_HEAD + BODY, size=1 << 20), 413),
        (in_chunks(b" \r\n\r\n" * 100 + b" " * 900_000 + BODY, size=1000), 200),
        (in_chunks(b" " * MOST_HEAD + BODY, size=1000), 200),
        (request_of(body=b" " * (client_connection.MOST_BODY + 1)), 413),
        (request_of(body=b" " * (client_connection.MOST_BODY - len(BODY)) + BODY), 200),
    ],
    ids=range(12),
)
def test_heads_and_frames_of_chunks_and_bodies_have_a_largest_size(asked: bytes, status: int):
    came, _ = exchanged(*(asked[at : at + 65536] for at in range(0, len(asked), 65536)))
    assert statuses(came) == [status]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> uvicorn.Config:
    token: Path = tmp_path_factory.mktemp("token") / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    return configuration(token=token)


def test_with_a_token_any_host_is_answered(guarded):
    asked = request_of(b"Authorization: Bearer " + TOKEN.encode(), host=b"Host: scores.example")
    assert statuses(exchanged(asked, config=guarded)[0]) == [200]


def gate_of(config: uvicorn.Config) -> Any:
    app: Any = config.app
    layer = app.middleware_stack
    while not isinstance(layer, client_connection.RequestGate):
        layer = layer.app
    return layer


@pytest.mark.parametrize(
    ("field", "kept"),
    [
        (b"X: none", False),
        (b"Authorization: Bearer another", False),
        (b"Authorization: Basic " + TOKEN.encode(), False),
        (b"Authorization: Bearer " + TOKEN.encode(), True),
        (b"Authorization: bearer " + TOKEN.encode(), True),
    ],
)
def test_what_comes_without_the_token_is_not_kept(guarded, field: bytes, kept: bool):
    async def ask() -> None:
        connection, client = await connected(guarded)
        asked = request_of(field, body=b" " * 50_000 + BODY)
        await send(connection, client, asked[:40_000])
        assert (gate_of(guarded).held > 30_000) == kept
        await send(connection, client, asked[40_000:])
        assert statuses(client.came) == [200 if kept else 401]
        assert gate_of(guarded).held == 0
        connection.connection_lost(None)

    asyncio.run(ask())


def test_all_bodies_together_are_bounded_and_what_leaves_makes_room(monkeypatch):
    monkeypatch.setattr(client_connection, "MOST_BODIES", 100_000)
    config = configuration()

    async def ask() -> None:
        asked = request_of(body=b" " * 40_000 + BODY)
        peers = [await connected(config) for _ in range(3)]
        for connection, client in peers:
            await send(connection, client, asked[:-1])
        assert gate_of(config).held <= 100_000
        for connection, client in peers:
            await send(connection, client, asked[-1:])
        assert [statuses(client.came) for _, client in peers] == [[200], [200], [503]]
        assert gate_of(config).held == 0
        connection, client = await connected(config)
        await send(connection, client, asked[:-1])
        connection.connection_lost(None)  # in the middle
        await settle()
        assert gate_of(config).held == 0

    asyncio.run(ask())


def filled(cell: str, frame: str = '{{"keys": [{}]}}') -> bytes:
    return frame.format(",".join([cell] * ((1 << 20) // (len(cell) + 1) - 10))).encode()


WRONG = ["1.5", "true", "null", "{}", "[[]]", "[1.5]", '{"a":1}', '"a"', "1", "[]"]
OUTCOMES = '{{"outcomes": [{}]}}'


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *((b"/v1/predict", filled(cell)) for cell in WRONG),
        *((b"/v1/predict", filled(cell, '{{"keys": [[{}]]}}')) for cell in WRONG),
        *(
            (b"/v1/outcomes", filled(each, OUTCOMES))
            for each in ("1", "{}", '{"key":1.5}', '{"key":"1","outcome":"a"}')
        ),
    ],
)
def test_a_megabyte_of_wrong_keys_is_read_up_to_the_first_fault(path: bytes, body: bytes, monkeypatch):
    faults: list[int] = []
    answer = service._on_invalid

    async def noted(request: Any, error: Any) -> Any:
        faults.append(len(error.errors()))
        return await answer(request, error)

    monkeypatch.setattr(service, "_on_invalid", noted)
    submitted.clear()
    config = configuration()
    asked = request_of(start=b"POST %b HTTP/1.1" % path, body=body)
    came, _ = exchanged(*(asked[at : at + 65536] for at in range(0, len(asked), 65536)), config=config)
    assert statuses(came)[0] in (400, 413, 422)
    assert len(came) < 1000
    assert sum(faults) <= 4  # a key is no text, no number, and no list of either
    assert not submitted


@pytest.mark.parametrize(("sent", "key"), [(" 1\t", "1"), ("\u00a01\u2003", "1"), ("e\u0301", "é"), (" 7 ", "7")])
def test_keys_are_trimmed_and_normalized_as_in_files(sent: str, key: str):
    submitted.clear()
    came, _ = exchanged(request_of(body=json.dumps({"keys": [sent, key]}).encode()))
    assert submitted == [[(key,), (key,)]]
    assert [each["key"] for each in json.loads(came.partition(b"\r\n\r\n")[2])["scores"]] == [key, key]
