"""Connections of clients: one request at a time, and one that says nothing or takes no answer is closed.

uvicorn parses all that has come, and reads on while requests wait. So a client that sends without end, and never takes
an answer, would fill the memory. Here bytes wait unparsed, at most one read of them, until the request before is
answered; and an answer waits until the one before is taken. The gate then refuses, before the framework and nowhere
else, what misleads, is too large or comes too slowly.
"""

import asyncio
import hmac
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple, cast

import httptools
from fastapi.security.utils import get_authorization_scheme_param
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vfl.base.errors import plain
from vfl.config.network import is_this_machine

REQUEST_LIMIT_S = 10.0
"""Longest time of TLS's handshakes and farewells, of a request's head, of its body, and until its answer is taken."""
MOST_HEAD = 1 << 16
"""Bytes of a request's head; also of what frames the chunks of its body, trailers included."""
MOST_PIECE = 1 << 14
"""Bytes of chunks that are parsed at once."""
END_COST = 16
"""Bytes of frame for which an end counts: a body full of what looks like one would take a million pieces."""
MOST_BODY = 1 << 20
"""Bytes of a request."""
MOST_BODIES = 64 << 20
"""Bytes of all requests that are read or answered at a time."""
MOST_DROPPED = 8 << 20
"""Bytes of a refused request that are read, so that its client gets to read the answer."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
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


class _Refusal(NamedTuple):
    status: int
    detail: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


def _objection(scope: Scope, *, local: bool) -> _Refusal | None:
    """Return why a request is refused for its head. ``local``: whoever reaches the service may ask, so no page of a
    browser may reach it under another name (DNS rebinding)."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    fields, names, version = dict(headers), [name for name, _value in headers], scope["http_version"]
    host = fields.get(b"host", b"localhost").decode("latin-1")
    if version not in ("1.0", "1.1"):
        return _Refusal(400, f"HTTP {version} is not spoken here; send HTTP/1.1")
    if names.count(b"host") != 1 and (b"host" in names or version == "1.1"):
        return _Refusal(400, "Host: send one")
    if names.count(b"authorization") > 1:
        return _Refusal(400, "Authorization: came twice; send one")
    if local and not _is_this_machine(host):
        why = "is not this machine; ask 127.0.0.1 or localhost, or set serving.token"
        return _Refusal(400, f"Host: {plain(host, 60)} {why}")
    if fields.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
        return _Refusal(501, "Transfer-Encoding: send chunked or none")
    return None


def _objection_to_body(headers: list[tuple[bytes, bytes]]) -> _Refusal | None:
    if any(name == b"content-encoding" and value.lower() not in (b"", b"identity") for name, value in headers):
        return _Refusal(415, "Content-Encoding: send the body as it is", ((b"accept-encoding", b"identity"),))
    return None


_HOST = re.compile(r"(localhost|[0-9.]+|\[[0-9a-f:.]+\])(?::[0-9]*)?", re.IGNORECASE | re.ASCII)


@lru_cache(64)
def _is_this_machine(host: str) -> bool:
    match = _HOST.fullmatch(host)
    return match is not None and is_this_machine(match[1].strip("[]"))


class RequestGate:
    """Reads requests, and refuses those that are too large, come too slowly or with a head that misleads.

    Only what may be answered is kept while it comes. HEAD is answered as GET; the connection leaves out the body.
    ``note`` is called with the status of every answer.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        note: Callable[[int], None],
        *,
        token: bytes | None,
        local: bool,
    ) -> None:
        self.app, self.note, self.token, self.local = app, note, token, local
        self.held = 0
        """Bytes of all bodies that are kept."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body, begun = bytearray(), False

        async def counted(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self.note(message["status"])
            await send(message)

        try:
            await self._pass(scope, receive, counted, body)
        except Exception:
            if not begun:
                self.note(500)  # the framework answers it further out
            raise
        finally:
            self.held -= len(body)

    async def _pass(self, scope: Scope, receive: Receive, send: Send, body: bytearray) -> None:
        authorized = self.token is None or _has_token(scope["headers"], self.token)
        if (refusal := _objection(scope, local=self.local)) is not None:
            await _refuse(send, refusal)
            return
        refusal = _objection_to_body(scope["headers"])
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                refusal = await self._read(receive, body, refusal, keep=authorized)
        except TimeoutError:
            refusal = _Refusal(408, f"the request did not come within {REQUEST_LIMIT_S:g} s")
        except ConnectionError:
            return
        if refusal is not None:
            await _refuse(send, refusal)
            return
        given = False

        async def whole() -> MutableMapping[str, Any]:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        scope.setdefault("state", {})["authorized"] = authorized
        await self.app({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, whole, send)

    async def _read(
        self, receive: Receive, body: bytearray, refusal: _Refusal | None, *, keep: bool
    ) -> _Refusal | None:
        """Read a body to its end, and keep it unless it is refused; return why. Raises ConnectionError."""
        size, more = 0, True
        while more and size <= MOST_DROPPED:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionAbortedError
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size > MOST_BODY:
                refusal = refusal or _Refusal(413, f"a request has at most {MOST_BODY} bytes")
            elif keep and self.held + len(part) > MOST_BODIES:
                refusal = refusal or _Refusal(503, "too many requests are being read", ((b"retry-after", b"1"),))
            if refusal is not None:
                self.held -= len(body)
                body.clear()
            elif keep:
                self.held += len(part)
                body += part
        return refusal


def _has_token(headers: list[tuple[bytes, bytes]], token: bytes) -> bool:
    scheme, sent = get_authorization_scheme_param(dict(headers).get(b"authorization", b"").decode("latin-1"))
    return scheme.lower() == "bearer" and hmac.compare_digest(sent.encode(), token)


async def _refuse(send: Send, refusal: _Refusal) -> None:
    status, detail, more = refusal
    content = problem(status, detail)
    fixed = (b"content-length", b"%d" % len(content)), (b"content-type", b"application/problem+json")
    headers = [*fixed, (b"connection", b"close"), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
