"""An owner's rows to be scored from a database: a query with parameters, never a text made of a key."""
# pyright: reportMissingTypeStubs=false

import math
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from vfl.config import ConfigError
from vfl.config.tables import SQLITE, TableConfig
from vfl.data.tables.arrow import pa
from vfl.data.tables.cells import TableError
from vfl.data.tables.database import connected, driver_of, reporting, sqlite_file
from vfl.data.tables.frames import plain_type
from vfl.parties.serving.fetched_rows import Cells, Connection

MARKS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|(\?)", re.DOTALL)
"""Parts of SQL that may hold a ?, and a ? that stands for a value, in the group."""
WHOLE = re.compile(r"-?[1-9]\d{0,17}|0", re.ASCII)
"""Whole numbers of int64 as keys spell them."""
MOST_ROWS = 100
"""Most rows of an answer: a database may take other keys for the same, but not many."""
MOST_KINDS = 16
"""Most combinations of types that are tried for a key of several columns."""


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
