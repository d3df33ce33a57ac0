"""One run among many, in its own process; its output goes to ``train.log`` in its folder."""

import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from vfl.base.errors import ConfigError, Diverged, one_line
from vfl.base.metrics import format_metric, title
from vfl.console import TRY_LATER, ShowConsole, failure_code
from vfl.runs.loop import Callback, Metrics, TrainingLoop
from vfl.runs.run import run_experiment
from vfl.runs.run_folder import LOG, hold_log, private_files
from vfl.sweeps.executor import Event, Progress, QueuedRun, RunEnded


class Tell(Callback):
    """Reports every round."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self.tell = tell

    def on_start(self, loop: TrainingLoop) -> None:
        """Report the rounds that a resumed run has done."""
        self.tell(Progress(loop.next_round))

    def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
        """Report the round."""
        metric = loop.metric
        score = metrics.get(f"{metric}/test")
        text = None if score is None else f"{title(metric)} {format_metric(metric, score)}"
        self.tell(Progress(round_index + 1, text))


@private_files()
def train(run: QueuedRun, runs_dir: Path, tell: Callable[[Event], None]) -> None:
    """Train one run in this process, which serves it alone, and report its events by ``tell``."""
    try:
        run_dir = runs_dir / run.folder
        run_dir.mkdir(parents=True, exist_ok=True)
        with (run_dir / LOG).open("a", encoding="utf-8") as log:
            hold_log(log)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            console = ShowConsole(file=log)

            def show_warning(message: Warning | str, *_where: object) -> None:
                console.print(f"warning: {message}")

            warnings.showwarning = show_warning
            tell(_describe_end(run, runs_dir, console, tell))
    except (OSError, ConfigError) as error:
        tell(RunEnded(finished=False, error=one_line(error), may_pass=_may_pass(error)))


def _may_pass(error: Exception) -> bool:
    return failure_code(error) == TRY_LATER


def _describe_end(run: QueuedRun, runs_dir: Path, console: ShowConsole, tell: Callable[[Event], None]) -> RunEnded:
    try:
        own = run.prepare(runs_dir)
        run_dir, callbacks = runs_dir / run.folder, [*own, Tell(tell)]
        outcome = run_experiment(
            run.config, run_dir, resume=True, console=console, extra_callbacks=callbacks, varied=run.varied
        )
    except KeyboardInterrupt:
        return RunEnded(finished=False)
    except Exception as error:  # whatever it is, the other runs go on, and the log has all of it
        console.print(traceback.format_exc())
        expected = isinstance(error, ValueError | OSError)
        reason = one_line(error) if expected else f"{type(error).__name__}: {error}"
        return RunEnded(finished=False, error=reason, diverged=isinstance(error, Diverged), may_pass=_may_pass(error))
    return RunEnded(outcome.finished)
