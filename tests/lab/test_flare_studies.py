"""FLARE's figures: which runs they take, at equal simulated time, and what the page says of them."""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from scripts.lab.studies.flare import page as flare_page
from scripts.lab.studies.flare.page import write_results
from scripts.lab.studies.flare.studies import SP_MATCHED, Scale, make_runs, participation, rounds_within, scheduled
from scripts.lab.studies.page import beats
from scripts.lab.studies.runs import StudyRun
from vfl.config import dump_config
from vfl.horizontal.devices import Devices
from vfl.horizontal.flare import FlareConfig
from vfl.horizontal.wireless.scheduling import Scheduler

pytestmark = pytest.mark.release

FIGURES = (3, 4, 5, 6, 8)


def runs_of(data_set: str, figures: Sequence[int] = FIGURES, seed: int = 0) -> list[StudyRun]:
    return make_runs(data_set, figures, seed, Scale(rounds=6, seconds=1.5), {})


def test_every_figure_has_its_runs_once():
    runs = runs_of("mnist")
    assert len({run.folder for run in runs}) == len(runs)
    # 3 curves; 2 x 2 panels of 6; 2 x 2 panels of 7; 7 deadlines x 2 splits x 2, of which 8 are Figure 5's.
    assert len(runs) == 3 + 24 + 28 + 28 - 8
    assert len(runs_of("cifar10")) == 3 + 24 + 28
    # Figure 3's speeds replace those of the configuration that it begins with, of which a run may warn.
    lines = [line for run in runs for line in run.config.warnings()]
    assert {line.split(": ")[0] for line in lines} <= {
        "horizontal.devices.speed.mean",
        "horizontal.devices.speed.redrawn",
    }


def test_sp_and_spf_differ_in_the_learning_rate_only():
    runs = {run.method: run.config for run in runs_of("mnist", (5,)) if run.study == "mnist-shards-1s"}
    adjusted, plain = runs["SPF"].horizontal, runs["SP"].horizontal
    assert isinstance(adjusted.own, FlareConfig)
    assert isinstance(plain.own, FlareConfig)
    assert (adjusted.own.tau_bar, plain.own.tau_bar) == ("mas", "none")
    assert adjusted.model_copy(update={"flare": plain.own}) == plain


@pytest.mark.parametrize(("data_set", "figure", "seconds"), [("mnist", 5, 40), ("cifar10", 6, 300)])
def test_the_control_of_spf_has_its_schedule_and_takes_steps_as_long(data_set: str, figure: int, seconds: float):
    runs = [run for run in make_runs(data_set, (figure,), 0, Scale(1, seconds), {}) if "iid" in run.study]
    controls = [run for run in runs if run.method == SP_MATCHED]
    assert len(controls) == 2
    for control in controls:
        adjusted = next(run for run in runs if (run.study, run.method) == (control.study, "SPF"))
        rounds = control.config.training.rounds
        schedule = list(islice(scheduled(control.config), rounds))
        assert schedule == list(islice(scheduled(adjusted.config), rounds))
        steps = [each for each, _ in schedule if each]
        ratio = mean(map(max, steps)) / mean(map(mean, steps))  # tau_bar of MaS over what SP's mean client does
        assert control.config.horizontal.server_learning_rate == pytest.approx(ratio, rel=0.04)


def test_rounds_end_with_the_simulated_time():
    run = next(run for run in runs_of("mnist", (5,)) if run.method == "CP")
    config = run.config
    devices = Devices(config.horizontal, [1] * 40, 40, config.seed, (0, 0))
    assert isinstance(config.horizontal.own, FlareConfig)
    scheduler = Scheduler(config.horizontal, config.horizontal.own.lipschitz, 40, config.seed, 1.0)
    lengths_s = [scheduler.select(number, devices.plan(number)).seconds for number in range(config.training.rounds)]
    ends_s = np.cumsum([length_s or 0.0 for length_s in lengths_s])
    assert ends_s[-2] < 1.5 <= ends_s[-1]
    assert rounds_within(config, 1e-9) == 1
    devices_per_round, steps = participation(config, 3)
    assert 1 <= devices_per_round <= 40
    assert steps >= 1


