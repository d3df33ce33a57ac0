"""Runs in processes of their own, in the moments that tests of the whole script do not hit."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from vfl.config import ExperimentConfig
from vfl.sweeps.executor import Event, QueuedRun, RunEnded
from vfl.sweeps.pool import LocalProcesses, LocalRun


@pytest.mark.release
def test_a_signal_while_a_run_starts_ends_that_run_as_well(tmp_path: Path, configure: Callable[..., ExperimentConfig]):
    class Interrupted(LocalProcesses):
        def start(self, run: QueuedRun, runs_dir: Path) -> LocalRun:
            started = super().start(run, runs_dir)
            os.kill(os.getpid(), signal.SIGTERM)
            return started

    config = configure(training={"rounds": 300})
    ends: list[Event] = []

    def on_event(run: QueuedRun, event: Event) -> None:
        ends.extend([event] if isinstance(event, RunEnded) else [])

    signal_name = Interrupted(2).train([QueuedRun(name, config) for name in ("first", "second")], tmp_path, on_event)
    assert signal_name == "SIGTERM"
    assert ends == [RunEnded(finished=False)], "the first was interrupted, the second never began"
