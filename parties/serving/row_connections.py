"""Connections to where an owner's rows are: an HTTP service, or a database.

HTTP: GET with the key in the address, answered by a JSON object. Only the host of the setting is asked, without a
proxy; no redirect is followed. A database gets a query with parameters, never a text made of a key.
"""
# pyright: reportMissingTypeStubs=false

import json
import math
import re
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import islice, product
from typing import Any, cast
from urllib.parse import quote, urlsplit

from vfl.base.errors import one_line
from vfl.config import ConfigError
from vfl.config.tables import SQLITE, ServedRowsConfig, TableConfig
from vfl.data.tables.arrow import pa
from vfl.data.tables.cells import TableError
from vfl.data.tables.database import connected, driver_of, reporting, sqlite_file
from vfl.data.tables.frames import plain_type
from vfl.parties.serving.fetched_rows import Cells, Connection, RowRefused
from vfl.runs.atomic import FIX_MODE, is_open_to_others
from vfl.runs.run_folder import read_secret

LARGEST = 1 << 20
"""Most bytes of an answer."""
MARKS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|(\?)", re.DOTALL)
"""Parts of SQL that may hold a ?, and a ? that stands for a value, in the group."""
WHOLE = re.compile(r"-?[1-9]\d{0,17}|0", re.ASCII)
"""Whole numbers of int64 as keys spell them."""
MOST_ROWS = 100
"""Most rows of an answer: a database may take other keys for the same, but not many."""
MOST_KINDS = 16
"""Most combinations of types that are tried for a key of several columns."""


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


def query_connections(where: str, table: TableConfig, columns: int, limit_s: float) -> Callable[[], Connection]:
    """Return a function that connects to the database of an owner's rows and raises TableError if it cannot.

    ``columns``: of the key; ``limit_s``: seconds that the database has for a row. Raises ConfigError for a query with
    other parameters, TableError for a driver that is not installed.
    """
    assert table.serve is not None
    query, database = table.serve.query, table.serving_database
    assert query is not None
    assert database is not None
    marks = sum(bool(mark[1]) for mark in MARKS.finditer(query))
    if marks != columns:
        raise ConfigError(f"{where}.query: has {marks} ?; write one for each column of the key, {columns}")
    driver_of(where, database)
    if not database.startswith(SQLITE):
        query = _numbered(query)
        database = _with_limits(database, limit_s)
    return lambda: QueryConnection(f"{where}.query", database, query, columns, limit_s)


def _numbered(query: str) -> str:
    """Return a query with PostgreSQL's names of parameters: $1, $2."""
    numbers = iter(range(1, 1 + len(query)))
    return MARKS.sub(lambda mark: f"${next(numbers)}" if mark[1] else mark[0], query)


def _with_limits(database: str, limit_s: float) -> str:
    """Return PostgreSQL's URI so that a server that is silent is given up, unless the URI sets this itself."""
    wait_s = max(2, math.ceil(limit_s))  # libpq knows none below 2
    limits = {"connect_timeout": wait_s, "tcp_user_timeout": 1000 * wait_s, "keepalives_idle": wait_s}
    limits |= {"keepalives_interval": wait_s, "keepalives_count": 2}
    more = [f"{name}={limit}" for name, limit in limits.items() if f"{name}=" not in database]
    return "&".join([database if "?" in database else f"{database}?", *more]).replace("?&", "?")


@dataclass(eq=False)
class QueryConnection:
    """A connection to a database with a prepared query."""

    where: str
    database: str
    query: str
    columns: int
    limit_s: float

    def __post_init__(self) -> None:
        self._open, self._file = ExitStack(), sqlite_file(self.database)
        try:
            self._seen = self._which_file()
            connection = self._open.enter_context(connected(self.where, self.database, autocommit=True))
            with reporting(self.where, self.database):
                self._cursor: Any = self._open.enter_context(connection.cursor())
                if self._file is None:
                    # The server ends what takes longer, as nobody waits for it; a row's query writes nothing.
                    self._cursor.execute(f"SET statement_timeout = {max(1, int(1000 * self.limit_s))}")
                    self._cursor.execute("SET default_transaction_read_only = on")
            self._kinds = self._find_kinds()
        except BaseException:
            self.close()
            raise

    def fetch(self, key: Cells, until_s: float) -> Any:
        """Return the rows of a key as an Arrow table, in types as a file would have them. Raises TableError."""
        values: list[Any] = []
        for cell, kind in zip(key, self._kinds, strict=True):
            if kind == pa.int64() and not WHOLE.fullmatch(cell):
                return pa.table({})  # no number is spelt so
            values.append(int(cell) if kind == pa.int64() else cell)
        with reporting(self.where, self.database):
            if self._which_file() != self._seen:
                raise TableError(f"{self.where}: its database was replaced")
            rows = self._ask(values, self._kinds)
            if rows.num_rows == 0 and self._file is not None and any(map(WHOLE.fullmatch, key)):
                # In a column without a type, as of a view, SQLite takes no text for a number.
                numbers = [int(cell) if WHOLE.fullmatch(cell) else cell for cell in key]
                rows = self._ask(numbers, [pa.int64() if type(each) is int else pa.string() for each in numbers])
            return rows

    def abort(self) -> None:
        """Do nothing: to end a query takes a connection of its own, which may hang as well."""

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):  # of a lost one a driver says so once more
            self._open.close()

    def _which_file(self) -> tuple[int, int]:
        """Return which file an SQLite database is now: a connection stays with one that another has replaced."""
        state = None if self._file is None or not self._file.exists() else self._file.stat()
        return (0, 0) if state is None else (state.st_dev, state.st_ino)

    def _ask(self, values: Sequence[Any], kinds: Sequence[Any]) -> Any:
        cells = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
        self._cursor.execute(self.query, pa.record_batch(cells, names=[f"key_{place}" for place in range(len(cells))]))
        with self._cursor.fetch_record_batch() as reader:
            tables, rows = list[Any](), 0
            for batch in reader:
                tables.append(pa.table([plain_type(cells) for cells in batch.columns], names=batch.schema.names))
                rows += batch.num_rows
                if rows > MOST_ROWS:
                    raise TableError(f"{self.where}: gives more than {MOST_ROWS} rows for one key")
        return pa.concat_tables(tables) if tables else pa.table({})

    def _find_kinds(self) -> Sequence[Any]:
        """Return the types by which the database compares a key's cells, found with a key that is missing."""
        wrong: TableError | None = None
        for kinds in islice(product((pa.string(), pa.int64()), repeat=self.columns), MOST_KINDS):
            try:
                with reporting(self.where, self.database):
                    self._ask([None] * self.columns, kinds)
            except TableError as error:  # PostgreSQL compares no text with a number
                wrong = wrong or error
            else:
                return kinds
        assert wrong is not None
        raise wrong
