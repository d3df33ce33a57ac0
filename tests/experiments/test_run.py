"""Trainings one after the other in one process."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from vfl.config import ExperimentConfig
from vfl.runs.experiments import run
from vfl.runs.experiments.mode import MODES, Built, Stage


def test_a_run_has_let_go_of_the_one_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configure: Callable[..., ExperimentConfig]
):
    models: list[weakref.ref[object]] = []
    alive_at_start: list[int] = []
    mode = MODES.load("vertical")

    def build_and_watch(config: ExperimentConfig, stage: Stage) -> Built:
        alive_at_start.append(sum(model() is not None for model in models))
        built = mode.build(config, stage)
        models.append(weakref.ref(built.algorithm.roster.parties[0].link.party.model))  # pyright: ignore[reportAttributeAccessIssue]  # a HeadServer with local links
        return built

    monkeypatch.setattr(run, "mode_of", lambda config: replace(mode, build=build_and_watch))
    config = configure(training={"rounds": 1})
    gc.disable()  # as good as between runs of few objects
    try:
        for name in "abc":
            run.run_experiment(config, tmp_path / name, resume=False, console=Console(quiet=True))
    finally:
        gc.enable()
    assert alive_at_start == [0, 0, 0]
