"""Callbacks of the loop: JSONL rows, progress and early stopping. TensorBoard's is in ``tensorboard.py``."""

import hashlib
import json
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vfl.base.metrics import format_metric, is_better, title
from vfl.runs.atomic import naming, write_atomically
from vfl.runs.checkpoint import State
from vfl.runs.loop import Callback, Metrics, TrainingLoop, Viewer, Watched
from vfl.runs.run_folder import row_of


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
        lost = self.lost(rows, loop.next_round)
        if lost or self._saved not in (None, self._written.hexdigest()):
            what = f"rounds {lost} are damaged or missing" if lost else "a row is not as it was written"
            warnings.warn(f"{self.path}: {what}; the checkpoints are whole, training goes on", stacklevel=2)

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
    """A bar on a terminal, otherwise a plain line per round. ``shown`` maps tags of further metrics to show to
    formats."""

    def __init__(self, console: Console, shown: Mapping[str, str]) -> None:
        self.console = console
        self.shown = shown
        self.bar = Progress(
            TextColumn("round {task.fields[label]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=None, label="")

    def on_start(self, loop: Watched) -> None:
        """Show the rounds done so far."""
        if loop.next_round:
            self._print(f"resumed after {loop.next_round} of {loop.rounds} rounds")
        self._label_round(loop)
        self.bar.start()

    def on_step(self, done: int, total: int) -> None:
        """Advance within the round."""
        self.bar.update(self.task, completed=done, total=total)

    def on_round(self, loop: Watched, round_index: int, metrics: Metrics) -> None:
        """Show the round's result."""
        metric = loop.metric
        texts = [f"loss {metrics['loss/train']:.4f}"] if "loss/train" in metrics else []
        if (value := metrics.get(f"{metric}/test")) is not None:
            texts.append(f"test {title(metric)} {format_metric(metric, value)}")
        text = "  ".join(texts + [form.format(metrics[tag]) for tag, form in self.shown.items() if tag in metrics])
        self.bar.update(self.task, completed=0)
        self._label_round(loop)
        self._print(f"round {round_index} ({round_index + 1}/{loop.rounds})  {text}")

    def on_end(self, loop: Watched) -> None:
        """Remove the bar."""
        self.bar.stop()

    def _label_round(self, loop: Watched) -> None:
        now = min(loop.next_round, loop.rounds - 1)
        self.bar.update(self.task, label=f"{now} ({now + 1}/{loop.rounds})")

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
