"""The paper's figures take the right runs: schedules scale, equal runs are one, forks are where runs part."""

import pytest

from scripts.lab.studies.command import whole_numbers
from scripts.lab.studies.forks import Fork
from scripts.lab.studies.lvfl.plan import (
    FIGURES,
    RATIOS,
    Plan,
    make_plan,
    parse_ends,
    parse_figures,
    pruning_round,
    scale_round,
    scale_rounds,
)
from scripts.lab.studies.runs import StudyRun
from vfl.config import ConfigError, parse_config
from vfl.config.schedules import value_at

pytestmark = pytest.mark.release

PAPER = {
    "name": "paper",
    "training": {"rounds": 100, "optimizer": {"learning_rate": {0: 0.05, 70: 0.005}}},
    "lightweighting": {"alpha": {20: 0.2, 40: 0.4, 60: 0.6}, "beta": {10: 0.2, 30: 0.4, 50: 0.6}},
}
BASE = parse_config(PAPER)


def with_lightweighting(**ratios: object) -> Plan:
    return make_plan(parse_config(PAPER | {"lightweighting": ratios}), FIGURES, (0,))


def run_of(plan: Plan, folder: str) -> StudyRun:
    return next(run for run in plan.runs if run.folder == folder)


def test_all_schedules_keep_their_share_of_the_run():
    scaled = scale_rounds(BASE, 30)
    assert scaled.training.rounds == 30
    assert scaled.lightweighting.alpha == {6: 0.2, 12: 0.4, 18: 0.6}
    assert scaled.lightweighting.beta == {3: 0.2, 9: 0.4, 15: 0.6}
    assert scaled.training.optimizer.learning_rate == {0: 0.05, 21: 0.005}
    assert pruning_round(scaled) == 12
    assert scale_rounds(BASE, 100) == BASE


def test_schedules_by_party_scale_and_numbers_stay():
    config = parse_config(PAPER | {"lightweighting": {"alpha": {"party_2": {50: 0.3}, "party_1": 0.1}, "beta": 0.5}})
    scaled = scale_rounds(config, 10)
    assert scaled.lightweighting.alpha == {"party_2": {5: 0.3}, "party_1": 0.1}
    assert scaled.lightweighting.beta == 0.5


@pytest.mark.parametrize(("round_index", "after", "expected"), [(25, 10, 3), (24, 10, 2), (35, 10, 4), (100, 7, 7)])
def test_rounds_are_rounded_halves_up(round_index: int, after: int, expected: int):
    assert scale_round(round_index, 100, after) == expected


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_too_few_rounds_for_the_schedule_are_refused(rounds: int):
    with pytest.raises(ConfigError, match=f"--rounds: {rounds} are too few: round"):
        scale_rounds(BASE, rounds)


def test_a_change_does_not_move_to_round_0():
    with pytest.raises(ConfigError, match=r"round 4 of lightweighting\.beta would fall on round 0"):
        scale_rounds(parse_config(PAPER | {"lightweighting": {"beta": {4: 0.2}}}), 10)


def test_all_figures_take_ten_runs_per_seed_in_order():
    plan = make_plan(BASE, FIGURES, (3, 1))
    methods = ["NL", "PL", "ML", "L", "alpha0.2", "alpha0.4", "alpha0.6", "beta0.2", "beta0.4", "beta0.6"]
    assert [run.folder for run in plan.runs] == [f"{method}-seed{seed}" for seed in (3, 1) for method in methods]
    assert list(plan.methods) == methods
    assert plan.curves["3a"]["not pruned"] == plan.curves["3b"]["β = 0"] == plan.curves["2"]["NL"] == "NL"
    assert all(run.config.seed == run.seed for run in plan.runs)


@pytest.mark.parametrize(
    ("method", "alpha", "beta"),
    [
        ("NL", {}, {}),
        ("PL", {20: 0.2, 40: 0.4, 60: 0.6}, {}),
        ("ML", {}, {10: 0.2, 30: 0.4, 50: 0.6}),
        ("L", {20: 0.2, 40: 0.4, 60: 0.6}, {10: 0.2, 30: 0.4, 50: 0.6}),
        ("alpha0.4", {40: 0.4}, {}),
        ("beta0.6", {}, {0: 0.6}),
    ],
)
def test_every_run_has_its_ratios_and_the_rest_of_the_configuration(
    method: str, alpha: dict[int, float], beta: dict[int, float]
):
    config = run_of(make_plan(BASE, FIGURES, (5,)), f"{method}-seed5").config
    own = config.lightweighting
    for round_index in range(100):
        assert value_at(own.alpha, round_index) == value_at(alpha, round_index)  # pyright: ignore[reportArgumentType]  # one schedule for all
        assert value_at(own.beta, round_index) == value_at(beta, round_index)  # pyright: ignore[reportArgumentType]  # one schedule for all
    same = {"name": "paper", "seed": 0, "lightweighting": BASE.lightweighting}
    assert config.model_copy(update=same) == BASE


