"""Trainings one after the other in one process."""

import gc
import io
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from vfl.config import ExperimentConfig, load_config
from vfl.parties.launch.local_launch import with_shared_threads
from vfl.predict.mode import VERTICAL
from vfl.runs import run, runtime
from vfl.runs.loop import Callback, Metrics, TrainingLoop
from vfl.runs.mode import Built, Stage


@pytest.mark.release
def test_a_run_has_let_go_of_the_one_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configure: Callable[..., ExperimentConfig]
):
    models: list[weakref.ref[object]] = []
    alive_at_start: list[int] = []
    mode = VERTICAL

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


@pytest.mark.release
def test_threads_follow_the_work_of_a_step_and_stay_with_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configure: Callable[..., ExperimentConfig]
):
    """A light step takes one, as its processes would; a resumed run takes the number of its beginning."""
    torch.set_num_threads(2)
    shown = io.StringIO()
    config = configure(threads=None, training={"rounds": 1})
    assert with_shared_threads(config, tmp_path / "run").threads == 1
    torch.set_num_threads(2)
    run.run_experiment(config, tmp_path / "run", resume=False, console=Console(file=shown, width=500))
    assert (
        f"run folder {tmp_path / 'run'}; threads=1, by the work of a step; watch it" in shown.getvalue().splitlines()[0]
    )
    assert torch.get_num_threads() == 2, "the next run chooses anew"
    monkeypatch.setattr(runtime, "LIGHT_STEP_MACS", 1)
    longer = configure(threads=None, training={"rounds": 2})
    used: list[int] = []

    class Watch(Callback):
        def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
            used.append(torch.get_num_threads())

    for name, resume in (("run", True), ("heavy", False)):
        quiet = Console(quiet=True)
        run.run_experiment(longer, tmp_path / name, resume=resume, console=quiet, extra_callbacks=[Watch()])
        torch.set_num_threads(2)
    assert used == [1, 2, 2]
    assert [load_config(tmp_path / name / "config.yaml").threads for name in ("run", "heavy")] == [1, 2]
