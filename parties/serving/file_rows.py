"""An owner's rows to be scored: what a file, a database and an HTTP service answer alike; and those from a file.

A file is all in memory, and read again when it changes. The drift of the rows that were scored is for their owner only:
in a file of its folder and in its log.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from vfl.base.errors import one_line
from vfl.core.finished_party import FinishedParty
from vfl.data.drift import SHIFTED, Histograms, Window
from vfl.data.samples import Samples
from vfl.data.source import MOST_NAMED, Preparation, prepare_samples
from vfl.data.tables.new_rows import read_new_rows
from vfl.data.tables.source import Tables
from vfl.messages.keys import key_bytes
from vfl.runs.atomic import write_atomically

LOOKS_S = 1.0
"""Seconds between two counts; as often a served file is looked at."""
MOST_PENDING = 1000
"""Most requests whose rows wait to be counted; of more, the latest ones are."""


@dataclass(eq=False)
class ServedDrift:
    """Compares the rows that are scored with the training rows."""

    columns: Sequence[str]
    """The owner's columns, numbers first."""
    path: Path
    log: Callable[[str], None]
    _pending: deque[tuple[Histograms, Samples, Sequence[int]]] = field(
        default_factory=lambda: deque[tuple[Histograms, Samples, Sequence[int]]](maxlen=MOST_PENDING), init=False
    )
    _window: Window | None = field(default=None, init=False)
    _told: list[str] = field(default_factory=list[str], init=False)
    _failed: bool = field(default=False, init=False)

    def note(self, histograms: Histograms | None, samples: Samples, rows: Sequence[int]) -> None:
        """Note that raw rows of a table were scored with a model of these training rows; they are counted later."""
        if histograms is not None and rows:
            self._pending.append((histograms, samples, rows))

    def report_or_log(self) -> None:
        """Do as ``report``; a file that cannot be written is reported once."""
        try:
            self.report()
        except OSError as error:
            if not self._failed:
                self.log(f"{self.path}: cannot be written: {one_line(error)}")
            self._failed = True
        else:
            self._failed = False

    def report(self) -> None:
        """Count the rows noted since, write the file, and show a line if other columns have shifted than before.

        Raises OSError if the file cannot be written.
        """
        if not self._pending:
            return
        while self._pending:
            histograms, samples, rows = self._pending.popleft()
            if self._window is None or self._window.histograms is not histograms:  # another version of the model
                self._window = Window(histograms)
            held = list(rows)
            while self._pending and self._pending[0][0] is histograms and self._pending[0][1] is samples:
                held.extend(self._pending.popleft()[2])  # counted as one: a request is often a single row
            self._window.add(samples.features[held].numpy(), samples.more[0][held].numpy())
        window = self._window
        assert window is not None, "rows were pending"
        shifted = window.shifted(self.columns)
        found = {name: round(index, 4) for name, index in window.stability(self.columns).items()}
        report = {"rows": len(window), "shifted": shifted, "stability_index": found}
        write_atomically(self.path, json.dumps(report, indent=1) + "\n")
        if sorted(shifted) != sorted(self._told):
            self._told = shifted
            named = ", ".join(f"{name} ({found[name]:.2f})" for name in shifted) or "none any more"
            self.log(
                f"columns that have shifted since the training, by the last {len(window)} rows scored: {named}; "
                f"stability index above {SHIFTED}, all of them in {self.path}"
            )


@dataclass(frozen=True, eq=False)
class FoundRows:
    """Rows of a table, prepared for the party's model, and where each key's is."""

    raw: Samples
    samples: Samples
    places: dict[bytes, int]
    known_as: tuple[list[bytes], ...]
    """Keys of the rows at each other owner that uses other keys, in the order of the owners' names."""
    away: frozenset[bytes] = frozenset()
    """Keys that may or may not have a row."""


@dataclass(frozen=True, eq=False)
class RawRows:
    """The rows of a table as they were read."""

    samples: Samples
    keys: list[bytes]
    known_as: tuple[list[bytes], ...]
    order: torch.Tensor
    """Place of each row in the file, int64 [N] from 0."""

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(eq=False)
class FileRows:
    """A table of rows to be scored, read again when its file changes. If it cannot be read, the old rows stay.

    Args:
        path: of the table.
        source: of the training's tables.
        name: of the owner.
        secret: hides keys; None: they travel as they are.
        drift: counts the rows that are scored; reported as often as the file is looked at.
        log: shows a line.
    """

    path: Path
    source: Tables
    name: str
    secret: bytes | None
    drift: ServedDrift
    log: Callable[[str], None]

    def __post_init__(self) -> None:
        self._seen = self._look()
        self._raw = self._read()
        self._prepared: tuple[object, FoundRows] | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="served table", daemon=True)
        self._thread.start()
        self.log(f"{self.path}: {len(self._raw)} rows to be scored")

    def find(self, party: FinishedParty, keys: Sequence[bytes]) -> FoundRows:
        """Return the present rows, all of them, as the party's model takes them.

        Errors of a row, or of the file, go to the owner's log and raise nothing.
        """
        with self._lock:
            raw = self._raw
            if self._prepared is None or self._prepared[0] != (party, raw):
                far = self._far_rows(party.preparation, raw)
                for line in [*far.values()][:MOST_NAMED]:
                    self.log(f"{self.path}: {line}; the row has no score")
                places = {key: place for place, key in enumerate(raw.keys) if place not in far}
                rows = FoundRows(raw.samples, prepare_samples(party.preparation, raw.samples), places, raw.known_as)
                self._prepared = (party, raw), rows
            return self._prepared[1]

    def is_at_hand(self, party: FinishedParty) -> bool:
        """Return whether the present rows are prepared for the party's model already."""
        return self._prepared is not None and self._prepared[0] == (party, self._raw)

    def close(self) -> None:
        """Stop looking at the file."""
        self._ended.set()
        self._thread.join()

    def _read(self) -> RawRows:
        rows = read_new_rows(self.source, {self.name: self.path}, self.source.owners)
        others = [rows.known_as[other] for other in sorted(rows.known_as)]
        known_as = tuple([key_bytes(cells, self.secret) for cells in known] for known in others)
        keys = [key_bytes(cells, self.secret) for cells in rows.keys[1:]]
        order = torch.arange(len(keys)) if rows.file_order is None else rows.file_order.argsort()
        return RawRows(rows.parts[self.source.parties.index(self.name)], keys, known_as, order)

    def _far_rows(self, preparation: Preparation, raw: RawRows) -> dict[int, str]:
        """Return, by row, a line about a cell too far from the training rows: that row is not there."""
        found = preparation.outliers(raw.samples, self.source.columns(self.name).names)
        return {row: f"{self.name}: row {int(raw.order[row]) + 1}, {line}" for row, line in found}

    def _look(self) -> object:
        state = self.path.stat()
        return state.st_mtime_ns, state.st_size, state.st_ino

    def _watch(self) -> None:
        changed: object = None
        while not self._ended.wait(LOOKS_S):
            self.drift.report_or_log()
            try:
                before, changed = changed, self._look()
                if changed == self._seen or changed != before:  # as it was, or perhaps still being written
                    continue
                self._seen = changed
                raw = self._read()
            except (OSError, ValueError) as error:
                if self._seen is not None or changed is not None:
                    rows = len(self._raw)
                    self.log(f"{self.path}: cannot be read, the {rows} rows of before stay: {one_line(error)}")
                if not isinstance(error, ValueError):
                    self._seen = changed = None
                continue
            with self._lock:
                self._raw = raw
            self.log(f"{self.path}: read again, {len(raw)} rows to be scored")
