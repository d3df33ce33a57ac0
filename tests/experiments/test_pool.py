"""Runs in processes of their own, in the moments that tests of the whole script do not hit."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vfl.config import ExperimentConfig
from vfl.experiments import pool
from vfl.experiments.sweep_plan import SweepRun


def test_a_signal_while_a_run_starts_ends_that_run_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configure: Callable[..., ExperimentConfig]
):
    start = pool._start

    def start_and_interrupt(*arguments: Any) -> Any:
        started = start(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)
        return started

    monkeypatch.setattr(pool, "_start", start_and_interrupt)
    config = configure(training={"rounds": 300})
    ends: list[pool.Ended] = []
    runs = [SweepRun(name, {}, config) for name in ("first", "second")]
    signal_name = pool.train_in_processes(
        runs, tmp_path, 2, lambda _, event: ends.append(event) if isinstance(event, pool.Ended) else None
    )
    assert signal_name == "SIGTERM"
    assert ends == [pool.Ended(finished=False)], "the first was interrupted, the second never began"
