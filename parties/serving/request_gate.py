"""The gate before the framework: what misleads, is too large or comes too slowly is refused here, and nowhere else."""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any, NamedTuple

from fastapi.security.utils import get_authorization_scheme_param

from vfl.base.errors import plain
from vfl.config.network import is_this_machine
from vfl.parties.serving.client_connection import REQUEST_LIMIT_S, problem

MOST_BODY = 1 << 20
"""Bytes of a request."""
MOST_BODIES = 64 << 20
"""Bytes of all requests that are read or answered at a time."""
MOST_DROPPED = 8 << 20
"""Bytes of a refused request that are read, so that its client gets to read the answer."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


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
