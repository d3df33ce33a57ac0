"""What a sweep's file makes: the runs, their names, and one line for everything that is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from vfl.config import ConfigError, dump_config, vertical
from vfl.sweeps.pool import LocalProcesses
from vfl.sweeps.sweep import foresee
from vfl.sweeps.sweep_plan import folder_name, load_sweep

BASE = {"name": "base", "training": {"rounds": 7}, "lightweighting": {"beta": 0.1}}


@pytest.fixture
def write(tmp_path: Path):
    """Write a sweep over ``base.yaml`` and return its path."""
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))

    def write_sweep(**sections: Any) -> Path:
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump({"name": "s", "base": "base.yaml"} | sections))
        return path

    return write_sweep


def test_a_grid_is_every_combination_over_the_base(write):
    sweep = load_sweep(write(grid={"lightweighting.alpha": [0, 0.4], "seed": [0, 1, 2]}), ["training.batch_size=32"])
    runs = sweep.runs(threads=3)
    pairs = [(vertical(run.config).lightweighting.alpha, run.config.seed) for run in runs]
    assert pairs == [(alpha, seed) for alpha in (0, 0.4) for seed in (0, 1, 2)]
    assert {(run.config.training.rounds, run.config.training.batch_size) for run in runs} == {(7, 32)}
    assert {run.config.threads for run in runs} == {3}
    assert [run.folder for run in runs][:2] == ["alpha0-seed0", "alpha0-seed1"]


@pytest.mark.parametrize("base", ["quickstart_tables", "quickstart_tables.yaml"])
def test_the_base_may_be_a_shipped_experiment_by_name(write, base):
    sweep = load_sweep(write(base=base, grid={"seed": [0]}))
    assert sweep.base["data"]["dataset"]["kind"] == "breast_cancer"


def test_every_listed_setting_meets_every_point_of_the_grid(write):
    entries = [{"training.local_iterations": 1}, {"training.local_iterations": 3, "lightweighting.alpha": {2: 0.4}}]
    sweep = load_sweep(write(list=entries, grid={"seed": [0, 1]}, settings={"training.rounds": 5}))
    configs = [vertical(run.config) for run in sweep.runs(1)]
    got = [(each.training.local_iterations, each.lightweighting.alpha, each.seed) for each in configs]
    assert got == [(1, 0.0, 0), (1, 0.0, 1), (3, {2: 0.4}, 0), (3, {2: 0.4}, 1)]
    assert sweep.runs(1)[0].config.training.rounds == 5


def test_keys_that_end_alike_are_written_whole(write):
    entries = [{"wire.bits": 4}, {"wire.gradients.bits": 4, "seed": 1}]
    runs = load_sweep(write(list=entries)).runs(1)
    assert [run.folder for run in runs] == ["wire.bits4", "seed1-wire.gradients.bits4"]


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, ("sweep.yaml",)),
        ({"grid": {}}, ("sweep.yaml",)),
        ({"grid": {"seed": []}}, ("sweep.yaml", "grid.seed", "empty")),
        ({"grid": {"lightweighting.alfa": [0.1]}}, ("lightweighting.alfa", "'alpha'")),
        ({"grid": {"lightweighting.alpha": [0.1, 1.5]}}, ("lightweighting.alpha",)),
        ({"grid": {"seed": [1, 1]}}, ("sweep.yaml", "runs")),
        ({"grid": {"seed": [1]}, "list": [{"seed": 2}]}, ("sweep.yaml", "stands")),
        ({"gird": {"seed": [1]}}, ("sweep.yaml", "'grid'")),
        ({"set": {"seed": 1}}, ("sweep.yaml", "'settings'")),
        ({"search": {"trials": 2}}, ("sweep.yaml", "0.2.0")),
        ({"grid": {"seed": 3}}, ("sweep.yaml", "grid.seed")),
        ({"base": "nowhere.yaml", "grid": {"seed": [1]}}, ("nowhere.yaml", "read")),
    ],
)
def test_what_is_wrong_is_said_in_one_line(write, sections: dict[str, Any], expected: tuple[str, ...]):
    with refused(*expected):
        load_sweep(write(**sections)).runs(1)


@pytest.mark.parametrize(
    ("sections", "override"),
    [
        ({"grid": {"seed": [0, 1]}}, "seed=3"),
        ({"list": [{"training.rounds": 3}]}, "training.rounds=4"),
    ],
)
def test_an_override_of_what_varies_is_refused_not_ignored(write, sections: dict[str, Any], override: str):
    key = override.partition("=")[0]
    with pytest.raises(ConfigError, match=f"^{key}: the sweep varies it"):
        load_sweep(write(**sections), [override])
    assert load_sweep(write(**sections), ["threads=2"]).base["threads"] == 2


def test_a_dry_run_tells_what_is_left_and_for_how_long(write, tmp_path: Path):
    sweep = load_sweep(write(grid={"seed": [0, 1, 2]}))
    out = tmp_path / "out"
    assert (
        foresee(sweep, out, LocalProcesses(1))[-1]
        == "3 runs, none finished: how long one takes is known after the first"
    )
    assert not out.exists()
    run = sweep.runs(1)[0]
    (out / "runs" / run.folder).mkdir(parents=True)
    (out / "sweep.json").write_text(json.dumps({"threads": 1}))
    (out / "runs" / run.folder / "config.yaml").write_text(dump_config(run.config))
    costs = ("uplink_bytes", "downlink_bytes", "dense_uplink_bytes", "dense_downlink_bytes")
    summary = dict.fromkeys((*costs, "train_macs", "unpruned_train_macs"), 1)
    summary |= {"rounds": run.config.training.rounds, "wall_time_s": 90.0}
    (out / "runs" / run.folder / "summary.json").write_text(json.dumps(summary))
    lines = foresee(sweep, out, LocalProcesses(2))
    assert lines[:2] == ["seed0: finished", "seed1: to be trained"]
    assert lines[-1] == "1 of 3 runs finished, 90 s each; about 1.5 minutes are left"


numbers = st.one_of(st.integers(-9, 9), st.floats(-1, 1), st.floats(1e-9, 1e30))
values = st.one_of(numbers, st.dictionaries(st.integers(0, 9), numbers, min_size=1, max_size=3), st.text(max_size=4))


@given(st.tuples(values, values), st.tuples(values, values))
def test_equal_names_mean_equal_settings_and_every_name_is_one_folder(one, other):
    names = [folder_name({"a.x": first, "b.x": second}) for first, second in (one, other)]
    if names[0] == names[1]:
        assert all(left == right or str(left) == str(right) for left, right in zip(one, other, strict=True))
    assert all(name == Path(name).name and not name.startswith(".") for name in names)


def test_the_base_itself_is_checked_first(write):
    with refused("training.rounds", "rounds"):
        load_sweep(write(settings={"training.rounds": 0}, grid={"seed": [1]}))


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        *(("sweep_quickstart", 32), ("sweep_cifar10", 48), ("sweep_cifar10_small", 32), ("sweep_horizontal", 10)),
        *(("sweep_lvfl_fig3a", 12), ("sweep_lvfl_fig3b", 12)),
        *(("sweep_flare_fig3", 9), ("sweep_flare_fig7", 5), ("sweep_flare_fig8", 28)),
    ],
)
def test_the_repositorys_sweeps_can_be_planned_and_ignore_no_setting(name: str, runs: int):
    sweep = load_sweep(Path(__file__).parents[2] / "configs" / f"{name}.yaml")
    assert len(sweep.points) == runs
    assert [run.config.warnings() for run in sweep.runs(1) if run.config.warnings()] == []
