"""An owner's rows to be scored from where they live: fetched by key, a few at once, within a time limit.

Some threads have a connection each, which stays open. Who hangs keeps its thread and no more: there are never more
threads than connections, and a key that nobody could ask for in time waits for nothing. An error costs the rows that
were asked for; the next ones go over a new connection.
"""

import json
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

from vfl.base.errors import one_line
from vfl.core.finished_party import FinishedParty
from vfl.data.source import prepare_samples
from vfl.data.tables.cells import TableError
from vfl.data.tables.columns import CONTROL
from vfl.data.tables.one_row import OneRow, RowReader
from vfl.messages.keys import key_bytes
from vfl.parties.serving.file_rows import LOOKS_S, FoundRows, ServedDrift

CONNECTIONS = 8
"""Most connections at once."""
MOST_KEPT = 10_000
"""Most rows that are kept."""
SAME_S, MOST_TOLD = 60.0, 10
"""Seconds in which an error is not logged again, and most errors that are logged in them."""
LEAVES_S = 2.0
"""Most seconds for connections to close at the end."""

Cells = tuple[str, ...]
"""The cells of a key."""
K = TypeVar("K")
R = TypeVar("R")


class RowRefused(TableError):  # noqa: N818 - says what happened
    """An answer is of no use; the connection, over which it came, is."""


class Connection(Protocol):
    """A connection to where rows are. One thread uses it; another one may ``abort`` what it waits for."""

    def fetch(self, key: Cells, until_s: float) -> Any:
        """Return an Arrow table with the rows of a key, or others beside them. ``until_s`` is a monotonic time.

        Raises RowRefused for an answer that is of no use, anything else where the connection is of none.
        """
        ...

    def abort(self) -> None:
        """Let ``fetch`` end soon with an error, if it can."""

    def close(self) -> None:
        """Close the connection; raises nothing."""


@dataclass(eq=False)
class _Job:
    key: Cells
    until_s: float
    done: "Future[Any]" = field(default_factory=lambda: Future[Any]())
    connection: Connection | None = None
    """That which works on it."""


class Connections:
    """A bounded number of connections, each with its thread, made when they are needed.

    Args:
        connect: returns a new connection. Raises TableError.
        most: number of connections.
    """

    def __init__(self, connect: Callable[[], Connection], most: int = CONNECTIONS) -> None:
        self._connect, self._most = connect, most
        self._jobs = deque[_Job]()
        self._running = set[_Job]()
        self._changed = threading.Condition()
        self._ended = False
        self._idle = 0
        self._threads: list[threading.Thread] = []

    def fetch_all(self, keys: Sequence[Cells], until_s: float) -> dict[Cells, Any]:
        """Return what was fetched for each key by a time: an Arrow table, or the error that came instead."""
        jobs = [_Job(key, until_s) for key in keys]
        with self._changed:
            self._jobs.extend(jobs)
            for _ in range(min(len(jobs) - self._idle, self._most - len(self._threads))):
                # A daemon: what hangs in a driver must not keep the process.
                self._threads.append(threading.Thread(target=self._work, name="row connection", daemon=True))
                self._threads[-1].start()
            self._changed.notify(len(jobs))
        found: dict[Cells, Any] = {}
        for job in jobs:
            try:
                found[job.key] = job.done.result(max(0.0, until_s - time.monotonic()))
            except TimeoutError:
                found[job.key] = TableError("no answer came in time")
            except Exception as error:  # a driver has errors of its own
                found[job.key] = error
        self._abort(jobs)
        return found

    def close(self) -> None:
        """End the threads, and close connections that do not hang."""
        with self._changed:
            self._ended = True
            running = [*self._running]
            self._changed.notify_all()
        self._abort(running)
        until_s = time.monotonic() + LEAVES_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _abort(self, jobs: Sequence[_Job]) -> None:
        """Drop jobs that no thread has begun, and end what the others wait for."""
        with self._changed:
            waiting = {job for job in jobs if not job.done.done()}
            if waiting:
                self._jobs = deque(job for job in self._jobs if job not in waiting)
            # Under the lock: the connection is this job's as long as it is held.
            for job in waiting & self._running:
                if job.connection is not None:
                    job.connection.abort()

    def _work(self) -> None:
        connection: Connection | None = None
        while (job := self._next()) is not None:
            connection = self._carry_out(job, connection)
        if connection is not None:
            connection.close()

    def _next(self) -> _Job | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._ended or self._jobs)
            self._idle -= 1
            return None if self._ended else self._jobs.popleft()

    def _carry_out(self, job: _Job, held: Connection | None) -> Connection | None:
        """Fetch the rows of a job's key; return the connection if it can be used again."""
        while True:
            connection = held
            try:
                if time.monotonic() >= job.until_s:
                    raise RowRefused("no answer came in time")
                connection = held or self._connect()
                with self._doing(job, connection):
                    rows = connection.fetch(job.key, job.until_s)
            except RowRefused as error:
                job.done.set_exception(error)
                return connection
            except Exception as error:  # a driver has errors of its own
                if connection is not None:
                    connection.close()
                # One that answered before may have been lost since: the key is asked for once more.
                if held is not None and time.monotonic() < job.until_s:
                    held = None
                    continue
                job.done.set_exception(error)
                return None
            job.done.set_result(rows)
            return connection

    @contextmanager
    def _doing(self, job: _Job, connection: Connection) -> Generator[None]:
        with self._changed:
            job.connection = connection
            self._running.add(job)
        try:
            yield
        finally:
            with self._changed:
                self._running.discard(job)


