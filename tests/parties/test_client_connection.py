"""A request for scores that comes whole is read without h11, and answered as it would be with it."""

import asyncio
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from vfl.config.serving import ServingConfig
from vfl.core.tasks import Classification
from vfl.parties.serving import http as service
from vfl.parties.serving.client_connection import ClientConnection
from vfl.parties.serving.request_queue import QueueFull, Score, Scored

BODY = b'{"keys": ["1"]}'
HOST, LENGTH = b"Host: localhost", b"Content-Length: %d" % len(BODY)
PLAIN = [HOST, b"Content-Type: application/json", LENGTH]
START = b"POST /v1/predict HTTP/1.1"


submitted: list[list[tuple[str, ...]]] = []


async def submit(keys: list[tuple[str, ...]]) -> Scored:
    submitted.append(keys)
    if ("hangs",) in keys:
        await asyncio.Event().wait()
    if ("full",) in keys:
        raise QueueFull("9 keys wait, serving.queue is 9")
    if ("fails",) in keys:
        raise RuntimeError("the scorer failed")
    return Scored("v", tuple(Score(key, (0.25, 0.75), {"bank": "row"}) for key in keys))


def stand_in() -> Any:
    version = SimpleNamespace(digest="v", columns=("k",), drift=None, task=Classification(2, names=("no", "yes")))
    return SimpleNamespace(settings=ServingConfig(), submit=submit, version=version, outcomes=None)


class Client(asyncio.Transport):
    """A client's end: what came, and whether the service has hung up."""

    def __init__(self) -> None:
        super().__init__()
        self.came, self.closed, self.paused = b"", False, False

    def write(self, data: Any) -> None:
        self.came += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


@cache
def configuration() -> uvicorn.Config:
    config = uvicorn.Config(service.make_app(stand_in()), lifespan="off", log_config=None)
    config.load()
    return config


async def connected() -> tuple[Any, Client]:
    connection, client = ClientConnection(configuration(), ServerState(), {}), Client()
    connection.connection_made(client)
    return connection, client


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def exchanged(*pieces: bytes) -> tuple[bytes, bool, bool]:
    """What the service sends, whether it hangs up, and whether h11 was passed by."""

    async def exchange() -> tuple[bytes, bool, bool]:
        connection, client = await connected()
        for piece in pieces:
            if not client.closed:
                connection.data_received(piece)
        await settle()
        found = client.came, client.closed, connection.cycle is None and client.came.startswith(b"HTTP/1.1 200")
        connection.connection_lost(None)
        return found

    return asyncio.run(exchange())


def request_of(lines: list[bytes], body: bytes = BODY, start: bytes = START) -> bytes:
    return b"\r\n".join([start, *lines, b"", b""]) + body


@pytest.mark.parametrize(
    ("more", "quick"),
    [
        ([], True),
        ([b"User-Agent: a b", b"Accept-Encoding: gzip", b"connection: Keep-Alive", b"x-real-ip: 1.2.3.4"], True),
        ([b"Connection: close"], False),
        ([b"Connection: keep-alive, close"], False),
        ([b"Transfer-Encoding: chunked"], False),
        ([b"Expect: 100-continue"], False),
        ([b"Upgrade: h2c"], False),
        ([LENGTH], False),
        ([HOST], False),
        ([b"Content-Length : 3"], False),
        ([b"X: a", b" folded"], False),
        ([b"X: a\x00b"], False),
        ([b"X: \xe9"], False),
        ([b"X:"], False),
        ([b"X Y: a"], False),
    ],
    ids=str,
)
def test_a_request_that_comes_whole_is_answered_as_one_in_pieces(more, quick):
    for body in (BODY, BODY + b" ", b"{", b'{"keys": ["full"]}', b'{"keys": ["fails"]}'):
        asked = request_of([HOST, PLAIN[1], b"Content-Length: %d" % len(body), *more], body)
        at_once, in_pieces = exchanged(asked), exchanged(asked[:9], asked[9:])
        assert at_once[:2] == in_pieces[:2]
        assert at_once[2] == (quick and body in (BODY, BODY + b" "))


@pytest.mark.parametrize(
    "asked",
    [
        request_of(PLAIN) * 2,
        request_of(PLAIN)[:-1],
        request_of(PLAIN) + b"P",
        request_of(PLAIN[1:]),
        request_of(PLAIN[:2]),
        request_of(PLAIN, start=b"POST /v1/predict HTTP/1.0"),
        request_of(PLAIN, start=b"POST /v1/predict?a HTTP/1.1"),
        request_of(PLAIN).replace(b"\r\n", b"\n"),
        request_of([HOST, PLAIN[1], b"Content-Length: +15"]),
        request_of([HOST, PLAIN[1], b"Content-Length: 0" + LENGTH[-2:]]),
    ],
)
def test_another_beginning_or_end_is_read_as_h11_reads_it(asked: bytes):
    assert exchanged(asked)[:2] == exchanged(asked[:9], asked[9:])[:2]


@pytest.mark.parametrize(("key", "status"), [(b"1", b" 200 "), (b"full", b" 429 "), (b"fails", b" 500 ")])
def test_owners_are_asked_once_whatever_comes_of_it(key: bytes, status: bytes):
    body = b'{"keys": ["%b"]}' % key
    asked = request_of([HOST, PLAIN[1], b"Content-Length: %d" % len(body)], body)
    for pieces in ((asked,), (asked[:9], asked[9:])):
        submitted.clear()
        assert status in exchanged(*pieces)[0].partition(b"\r\n")[0]
        assert len(submitted) == 1


def test_a_request_that_is_cancelled_at_the_end_is_told_so_and_its_connection_closed():
    async def end() -> Client:
        connection, client = await connected()
        body = b'{"keys": ["hangs"]}'
        connection.data_received(request_of([HOST, PLAIN[1], b"Content-Length: %d" % len(body)], body))
        await settle()
        connection.shutdown()
        assert not client.closed
        for task in connection.tasks:  # as uvicorn does once it has waited long enough
            task.cancel()
        await settle()
        return client

    client = asyncio.run(end())
    assert client.closed
    assert client.came.startswith(b"HTTP/1.1 500 ")


fields = st.sampled_from(
    [*PLAIN, b"host: LOCALHOST", b"Host: a.example", b"Connection: close", b"TE: trailers", b"X: y"]
)


@given(st.lists(fields, max_size=6), st.integers(-2, 2), st.binary(max_size=3), st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_any_head_is_read_as_h11_reads_it(lines, more, junk, place):
    asked = request_of([*lines, b"Content-Length: %d" % (len(BODY) + more)] if more else lines)
    asked = asked[:place] + junk + asked[place:]
    assert exchanged(asked)[:2] == exchanged(asked[:9], asked[9:])[:2]


def test_what_comes_before_an_answer_waits_for_its_turn_and_the_end_of_the_service_for_the_answer():
    answer, _, _ = exchanged(request_of(PLAIN))

    async def ask() -> None:
        connection, client = await connected()
        for _ in range(3):
            connection.data_received(request_of(PLAIN))
        assert client.paused
        await settle()
        assert client.came == answer * 3
        assert not client.paused
        connection.data_received(request_of(PLAIN))
        connection.shutdown()
        assert not client.closed
        await settle()
        assert client.closed
        assert client.came == answer * 4
        connection.connection_lost(None)

    asyncio.run(ask())
