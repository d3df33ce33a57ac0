"""The drift of the rows that a party serves, for its owner only: in a file of its folder and in its log."""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vfl.base.errors import one_line
from vfl.data.drift import SHIFTED, Histograms, Window
from vfl.data.samples import Samples
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

    def tell_or_log(self) -> None:
        """Do as ``tell``; a file that cannot be written is reported once."""
        try:
            self.tell()
        except OSError as error:
            if not self._failed:
                self.log(f"{self.path}: cannot be written: {one_line(error)}")
            self._failed = True
        else:
            self._failed = False

    def tell(self) -> None:
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
