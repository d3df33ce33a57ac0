"""Display while many runs are trained: a live table on a terminal, otherwise a plain line per ended run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vfl.base.metrics import headline
from vfl.runs.run_folder import LOG
from vfl.sweeps.executor import Event, Lost, Progress, QueuedRun, RunEnded

LAST_LINES = 5
"""Lines that are shown of a failed run's log."""
NAMED = 3
"""Most runs that a line names."""


@dataclass
class Running:
    """A run in progress."""

    rounds: int
    """Rounds in all."""
    first: int
    """Rounds done before it was started here."""
    node: str
    done: int = 0
    reached: str = ""
    began_s: float = field(default_factory=time.monotonic)

    def ends(self) -> str:
        """Return the time of day at which it should end, "" before its first round here."""
        trained = self.done - self.first
        seconds = (time.monotonic() - self.began_s) / max(1, trained) * (self.rounds - self.done)
        return _clock_time(seconds) if trained else ""


@dataclass
class SweepView:
    """Counts and current rounds of all runs, and the live table."""

    console: Console
    total: int
    """Runs in all."""
    runs_dir: Path = Path()
    kept: int = 0
    """Runs finished before this session."""
    running: dict[str, Running] = field(default_factory=dict[str, Running])
    finished: int = 0
    failed: int = 0
    worked: float = 0.0
    """Amount trained in this session, in runs."""
    live: Live | None = None
    started_s: float = field(default_factory=time.monotonic)

    def __enter__(self) -> "SweepView":
        if self.console.is_terminal:
            # transient: what stays on the screen is the line of every run that has ended.
            self.live = Live(get_renderable=self.lines, console=self.console, refresh_per_second=2, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, run: QueuedRun, event: Event, summary: Mapping[str, Any] | None = None) -> None:
        """Record a run's event; print a line if the run has ended, with its ``summary`` if it is finished."""
        match event:
            case Progress():
                self._progress(run, event)
            case Lost():
                self.running.pop(run.folder, None)
                self._print(f"{run.folder}: its node died; it continues elsewhere from its checkpoint")
            case RunEnded():
                self._end(run.folder, event, summary)

    def _progress(self, run: QueuedRun, event: Progress) -> None:
        rounds = run.config.training.rounds
        # A run reports first where it stands: rounds from before this session are no work of this session.
        at = self.running.setdefault(run.folder, Running(rounds, event.rounds, event.node, event.rounds))
        self.worked += (event.rounds - at.done) / rounds
        at.done = event.rounds
        at.reached = event.reached or at.reached

    def _end(self, name: str, event: RunEnded, summary: Mapping[str, Any] | None) -> None:
        run = self.running.pop(name, None)
        self.worked += 1.0 if run is None else 1.0 - run.done / run.rounds  # skipped rounds are no work to come
        self.finished += summary is not None
        self.failed += event.error is not None
        place = f"{self.kept + self.finished + self.failed}/{self.total} {name}"
        if summary is not None:
            self._print(f"{place}: {result_line(summary)}")
        elif event.error is not None:
            self._print(f"{place}: FAILED: {event.error}")
            for line in _last_lines(self.runs_dir / name / LOG):
                self._print(f"    {line}")
        else:
            self._print(f"{name}: interrupted after its checkpoint")

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def lines(self) -> Group:
        """Return the live table, which is shown below the lines of ended runs; it fits any width."""
        nodes = sorted({run.node for run in self.running.values()} - {""})
        table = Table(box=None, padding=(0, 1, 0, 0))
        for column in ("running", *(["node"] if nodes else []), "rounds", "test", "ends"):
            table.add_column(column, overflow="fold")
        for name, run in sorted(self.running.items(), key=lambda item: item[1].node):
            cells = [name, *([run.node] if nodes else []), f"{run.done}/{run.rounds}", run.reached, run.ends()]
            table.add_row(*map(Text, cells))
        counts = Text(self._counts() + (f"; {len(nodes)} nodes" if nodes else ""), overflow="fold")
        return Group(counts, table)  # the counts first: a low terminal cuts the rest

    def _counts(self) -> str:
        ended = self.kept + self.finished + self.failed
        waiting = self.total - ended - len(self.running)
        counts = (
            f"{self.kept + self.finished} finished, {self.failed} failed, {len(self.running)} running, {waiting} left"
        )
        if not self.worked:
            return counts
        to_do = self.total - ended - sum(run.done / run.rounds for run in self.running.values())
        seconds = (time.monotonic() - self.started_s) / self.worked * to_do
        return f"{counts}; about {max(1.0, seconds / 60):.0f} min to go, until {_clock_time(seconds)}"


def _clock_time(seconds: float) -> str:
    """Return the time of day in ``seconds`` from now, with the date if that is another day."""
    end = time.localtime(time.time() + seconds)
    today = end[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", end)


def _last_lines(log: Path) -> Sequence[str]:
    try:
        return [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line][-LAST_LINES:]
    except OSError:  # it failed before it had one
        return []


def result_line(summary: Mapping[str, Any]) -> str:
    """Return one line about a finished run's score and savings."""
    texts = [headline(summary)]
    if summary.get("savings_compute") or summary.get("savings_communication"):
        texts.append(f"compute saved {summary['savings_compute']:.1%}")
        texts.append(f"communication saved {summary['savings_communication']:.1%}")
    return ", ".join([*texts, f"{summary['wall_time_s']:.0f} s"])


def names(runs: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(runs) - NAMED
    return ", ".join(runs[:NAMED]) + (f" and {more} more" if more > 0 else "")
