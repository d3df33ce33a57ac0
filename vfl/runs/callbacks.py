"""Callbacks of the loop: JSONL rows, progress and early stopping. TensorBoard's is in ``tensorboard.py``."""

import hashlib
import json
import time
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from vfl.base.costs import duration
from vfl.base.metrics import format_metric, is_better, title
from vfl.runs.atomic import naming, write_atomically
from vfl.runs.checkpoint import State
from vfl.runs.loop import Callback, Metrics, TrainingLoop, Viewer, Watched
from vfl.runs.run_folder import row_of

LONG_S = 30.0
"""Seconds after which a round without a terminal says how far it is, unless rounds usually take half as long."""
SOON_S = 30.0
"""Seconds left below which nothing is said of them."""


class JsonLines(Viewer):
    """Appends one JSON object per round to a file and flushes it; a resume drops what it will write again."""

    name = "metrics"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = hashlib.sha256()
        self._saved: str | None = None

    def on_start(self, loop: Watched) -> None:
        """Keep the rows before the next round; warn if they are not those that were written."""
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        rows = {int(row["round"]): line for line in text.splitlines(keepends=True) if (row := row_of(line))}
        kept = "".join(row for number, row in rows.items() if number < loop.next_round)  # later ones are trained again
        write_atomically(self.path, kept)
        self._written = hashlib.sha256(kept.encode())
        lost = [number + 1 for number in self.lost(rows, loop.next_round)]
        if lost or self._saved not in (None, self._written.hexdigest()):
            what = f"rounds {lost} are damaged or missing" if lost else "a row is not as it was written"
            warnings.warn(f"{self.path}: {what}; the checkpoints are complete, training continues", stacklevel=2)

    def lost(self, rows: Collection[int], next_round: int) -> list[int]:
        """Return the rounds before the next one that have no row."""
        return [number for number in range(next_round) if number not in rows]

    def on_round(self, loop: Watched, round_index: int, metrics: Metrics) -> None:
        """Append the round."""
        row = json.dumps({"round": round_index, **metrics}, allow_nan=False) + "\n"
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(row)
        self._written.update(row.encode())

    def state_dict(self) -> State:
        """Return the digest of all rows."""
        return {"sha256": self._written.hexdigest()}

    def load_state_dict(self, state: State) -> None:
        """Note the digest that the rows should have."""
        self._saved = state["sha256"]


class ShowProgress(Viewer):
    """A bar over the complete training on a terminal, otherwise a plain line per round; both show the time left.

    They count the rounds that are done, from 1: a round's own number in files, schedules and TensorBoard begins at 0.
    ``shown`` maps tags of further metrics to show to formats. Without a terminal a long round prints one line.
    """

    def __init__(self, console: Console, shown: Mapping[str, str]) -> None:
        self.console = console
        self.shown = shown
        self.clock = time.monotonic
        self.bar = Progress(
            TextColumn("{task.fields[label]} rounds"),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=None, label="", left="")
        self._first_round, self._began_s, self._round_began_s = 0, 0.0, 0.0
        self._rounds, self._next_round, self._told = 1, 0, False

    def on_start(self, loop: Watched) -> None:
        """Show where a resumed training continues."""
        if loop.next_round:
            ahead = f"goes on with round {loop.next_round + 1}" if loop.next_round < loop.rounds else "no round is left"
            self._print(f"resumed after {loop.next_round} of {loop.rounds} rounds; {ahead}")
        self._first_round, self._began_s = loop.next_round, self.clock()
        self._begin_round(loop)
        self.bar.start()

    def on_step(self, done: int, total: int) -> None:
        """Advance within the round."""
        so_far = self._next_round + done / total
        self.bar.update(self.task, completed=so_far, left=self._left(so_far))
        took_s, rounds = self.clock() - self._round_began_s, self._next_round - self._first_round
        usual_s = (self._round_began_s - self._began_s) / rounds if rounds else 0.0
        if not self.console.is_terminal and not self._told and took_s > max(LONG_S, 2 * usual_s) and done < total:
            self._told = True
            so_many = f"{self._next_round} of {self._rounds} rounds"
            self._print(f"{so_many}  step {done} of {total} after {duration(took_s)}  {self._left(so_far)}".rstrip())

    def on_round(self, loop: Watched, round_index: int, metrics: Metrics) -> None:
        """Show the round's result."""
        metric = loop.metric
        texts = [f"loss {metrics['loss/train']:.4f}"] if "loss/train" in metrics else []
        if (value := metrics.get(f"{metric}/test")) is not None:
            texts.append(f"test {title(metric)} {format_metric(metric, value)}")
        texts += [form.format(metrics[tag]) for tag, form in self.shown.items() if tag in metrics]
        self._begin_round(loop)
        if not self.console.is_terminal and (left := self._left(loop.next_round)):
            texts.append(left)
        self._print(f"{round_index + 1} of {loop.rounds} rounds  {'  '.join(texts)}")

    def on_end(self, loop: Watched) -> None:
        """Remove the bar."""
        self.bar.stop()

    def _begin_round(self, loop: Watched) -> None:
        self._round_began_s, self._told = self.clock(), False
        self._rounds, self._next_round = loop.rounds, loop.next_round
        label = f"{loop.next_round} of {loop.rounds}"
        self.bar.update(
            self.task, total=loop.rounds, completed=loop.next_round, label=label, left=self._left(loop.next_round)
        )
        self.bar.refresh()

    def _left(self, so_far: float) -> str:
        """Return the time that the whole training still takes, by this session's pace; nothing below SOON_S."""
        done = so_far - self._first_round
        left_s = (self.clock() - self._began_s) / done * (self._rounds - so_far) if done > 0 else 0.0
        return f"{duration(left_s)} left" if left_s >= SOON_S else ""

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


class EarlyStop(Callback):
    """Stops the run after ``patience`` evaluations without a better test value of the algorithm's metric."""

    name = "early_stop"

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best: float | None = None
        self.waited = 0

    def on_start(self, loop: TrainingLoop) -> None:
        """Stop at once if the run had already stopped before a resume."""
        self._stop_if_exhausted(loop)

    def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
        """Count evaluations without improvement."""
        value = metrics.get(f"{loop.metric}/test")
        if value is None:
            return
        if self.best is None or is_better(loop.metric, value, self.best):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        self._stop_if_exhausted(loop)

    def state_dict(self) -> State:
        """Return the best value and the evaluations waited since."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: State) -> None:
        """Continue counting."""
        self.best, self.waited = state["best"], state["waited"]

    def _stop_if_exhausted(self, loop: TrainingLoop) -> None:
        if self.best is not None and self.waited >= self.patience:
            metric = loop.metric
            best = f"no better test {title(metric)} than {format_metric(metric, self.best)}"
            loop.request_stop(f"{best} in {self.patience} evaluations")