def test_runs_with_equal_ratios_in_every_round_are_one():
    plan = with_lightweighting(alpha={40: 0.4, 100: 0.9}, beta=0.2)
    assert plan.curves["2"] == {"NL": "NL", "PL": "PL", "ML": "ML", "L": "L"}
    assert plan.curves["3a"]["α = 0.4"] == "PL"
    assert plan.curves["3b"]["β = 0.2"] == "ML"
    assert len(plan.runs) == 8
    assert make_plan(BASE, ("3b",), (0,)).methods == ("NL", "beta0.2", "beta0.4", "beta0.6")


def test_runs_fork_where_they_part_and_within_their_seed():
    forks = make_plan(BASE, FIGURES, (0, 1)).forks
    expected = {
        "PL": Fork("NL", 20),
        "ML": Fork("NL", 10),
        "L": Fork("ML", 20),
        "alpha0.2": Fork("NL", 40),
        "alpha0.4": Fork("NL", 40),
        "alpha0.6": Fork("NL", 40),
    }
    assert forks == {
        f"{method}-seed{seed}": Fork(f"{fork.parent}-seed{seed}", fork.round_index)
        for seed in (0, 1)
        for method, fork in expected.items()
    }


def test_a_figure_may_end_earlier_and_its_runs_still_share_their_rounds():
    plan, whole = (make_plan(BASE, FIGURES, (0,), ends) for ends in ({"3a": 52, "3b": 41}, {}))
    expected = {f"alpha{ratio:g}": 52 for ratio in RATIOS} | {f"beta{ratio:g}": 41 for ratio in RATIOS}
    assert plan.rounds == dict.fromkeys(("NL", "PL", "ML", "L"), 100) | expected
    assert plan.forks == whole.forks
    for short, long in zip(plan.runs, whole.runs, strict=True):
        assert short.config.settings_fixed_on_resume() == long.config.settings_fixed_on_resume()
    # Figures of one run, which both need: it trains as long as the longer one shows.
    assert make_plan(BASE, ("3a", "3b"), (0,), {"3a": 52, "3b": 41}).rounds["NL"] == 52


@pytest.mark.parametrize("ends", [{"3a": 40}, {"3a": 101}, {"3b": 0}, {"2": 50}, {"4": 50}])
def test_ends_before_a_pruning_or_after_the_end_or_of_other_figures_are_refused(ends: dict[str, int]):
    with pytest.raises(ConfigError, match=r"^--ends: "):
        make_plan(BASE, ("3a", "3b"), (0,), ends)


def test_a_difference_at_one_party_parts_runs():
    forks = with_lightweighting(alpha={"party_4": {7: 0.5}}, beta=0.0).forks
    assert forks["PL-seed0"] == Fork("NL-seed0", 7)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"evaluation": {"every": 2}}, "evaluation.every"),
        ({"training": {"patience": 3}}, "training.patience"),
        ({"training": {"rounds": 1}}, "training.rounds"),
    ],
)
def test_what_cannot_be_drawn_is_refused(settings: dict[str, object], field: str):
    with pytest.raises(ConfigError, match=f"^{field}: "):
        make_plan(parse_config({"name": "x"} | settings), FIGURES, (0,))


def test_lists_are_read():
    assert whole_numbers("--seeds", "2, 0,11") == (2, 0, 11)
    assert parse_figures("3b,2") == ("2", "3b")
    for text in ("", "1,", "a", "-1", "0,0", "1.5"):
        with pytest.raises(ConfigError, match="--seeds"):
            whole_numbers("--seeds", text)
    with pytest.raises(ConfigError, match="no figure '4'"):
        parse_figures("2,4")
    assert parse_ends("3a=52,3b=41") == {"3a": 52, "3b": 41}
    assert parse_ends("") == {}
    for text in ("3a", "3a=", "3a=-1", "52"):
        with pytest.raises(ConfigError, match=r"--ends: '.*' is no figure"):
            parse_ends(text)
