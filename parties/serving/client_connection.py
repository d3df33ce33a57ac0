"""Connections of clients: one request at a time, and one that says nothing or takes no answer is closed.

uvicorn parses all that has come, and reads on while requests wait. So a client that sends without end, and never takes
an answer, would fill the memory. Here bytes wait unparsed, at most one read of them, until the request before is
answered; and an answer waits until the one before is taken.
"""

import asyncio
import json
import re
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vfl.base.errors import plain

REQUEST_LIMIT_S = 10.0
"""Longest time of TLS's handshakes and farewells, of a request's head, of its body, and until its answer is taken."""
MOST_HEAD = 1 << 16
"""Bytes of a request's head; also of what frames the chunks of its body, trailers included."""
MOST_PIECE = 1 << 14
"""Bytes of chunks that are parsed at once."""
END_COST = 16
"""Bytes of frame for which an end counts: a body full of what looks like one would take a million pieces."""
_HEAD_END = re.compile(rb"\n\r?\n")
_CHUNKS_END = re.compile(rb"\r\n\r\n|\r(?:\n\r?)?\Z")
"""The end of a body in chunks, wherever it may be, or the beginning of one."""
_UPGRADE = re.compile(rb"(?i)(?<=\n)upgrade(?=:)")


class _Flow(FlowControl):
    """Leaves it to the connection whether to read."""

    def __init__(self, transport: asyncio.Transport, connection: "ClientConnection") -> None:
        super().__init__(transport)
        self._connection = connection

    def pause_reading(self) -> None:
        """Leave it to the connection, which looks after every piece."""

    def resume_reading(self) -> None:
        """Let the connection parse what waits."""
        self._connection.parse_waiting()


class ClientConnection(HttpToolsProtocol):
    """A connection that parses a request when the one before is answered.

    It is closed if the head of a request, the first or a later one, takes `REQUEST_LIMIT_S`, or its answer is not taken
    for as long. Otherwise clients that say or read nothing would keep all others out.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # as uvicorn has it
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        self._waiting = bytearray()
        """Bytes that came and are not parsed yet."""
        self._body_left: int | None = None
        """Bytes of the body that are still to come, if its length was announced."""
        self._frame_left = MOST_HEAD
        """Bytes of chunks' frames that may still come."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        # Any byte that the kernel does not take pauses the answers. TLS's buffer would take 0 for "always full".
        transport.set_write_buffer_limits(high=1 if self.scheme == "https" else 0)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Parse what is due."""
        self._unset_keepalive_if_required()
        self._waiting += data
        self.parse_waiting()

    def parse_waiting(self) -> None:
        """Parse what waits until a request is complete; read on only where more is needed."""
        while piece := self._next_piece():
            assert self.parser is not None, "it is there while the connection is open"
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserError as error:
                self._refuse(400, _reason(error))
            if self._frame_left < 0:
                self._refuse(413, f"more than {MOST_HEAD} bytes frame the body's chunks")
        self._watch()
        if self._awaits_head() or self._awaits_body():
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head; those after the body are dropped."""
        if self._awaits_head():
            super().on_header(name, value)
            if name.lower() == b"content-length":
                self._body_left = int(value)

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._body_left, self._frame_left = None, MOST_HEAD

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body; it is no frame."""
        super().on_body(body)
        self._frame_left += len(body)

    def on_response_complete(self) -> None:
        """Go on with the next request, if it is here."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            if not self._waiting:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
            self.parse_waiting()

    def pause_writing(self) -> None:
        """Wait until the client takes what was sent, but not for ever."""
        super().pause_writing()
        self._answer_timer = self.loop.call_later(REQUEST_LIMIT_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Send on."""
        super().resume_writing()
        self._answer_timer = _cancel(self._answer_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._waiting.clear()
        self._head_timer, self._answer_timer = _cancel(self._head_timer), _cancel(self._answer_timer)
        super().connection_lost(exc)

    def _awaits_head(self) -> bool:
        cycle = cast(Any, self.cycle)  # None before the first request
        return cycle is None or cycle.response_complete

    def _awaits_body(self) -> bool:
        return not self._awaits_head() and self.cycle.more_body and len(self.cycle.body) <= HIGH_WATER_LIMIT

    def _next_piece(self) -> bytes:
        """Take the bytes that may be parsed now: none beyond the end of a head or of a body."""
        if not self._waiting or self.transport.is_closing():
            return b""
        if self._awaits_head():
            return self._head()
        if not self._awaits_body():
            return b""
        if self._body_left is not None:
            piece = self._take(self._body_left)
            self._body_left -= len(piece)
            return piece
        size = MOST_PIECE
        if end := _CHUNKS_END.search(self._waiting, 0, size):
            whole = len(end[0]) == 4
            size = end.end() if whole else end.start()
            self._frame_left -= END_COST if whole else 0
        piece = self._take(size)
        self._frame_left -= len(piece)
        return piece

    def _head(self) -> bytes:
        """Take a complete head. What cannot begin one is taken at once, for the parser to refuse."""
        end = _HEAD_END.search(self._waiting)
        size = len(self._waiting) if end is None else end.end()
        if size > MOST_HEAD:
            self._refuse(431, f"the head of a request has at most {MOST_HEAD} bytes")
            return b""
        if end is None and (self._waiting[:1].isalpha() or self._waiting[:1].isspace()):
            return b""
        # An offer to speak HTTP/2 may be ignored; the parser would stop before the body.
        return _UPGRADE.sub(b"x-upgrade", self._take(size))

    def _take(self, size: int) -> bytes:
        piece = bytes(self._waiting[:size])
        del self._waiting[:size]
        return piece

    def _refuse(self, status: int, detail: str) -> None:
        """Refuse what the framework does not get to see."""
        if not self.transport.is_closing():
            if not self._awaits_head():  # it gets this answer and no other
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            content = problem(status, detail)
            headers = [
                *self.server_state.default_headers,
                (b"content-type", b"application/problem+json"),
                (b"content-length", b"%d" % len(content)),
                (b"connection", b"close"),
            ]
            head = b"".join(b"%b: %b\r\n" % each for each in headers)
            phrase = HTTPStatus(status).phrase.encode()
            self.transport.write(b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, phrase, head, content))
            self.transport.close()

    def _watch(self) -> None:
        """Limit the time of a head; while none has begun after an answer, uvicorn limits the idle time."""
        if not self._awaits_head() or self.timeout_keep_alive_task is not None:
            self._head_timer = _cancel(self._head_timer)
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(REQUEST_LIMIT_S, self.transport.close)


def problem(status: int, detail: str, title: str = "Refused") -> bytes:
    """Return problem details of RFC 9457 as JSON."""
    return json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail}).encode()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _reason(error: httptools.HttpParserError) -> str:
    reason = str(error)
    if "Content-Length" in reason and "Transfer-Encoding" in reason:
        return "Content-Length: goes without Transfer-Encoding"  # RFC 9112, 6.1: who reads the other one is misled
    return f"the request is no HTTP/1.1: {plain(reason, 100)}"


class PunctualLoop(asyncio.SelectorEventLoop):
    """An event loop that limits the time of TLS's handshakes and closings, for which uvicorn has no setting."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        """Listen as any loop does, with these limits."""
        limit_s = None if options.get("ssl") is None else REQUEST_LIMIT_S
        limits = {"ssl_handshake_timeout": limit_s, "ssl_shutdown_timeout": limit_s}
        return await super().create_server(*args, **limits, **options)
