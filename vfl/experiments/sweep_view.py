"""What a sweep shows while it runs: live lines on a terminal, one plain line per run otherwise."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from vfl.metrics import headline


@dataclass
class Running:
    """A run at work."""

    rounds: int
    """Rounds in all."""
    done: int = 0
    reached: str = ""


@dataclass
class SweepView:
    """What runs, what is done and what is left."""

    console: Console
    total: int
    """Runs in all; of a search, the most that there can be."""
    kept: int = 0
    """Finished before this session."""
    running: dict[str, Running] = field(default_factory=dict[str, Running])
    finished: int = 0
    failed: int = 0
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

    def progress(self, name: str, done: int, rounds: int, reached: str | None) -> None:
        """Note how far a run is."""
        run = self.running.setdefault(name, Running(rounds))
        run.done = done
        run.reached = reached or run.reached

    def end(self, name: str, summary: Mapping[str, Any] | None, error: str | None) -> None:
        """Note and print that a run has ended: with a summary, an error, or (interrupted) neither."""
        self.running.pop(name, None)
        self.finished += summary is not None
        self.failed += error is not None
        place = f"{self.kept + self.finished + self.failed}/{self.total} {name}"
        if summary is not None:
            self._print(f"{place}: {result_line(summary)}")
        elif error is not None:
            self._print(f"{place}: FAILED: {error}")
        else:
            self._print(f"{name}: interrupted after its checkpoint")

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def lines(self) -> Group:
        """Return what a terminal shows below the lines of the runs that have ended: lines, which any width can fold."""
        texts = [
            f"running {name}: {run.done}/{run.rounds} rounds" + (f", test {run.reached}" if run.reached else "")
            for name, run in self.running.items()
        ]
        return Group(*(Text(text, overflow="fold") for text in (*texts, self._counts())))

    def _counts(self) -> str:
        left = self.total - self.kept - self.finished - self.failed - len(self.running)
        counts = f"{self.kept + self.finished} finished, {self.failed} failed, {len(self.running)} running, {left} left"
        ended = self.finished + self.failed
        if not ended:
            return counts
        minutes = (time.monotonic() - self.started_s) / ended * (left + len(self.running)) / 60
        return f"{counts}; about {max(1.0, minutes):.0f} min to go"


def result_line(summary: Mapping[str, Any]) -> str:
    """Return what a finished run reached, in one line."""
    texts = [headline(summary)]
    if summary.get("savings_compute") or summary.get("savings_communication"):
        texts.append(f"compute saved {summary['savings_compute']:.1%}")
        texts.append(f"communication saved {summary['savings_communication']:.1%}")
    return ", ".join([*texts, f"{summary['wall_time_s']:.0f} s"])


def names(runs: Sequence[str], most: int = 3) -> str:
    """Return some names, and how many there are beside them."""
    return ", ".join(runs[:most]) + (f" and {len(runs) - most} more" if len(runs) > most else "")
