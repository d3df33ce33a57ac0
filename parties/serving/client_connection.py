"""Connections of clients: one that says nothing is closed, one that asks for scores in the plainest way is answered.

`read_plain` reads a strict part of what h11 reads, and as h11 does. Any other request is h11's to read or to refuse.
"""

import asyncio
import re
from typing import Any, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_LIMIT_S = 10.0
"""Longest time of TLS's handshakes, of a request's head, and of its body."""
FAILED = "failed"
"""Name of what was raised for a request, in its state."""
_ENDED = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_HEAD = re.compile(rb"POST /v1/predict HTTP/1\.1\r\n((?:[A-Za-z0-9-]+: [!-~](?:[ -~]*[!-~])?\r\n)+)\r\n")
_MISLEADING = {b"transfer-encoding", b"expect", b"upgrade"}
"""Names of fields that say how to read on, or ask for more than an answer."""


class PlainRequest(NamedTuple):
    """A whole request for scores."""

    scope: dict[str, Any]
    """Method, path and headers, as the framework has them; each header came once."""
    body: bytes


def read_plain(data: bytes) -> PlainRequest | None:
    """Return the request that the bytes are: whole, alone and without anything that h11 might read otherwise."""
    if (head := _HEAD.match(data)) is None:
        return None
    lines = [line.split(b": ", 1) for line in head[1].split(b"\r\n")[:-1]]
    headers = {name.lower(): value for name, value in lines}
    if len(headers) < len(lines) or b"host" not in headers or not _MISLEADING.isdisjoint(headers):
        return None
    if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    length = headers.get(b"content-length", b"")
    if not (length.isdigit() and len(length) < 8 and int(length) == len(data) - head.end()):
        return None
    scope = {"method": "POST", "path": "/v1/predict", "headers": [*headers.items()]}
    return PlainRequest(scope, data[head.end() :])


def headers_of(answer: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of scores."""
    return [(b"content-length", b"%d" % len(answer)), (b"content-type", b"application/json")]


class ClientConnection(H11Protocol):
    """A connection that is closed if the head of a request, the first or a later one, takes `REQUEST_LIMIT_S`.

    Otherwise clients that say nothing would keep all others out, as many as they like. A plain request for scores that
    comes whole is answered from here, without h11, a scope and the framework: they take longer than a small model.
    """

    _closing: asyncio.TimerHandle | None = None
    _scoring = False
    """A plain request is being answered."""
    _late = b""
    """Bytes that came meanwhile."""
    _ending = False
    """The service ends; the connection does once it has its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # as uvicorn has it
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Answer a plain request; pass on all else."""
        if self._scoring:
            self._late += data
            self.flow.pause_reading()
            return
        between = self.conn.their_state is self.conn.our_state is h11.IDLE and not self.conn.trailing_data[0]
        if not between or (request := read_plain(data)) is None:
            self._pass_on(data)
            return
        self._unset_keepalive_if_required()
        self._unwatch()
        self._scoring = True
        task = self.loop.create_task(self._score(data, request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._unwatch()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection, once what was asked is answered."""
        self._ending = True
        if not self._scoring:
            super().shutdown()

    def _pass_on(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    async def _score(self, data: bytes, request: PlainRequest) -> None:
        app: Any = self.config.app  # of `make_app`
        answer, failed = None, dict[str, Exception]()
        try:
            answer = await app.state.quick.answer(*request)
            if self.flow.write_paused:
                await self.flow.drain()
        except Exception as error:
            failed[FAILED] = error  # which the framework tells
        except BaseException:  # the service has ended
            self.transport.write(_ENDED)
            self.transport.close()
            raise
        finally:
            self._scoring = False
        if self.transport.is_closing():
            return
        if answer is None:
            self.app_state |= failed  # of which a request takes a copy
            self._pass_on(data)
            self.app_state.pop(FAILED, None)
        else:
            headers = [*self.server_state.default_headers, *headers_of(answer)]
            head = b"".join(b"%b: %b\r\n" % each for each in headers)
            self.transport.write(b"HTTP/1.1 200 OK\r\n%b\r\n%b" % (head, answer))
            self.on_response_complete()
        if self._ending:
            self.shutdown()
        elif late := self._late:
            self._late = b""
            self.data_received(late)

    def _watch(self) -> None:
        waiting = self.conn.their_state is h11.IDLE
        if waiting and self._closing is None:
            self._closing = self.loop.call_later(REQUEST_LIMIT_S, self.transport.close)
        elif not waiting:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


class PunctualLoop(asyncio.SelectorEventLoop):
    """An event loop whose connections end if TLS's handshakes take `REQUEST_LIMIT_S`, which uvicorn cannot be told."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        """Listen as any loop does, with a limit of handshakes."""
        limit_s = None if options.get("ssl") is None else REQUEST_LIMIT_S
        return await super().create_server(*args, ssl_handshake_timeout=limit_s, **options)