def finish(folder: Path, runs: Sequence[StudyRun], accuracy: dict[str, float]) -> None:
    """Write run folders as if they had been trained, with a final accuracy by method."""
    for run in runs:
        run_dir = folder / "runs" / run.folder
        run_dir.mkdir(parents=True)
        (run_dir / "config.yaml").write_text(dump_config(run.config))
        rounds = run.config.training.rounds
        rows = [
            {
                "round": number,
                "accuracy/test": accuracy.get(run.method, 0.5) * (number + 1) / rounds,
                "loss/test": 1.0,
                "loss/train": 1 - accuracy.get(run.method, 0.5),
                "simulated_time_s/total": number + 1.0,
            }
            for number in range(rounds)
        ]
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run_dir / "summary.json").write_text(
            json.dumps({"rounds": rounds, "uplink_bytes": 1, "downlink_bytes": 1, "train_macs": 1})
        )


def test_the_page_shows_every_figure_and_says_which_orderings_hold(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(flare_page, "GAP_CASES", 20)
    monkeypatch.setattr("scripts.lab.studies.flare.studies.FIG_7_ROUNDS", 3)
    runs = [run for seed in (0, 1) for run in runs_of("mnist", seed=seed)]
    accuracy = {"SPF": 0.9, "SP": 0.8, "PS": 0.85, "FLARE": 0.7, "MaS": 0.6, "MeS": 0.4}
    finish(tmp_path, runs, accuracy)
    assert write_results("mnist", (0, 1), {}, runs, tmp_path, FIGURES) == len(runs)
    page = (tmp_path / "README.md").read_text()
    for number in (3, 4, 5, 7, 8):
        assert (tmp_path / f"fig{number}.png").stat().st_size > 10_000
        assert f"](fig{number}.png)" in page
    assert "- SPF better than SP: holds (+10.00 ± 0.00 points, 2 seeds)" in page
    assert "- SP better than PS: REVERSED (-5.00 ± 0.00 points, 2 seeds)" in page
    assert "- MaS better than FedAvg: holds" in page
    assert "- MeS better than FedAvg: REVERSED" in page
    assert "- FLARE better than fixed: holds (+0.20 ± 0.00 loss, 2 seeds)" in page
    assert "| linear program | 0 | " in page
    assert len((tmp_path / "results.csv").read_text().splitlines()) > len(runs)


def test_the_page_of_cifar10_has_its_figures_and_says_which_are_not_the_papers(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("scripts.lab.studies.flare.studies.FIG_7_ROUNDS", 3)
    runs = runs_of("cifar10")
    finish(tmp_path, runs, {"FLARE": 0.7, "MaS": 0.6, "SPF": 0.9})
    assert write_results("cifar10", (0,), {}, runs, tmp_path, FIGURES) == len(runs)
    page = (tmp_path / "README.md").read_text()
    figures = page.split("\n## ")[1:]
    assert [figure.split(":")[0] for figure in figures] == ["Figure 3", "Figure 4", "Figure 6", "Figure 7"]
    assert "Figures 3 and 4 are not in the paper" in page


def test_an_ordering_counts_only_the_seeds_that_both_have():
    values = {"a": {0: 0.5, 1: 0.9}, "b": {0: 0.4}}
    assert beats(values, "a", "b") == "- a better than b: one seed decides nothing (+10.00 points, 1 seed)"
    assert beats(values, "a", "c").endswith("not trained")
    assert "undecided" in beats({"a": {0: 0.4, 1: 0.5}, "b": {0: 0.4, 1: 0.5}}, "a", "b")  # equal is not better
