"""Runs one after the other in one process."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from parties import run, series
from vfl.config import ExperimentConfig


def test_a_run_has_let_go_of_the_one_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configure: Callable[..., ExperimentConfig]
):
    models: list[weakref.ref[object]] = []
    alive_at_start: list[int] = []
    build = run.build_algorithm

    def build_and_watch(*arguments: object) -> object:
        alive_at_start.append(sum(model() is not None for model in models))
        algorithm, callbacks = build(*arguments)  # pyright: ignore[reportArgumentType]  # whatever it takes
        models.append(weakref.ref(algorithm.links[0].party.model))  # pyright: ignore[reportAttributeAccessIssue]  # a HeadServer with local links
        return algorithm, callbacks

    monkeypatch.setattr(run, "build_algorithm", build_and_watch)
    config = configure(training={"rounds": 1})
    gc.disable()  # as good as between runs of few objects
    try:
        series.train_series(dict.fromkeys("abc", config), tmp_path, Console(quiet=True))
    finally:
        gc.enable()
    assert alive_at_start == [0, 0, 0]