@dataclass(eq=False)
class RecentRows(Generic[K, R]):
    """Rows that are kept for some seconds, at most a number of them; 0 seconds keep none."""

    keep_s: float
    most: int
    _rows: OrderedDict[K, tuple[float, R]] = field(default_factory=lambda: OrderedDict[K, tuple[float, R]]())

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: K) -> R | None:
        """Return the row of a key, if it is kept and not too old."""
        until_s, row = self._rows.get(key, (0.0, None))
        return row if time.monotonic() < until_s else None

    def put(self, key: K, row: R) -> None:
        """Keep a row; the oldest ones go."""
        if self.keep_s:
            self._rows.pop(key, None)  # the oldest stand first
            self._rows[key] = time.monotonic() + self.keep_s, row
            if len(self._rows) > self.most:
                self._rows.popitem(last=False)

    def clear(self) -> None:
        """Keep nothing of before."""
        self._rows.clear()


@dataclass(eq=False)
class FetchedRows:
    """Rows that are fetched by key when they are asked for.

    Args:
        reader: of the owner's rows.
        connect: returns a new connection. Raises TableError.
        limit_s: seconds for all keys that are asked for together.
        cache_s: seconds for which a row is kept; 0 keeps none.
        drift: counts the rows that are scored.
        log: shows a line.
    """

    reader: RowReader
    connect: Callable[[], Connection]
    limit_s: float
    cache_s: float
    drift: ServedDrift
    log: Callable[[str], None]

    def __post_init__(self) -> None:
        self._connections = Connections(self.connect)
        self._kept = RecentRows[bytes, OneRow](self.cache_s, MOST_KEPT)
        self._told: dict[str, float] = {}
        """When each error of the last minute was logged."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="served rows", daemon=True)
        self._thread.start()
        self.log(f"{self.reader.where}: rows to be scored are asked for by key")

    def find(self, party: FinishedParty, keys: Sequence[bytes]) -> FoundRows:
        """Return the rows of keys; those that did not come in time, or are wrong, count as away."""
        cells = {key: read for key in keys if (read := self._cells(key)) is not None}
        rows = {key: row for key in cells if (row := self._kept.get(key)) is not None}
        asked = {key: each for key, each in cells.items() if key not in rows}
        came = self._connections.fetch_all([*asked.values()], time.monotonic() + self.limit_s) if asked else {}
        away = set[bytes]()
        for key, each in asked.items():
            try:
                row = self._read(each, came[each])
            except Exception as error:  # whatever is wrong with a row, the others are served
                away.add(key)
                self._tell(each, one_line(error)[:300])
                continue
            if row is not None:
                rows[key] = row
                self._kept.put(key, row)
        return self._prepared(party, cells, rows, away)

    def is_at_hand(self, party: FinishedParty) -> bool:
        """Return False: rows are waited for."""
        return False

    def close(self) -> None:
        """Close the connections; one that hangs ends with the process."""
        self._ended.set()
        self._connections.close()
        self._thread.join(LEAVES_S)

    def _cells(self, key: bytes) -> Cells | None:
        """Return the cells of a key as it travels; None if no row of a table can have it."""
        try:
            cells = json.loads(key)
            if not isinstance(cells, list) or key_bytes(cast(list[str], cells), None) != key:
                return None
        except (ValueError, TypeError, RecursionError):
            return None
        texts = tuple(cast(list[str], cells))
        wrong = len(texts) != len(self.reader.key) or any(not each or re.search(CONTROL, each) for each in texts)
        return None if wrong else texts

    def _read(self, key: Cells, came: Any) -> OneRow | None:
        if isinstance(came, Exception):
            raise came
        return self.reader.read(key, came)

    def _prepared(
        self, party: FinishedParty, cells: Mapping[bytes, Cells], rows: Mapping[bytes, OneRow], away: set[bytes]
    ) -> FoundRows:
        raw, places = self.reader.join([*rows.values()]), {key: place for place, key in enumerate(rows)}
        if not rows:
            return FoundRows(raw, raw, {}, (), frozenset(away))
        others = range(len(next(iter(rows.values())).known_as))
        known_as = tuple([key_bytes(row.known_as[place], None) for row in rows.values()] for place in others)
        whose = [*rows]
        for row, line in party.preparation.outliers(raw, self.reader.columns.names):
            self._tell(cells[whose[row]], f"{line}; the row has no score")
            places.pop(whose[row], None)
        return FoundRows(raw, prepare_samples(party.preparation, raw), places, known_as, frozenset(away))

    def _tell(self, key: Cells, error: str) -> None:
        """Show a line, unless the same, or many others, were shown within the last minute."""
        now_s = time.monotonic()
        self._told = {text: told_s for text, told_s in self._told.items() if now_s - told_s < SAME_S}
        if error not in self._told and len(self._told) < MOST_TOLD:
            self._told[error] = now_s
            self.log(f"{self.reader.where}: key {' '.join(key)!r}: {error.removeprefix(f'{self.reader.where}: ')}")

    def _watch(self) -> None:
        """Try a connection at the start, so that a wrong setting is seen then, and count drift from time to time."""
        try:
            self.connect().close()
        except Exception as error:  # it may be there later
            self.log(one_line(error)[:300])
        while not self._ended.wait(LOOKS_S):
            self.drift.report_or_log()
