"""An owner's rows to be scored from an HTTP service: GET with the key in the address, answered by a JSON object.

Only the host of the setting is asked, without a proxy; no redirect is followed.
"""

import json
import math
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any, cast
from urllib.parse import quote, urlsplit

from vfl.base.errors import one_line
from vfl.config import ConfigError
from vfl.config.tables import ServedRowsConfig
from vfl.data.tables.arrow import pa
from vfl.parties.serving.fetched_rows import Cells, Connection, RowRefused
from vfl.runs.run_folder import FIX_MODE, is_open_to_others, read_secret

LARGEST = 1 << 20
"""Most bytes of an answer."""


def http_connections(where: str, served: ServedRowsConfig, key: Sequence[str]) -> Callable[[], Connection]:
    """Return a function that makes a connection to the service of an owner's rows; nothing is asked before a key is.

    ``key``: columns of the key. Raises ConfigError for a token, a key or a certificate that cannot be used.
    """
    assert served.url is not None
    address, token = urlsplit(served.url), read_secret(served.token)
    headers = {"Accept": "application/json"}
    if token is not None:
        if not token.isascii() or not token.decode("ascii").isprintable():
            raise ConfigError(f"{where}.token: {served.token} holds other than printable ASCII in one line")
        headers["Authorization"] = f"Bearer {token.decode('ascii')}"
    context = _context(where, served) if address.scheme == "https" else None
    path = address.path + (f"?{address.query}" if address.query else "")
    return lambda: ServiceConnection(
        f"{where}.url", _Direct(address.hostname or "", address.port, context), path, headers, tuple(key)
    )


def _context(where: str, served: ServedRowsConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=served.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{where}.ca: {served.ca} cannot be used ({one_line(error)})") from None
    if served.certificate is not None and served.key is not None:
        try:
            open_to_others = is_open_to_others(served.key.stat())
            # Without a passphrase OpenSSL would ask at the terminal for that of an encrypted key.
            context.load_cert_chain(served.certificate, served.key, password="")
        except (OSError, ssl.SSLError) as error:
            what = f"{served.certificate} and {served.key} cannot be used"
            raise ConfigError(f"{where}.certificate: {what} ({one_line(error)})") from None
        if open_to_others:
            raise ConfigError(f"{where}.key: {served.key} is open to other users; {FIX_MODE}")
    return context


class _Direct(HTTPConnection):
    """A connection to a host, by TLS where there is a context; a socket is known before its handshake ends."""

    def __init__(self, host: str, port: int | None, context: ssl.SSLContext | None) -> None:
        super().__init__(host, port or (80 if context is None else 443))
        self._context = context

    def connect(self) -> None:
        """Connect within ``timeout`` seconds for each step; ``cut`` ends all of them."""
        self.sock = socket.create_connection((self.host, self.port), self.timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            wrapped = self._context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
            self.sock = wrapped
            wrapped.do_handshake()

    def limit(self, seconds: float) -> None:
        """Let each step take so long."""
        self.timeout = seconds
        if cast(Any, self.sock) is not None:  # the declared type says that there always is one
            self.sock.settimeout(seconds)

    def cut(self) -> None:
        """End what another thread waits for."""
        if (held := cast(Any, self.sock)) is not None:
            with suppress(OSError):
                socket.socket.shutdown(held, socket.SHUT_RDWR)  # not TLS's own, which would read on in the clear


@dataclass(eq=False)
class ServiceConnection:
    """A connection to the service, kept open from key to key."""

    where: str
    http: _Direct
    path: str
    headers: dict[str, str] = field(repr=False)
    """With the token: shown nowhere."""
    key: tuple[str, ...]

    def fetch(self, key: Cells, until_s: float) -> Any:
        """Return the row of a key as an Arrow table, an empty one where the service has none (status 404).

        Raises RowRefused for another answer, OSError and HTTPException for a connection that is lost.
        """
        if "." in key or ".." in key:  # a path with one is another path
            raise RowRefused(f"{self.where}: no address can hold this key")
        self.http.limit(max(0.001, until_s - time.monotonic()))
        path = self.path.replace("{key}", "/".join(quote(cell, safe="") for cell in key))
        self.http.request("GET", path, headers=self.headers)
        response = self.http.getresponse()
        body = response.read(LARGEST + 1)
        if len(body) > LARGEST:
            raise OSError(f"{self.where}: answers with more than {LARGEST >> 20} MiB")
        if response.length:
            raise OSError(f"{self.where}: broke off an answer")
        if response.status == 404:
            return pa.table({})
        if response.status != 200:
            raise RowRefused(f"{self.where}: answers with status {response.status}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise RowRefused(f"{self.where}: answers with an encoding that was not asked for")
        return self._table(key, body)

    def abort(self) -> None:
        """End what ``fetch`` waits for."""
        self.http.cut()

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self.http.close()

    def _table(self, key: Cells, body: bytes) -> Any:
        """Return the row in an answer; one without the key's columns is taken for that of the key."""
        try:
            found = json.loads(body, parse_constant=_refuse, object_pairs_hook=_once, parse_float=_finite)
            if not isinstance(found, dict):
                raise ValueError("is no object")
            row = dict(zip(self.key, key, strict=True)) | cast(dict[str, Any], found)
            # Of an object in the row nothing is read; a column that is used is missed then.
            cells = {name: _cell(value) for name, value in row.items() if not isinstance(value, dict | list)}
            return pa.table({name: pa.array([value]) for name, value in cells.items()})
        except (ValueError, RecursionError, OverflowError, pa.ArrowException) as error:
            raise RowRefused(f"{self.where}: answers with no row in JSON ({one_line(error)[:100]})") from None


def _cell(value: Any) -> Any:
    """Return a whole number beyond int64 by its digits."""
    return str(value) if type(value) is int and not -(2**63) <= value < 2**63 else value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is too large")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("names a column twice")
    return found
