"""Outcomes that become known after scoring, beside the scores that were given: is the model as good as it was?

An SQLite file keeps both, through restarts. Scores are written by a thread of their own: no request waits for the disk.
"""

import contextlib
import json
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from vfl.config import ConfigError
from vfl.core.tasks import Task
from vfl.parties.serving.request_queue import Key
from vfl.runs.run_folder import private_files

_Given = tuple[str, float, Sequence[tuple[Key, Sequence[float]]]]
"""Digest of the model, time, and scores by key."""

MOST_SCORES = 1_000_000
"""Latest scores that are kept."""
MOST_WAITING = 10_000
"""Batches that may wait to be written; beyond, scores are given but not kept."""
PERIOD = 500
"""Outcomes over which the metrics are computed, in the order of scoring; the last period may have fewer."""
KNOWN = "SELECT scored_at, model, prediction, outcome FROM scores WHERE outcome IS NOT NULL"
SCHEMA = """
CREATE TABLE IF NOT EXISTS scores
    (id INTEGER PRIMARY KEY, key TEXT, scored_at REAL, model TEXT, prediction TEXT, outcome REAL);
CREATE INDEX IF NOT EXISTS of_key ON scores (key);
"""


@dataclass(frozen=True)
class Period:
    """Metrics of scores whose outcomes are known, given one after another."""

    first: str
    """Time of the first one, UTC, ISO 8601."""
    last: str
    rows: int
    models: tuple[str, ...]
    """Digests of the versions that gave them."""
    metrics: Mapping[str, float]
    """Metrics by the task's definitions; AUC and the like only if both classes occur."""


@dataclass(eq=False)
class Outcomes:
    """The scores given and their outcomes, from construction to ``close``.

    Raises ConfigError for a file that cannot be used.
    """

    path: Path
    log: Callable[[str], None]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        try:
            with private_files():
                self._file = sqlite3.connect(self.path, check_same_thread=False)
                self._file.execute("PRAGMA journal_mode = WAL")
                self._file.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise ConfigError(f"serving.outcomes: {self.path} cannot be used ({error}); name another file") from None
        self._waiting = queue.Queue[_Given | threading.Event | None](MOST_WAITING)
        self._failed = False
        self._thread = threading.Thread(target=self._write, name="outcomes", daemon=True)
        self._thread.start()

    def keep(self, model: str, scores: Sequence[tuple[Key, Sequence[float]]]) -> None:
        """Keep scores by key: probabilities by class, or a value. A score without an outcome is replaced by a later."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait((model, time.time(), scores))

    def note(self, outcomes: Sequence[tuple[Key, float]]) -> list[Key]:
        """Note the outcome of each key's last score, a class's number or a value; return the keys without a score.

        An outcome reported before is corrected. Raises OSError if the file cannot be written.
        """
        self._waiting.put(written := threading.Event())
        written.wait()  # for what was scored before this call
        unknown: list[Key] = []
        update = "UPDATE scores SET outcome = ? WHERE id = (SELECT max(id) FROM scores WHERE key = ?)"
        try:
            with self._lock, self._file:
                for key, outcome in outcomes:
                    if not self._file.execute(update, (outcome, json.dumps(key))).rowcount:
                        unknown.append(key)
        except sqlite3.Error as error:
            raise OSError(f"{self.path}: {error}") from None
        return unknown

    def periods(self, task: Task) -> list[Period]:
        """Return the metrics of all known outcomes, in periods of ``PERIOD`` scores, oldest first."""
        with self._lock:
            rows = self._file.execute(f"{KNOWN} ORDER BY id").fetchall()
        return [_measured(task, rows[start : start + PERIOD]) for start in range(0, len(rows), PERIOD)]

    def last(self, task: Task) -> tuple[int, Mapping[str, float]]:
        """Return the number of known outcomes and the metrics of the last ``PERIOD`` of them."""
        with self._lock:
            (count,) = self._file.execute("SELECT count(outcome) FROM scores").fetchone()
            rows = self._file.execute(f"{KNOWN} ORDER BY id DESC LIMIT {PERIOD}").fetchall()
        return count, _measured(task, rows[::-1]).metrics if rows else {}

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._waiting.put(None)
        self._thread.join()
        self._file.close()

    def _write(self) -> None:
        while (came := self._waiting.get()) is not None:
            if isinstance(came, threading.Event):
                came.set()
                continue
            model, now_s, scores = came
            named = [(json.dumps(key), now_s, model, json.dumps(values)) for key, values in scores]
            try:
                with self._lock, self._file:
                    each = [(key,) for key, *_ in named]
                    self._file.executemany("DELETE FROM scores WHERE key = ? AND outcome IS NULL", each)
                    insert = "INSERT INTO scores (key, scored_at, model, prediction) VALUES (?, ?, ?, ?)"
                    self._file.executemany(insert, named)
                    self._file.execute(
                        "DELETE FROM scores WHERE id <= (SELECT max(id) FROM scores) - ?", (MOST_SCORES,)
                    )
                self._failed = False
            except sqlite3.Error as error:
                if not self._failed:
                    self.log(f"{self.path}: scores cannot be kept for their outcomes ({error})")
                self._failed = True


def _measured(task: Task, rows: Sequence[tuple[float, str, str, float]]) -> Period:
    times, models, predictions, outcomes = zip(*rows, strict=True)
    predictions_NC = torch.tensor([json.loads(each) for each in predictions], dtype=torch.float64)
    kind = torch.int64 if task.names else torch.float64
    labels_N = torch.tensor(outcomes, dtype=kind)
    if len(task.names) == 2 and len(set(outcomes)) < 2:
        metrics = {"accuracy": float((task.predicted(predictions_NC) == labels_N).double().mean())}
    else:
        metrics = task.metrics(predictions_NC, labels_N)
    first, last = (datetime.fromtimestamp(each, UTC).isoformat(timespec="seconds") for each in (times[0], times[-1]))
    return Period(first, last, len(rows), tuple(dict.fromkeys(models)), metrics)
