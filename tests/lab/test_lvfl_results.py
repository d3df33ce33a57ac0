"""The report's numbers and verdicts, from made-up metrics whose right answers are worked out by hand."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from scripts.lab.studies.lvfl.findings import findings
from scripts.lab.studies.lvfl.page import columns, differences, results_sections, saved_with_broadcast, setting
from scripts.lab.studies.lvfl.plan import make_plan
from scripts.lab.studies.lvfl.plots import draw_figures
from scripts.lab.studies.lvfl.prunings import prunings
from scripts.lab.studies.runs import StudyResult, StudyRun, results_table
from vfl.config import ConfigError, dump_config, parse_config
from vfl.runs.stored_run import is_finished

pytestmark = pytest.mark.release

ROUNDS = 10
BASE = parse_config(
    {
        "name": "made-up",
        "training": {"rounds": ROUNDS},
        "lightweighting": {"alpha": {2: 0.2, 6: 0.6}, "beta": {1: 0.4}},
    }
)
NL = [0.1, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.72, 0.74, 0.75]


def result(method: str, accuracy: list[float], alpha: dict[int, float] | None = None, seed: int = 0) -> StudyResult:
    rows: list[dict[str, float]] = []
    reached = 0.0
    for index, value in enumerate(accuracy):
        reached = (alpha or {}).get(index, reached)
        row = {"round": index, "accuracy/test": value, "loss/train": 2.0, "loss/test": 1.0}
        row |= {"savings/compute": 0.0, "savings/communication": 0.25}
        for party, factor in (("party_1", 1), ("party_2", 3)):
            row |= {f"alpha/{party}": reached, f"beta/{party}": 0.1 * factor, f"macs_per_sample/{party}": 5.0}
            row |= {
                f"uplink_bytes/{party}": 10.0 * factor,
                f"downlink_bytes/{party}": 1.0,
                f"train_time_s/{party}": 2.0,
            }
        rows.append(row)
    summary: dict[str, Any] = {
        "rounds": len(rows),
        "test_accuracy": accuracy[-1],
        "wall_time_s": 12.4 + seed,
        "train_macs": 60,
    }
    summary |= {"unpruned_train_macs": 100, "uplink_bytes": 1_500_000, "dense_uplink_bytes": 2_000_000}
    summary |= {"downlink_bytes": 500_000, "dense_downlink_bytes": 3_000_000}
    return StudyResult(tuple(rows), summary, "", method, seed)


def pruned_at_4(method: str, *after: float) -> StudyResult:
    return result(method, [*NL[:4], *after], {4: float(method.removeprefix("alpha"))})


PL = result("PL", [0.1, 0.3, 0.2, 0.25, 0.3, 0.5, 0.4, 0.45, 0.48, 0.49], {2: 0.2, 6: 0.6})
ALL = [
    result("NL", NL),
    PL,
    result("ML", [value - 0.01 for value in NL]),
    pruned_at_4("alpha0.2", 0.45, 0.5, 0.6, 0.6, 0.6, 0.6),
    pruned_at_4("alpha0.4", 0.40, 0.45, 0.5, 0.6, 0.6, 0.6),
    pruned_at_4("alpha0.6", 0.30, 0.35, 0.4, 0.42, 0.43, 0.44),
    result("beta0.2", [value + 0.04 for value in NL]),
    result("beta0.4", [value - 0.02 for value in NL]),
    result("beta0.6", [value - 0.01 for value in NL]),
]
PLAN = make_plan(BASE, ("2", "3a", "3b"), (0,))


def test_a_pruning_s_drop_and_recovery():
    first, second = prunings(PL)
    assert (first.round_index, first.alpha, first.before, first.during) == (2, 0.2, 0.3, 0.2)
    assert first.drop == pytest.approx(0.1)
    assert (first.recovery_rounds, first.until) == (2, 6)  # 0.3 again at round 4, before round 6 prunes
    assert (second.round_index, second.recovery_rounds, second.until) == (6, None, 10)
    assert second.drop == pytest.approx(0.1)


def test_a_recovery_after_the_next_pruning_is_not_this_one_s():
    first, second = prunings(result("PL", [0.5, 0.3, 0.4, 0.2, 0.5], {1: 0.1, 3: 0.2}))
    assert (first.recovery_rounds, first.until, second.recovery_rounds) == (None, 3, 1)


def test_no_drop_recovers_at_once_and_round_0_has_nothing_before():
    (only,) = prunings(result("PL", [0.1, 0.2, 0.3], {0: 0.1, 1: 0.2}))
    assert (only.round_index, only.recovery_rounds) == (1, 0)
    assert only.drop == pytest.approx(-0.1)
    assert prunings(result("NL", NL)) == []


def test_savings_and_means():
    assert PL.macs_saved == pytest.approx(0.4)
    assert PL.uplink_saved == pytest.approx(0.25)
    assert PL.bytes_saved == pytest.approx(0.6)


def test_a_broadcast_head_makes_the_share_saved_smaller():
    ten_steps = parse_config(
        {"name": "p", "data": {"train_samples": 100}, "training": {"batch_size": 10, "rounds": 10}}
    )
    head = {"bytes_by_kind": {"downlink": {"head": 100_000}}}
    run = StudyResult(PL.rows, PL.summary | {"parties": {"party_1": head, "party_2": head}}, "", "PL", 0)
    # 2 of 5 MB are sent; nine more heads per round are 1.8 MB of both.
    assert saved_with_broadcast(run, ten_steps) == pytest.approx(1 - 3.8 / 6.8)


def test_the_tables():
    two_seeds = make_plan(BASE, ("2",), (0, 1))
    other = result("PL", [0.1, 0.4, 0.2, 0.4, 0.4, 0.5, 0.4, 0.45, 0.5, 0.59], {2: 0.2, 6: 0.6}, seed=1)
    lines = "\n".join(results_sections(two_seeds, [PL, other])).splitlines()
    # Of the first pruning the drops are 10 and 20 points, of the second 10 each; seed 1 is back at rounds 3 and 8.
    costs = "| PL | 2 | 10 | 54.0 % ± 7.1 % | 40.0 % ± 0.0 % | 1.5 MB | 500 kB | 60.0 % ± 0.0 % | 25.0 % ± 0.0 % |"
    assert any(line.startswith(costs) for line in lines)
    assert "| PL | 2 | 0.2 | 35.0 % ± 7.1 % | 20.0 % ± 0.0 % | 15.0 points ± 7.1 points | 2, 1 |" in lines
    assert "| PL | 6 | 0.6 | 50.0 % ± 0.0 % | 40.0 % ± 0.0 % | 10.0 points ± 0.0 points | not in 4, 2 |" in lines


def table(results: list[StudyResult], seeds: tuple[int, ...]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return difference and verdict by claim and what was measured."""
    lines = findings(make_plan(BASE, ("2", "3a", "3b"), seeds), results)
    lines = lines[
        lines.index("|---|--:|--:|--:|", lines.index("| claim of the paper | measured | difference |  |")) + 1 :
    ]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {(row[0], row[1]): (row[2], row[3]) for row in cells if len(row) == 4}


def test_claims_are_judged_over_seeds_beside_the_run_that_they_share():
    seeds = (0, 1, 2)
    shifted: list[StudyResult] = []
    for each, seed in product(ALL, seeds):  # each seed at another level, which pairing takes away
        rows = [row | {"accuracy/test": row["accuracy/test"] + 0.1 * seed} for row in each.rows]
        shifted.append(StudyResult(tuple(rows), each.summary, "", each.method, seed))
    found = table(shifted, seeds)
    # alpha0.2 falls from 50 to 45 % where NL rises from 50 to 60 %, equally at every seed.
    assert found["a pruning lowers the accuracy", "alpha0.2, round 4: change over it, less NL's"] == (
        "-15.0 ± 0.0",
        "holds",
    )
    # From round 4 to 9 it rises by 15 points, and so does NL.
    assert found["... which then recovers", "alpha0.2, round 4: change from it to round 9, less NL's"][1] == "undecided"
    assert found["a larger α drops further", "alpha0.4 - alpha0.2, pruning's round"] == ("-5.0 ± 0.0", "holds")
    # Rounds 1 to 3 of NL have the mean 40 %, of beta0.2 44 %.
    assert found["a smaller β converges faster", "beta0.2 - NL, rounds 1 to 3"] == ("+4.0 ± 0.0", "REVERSED")
    assert found["β costs less than α", "ML - PL, rounds 2 to 9"][1] == "holds"


def test_one_seed_decides_nothing_and_missing_runs_are_left_out():
    found = table(ALL, (0,))
    assert {verdict for _, verdict in found.values()} == {"one seed decides nothing"}
    assert not any("beta0.6" in measured for _, measured in table(ALL[:-1], (0,)))
    assert table([], (0,)) == {}


def test_a_figure_that_ends_earlier_is_compared_in_its_own_rounds():
    plan = make_plan(BASE, ("2", "3a", "3b"), (0,), {"3a": 9, "3b": 8})
    short = [StudyResult(run.rows[: plan.rounds[run.method]], run.summary, "", run.method, 0) for run in ALL]
    lines = findings(plan, short)
    # At the end of alpha0.2 it has 60 %, NL 74; beta0.2 is 4 points above NL everywhere.
    assert "| alpha0.2 | 8 to 8 | -14.0 | +0.000 | +0.00 |" in lines
    assert "| beta0.2 | 7 to 7 | +4.0 | +0.000 | +0.00 |" in lines
    assert any(line.startswith("| ML | 9 to 9 | -1.0 |") for line in lines)
    assert any("beta0.2 - alpha0.2, rounds 4 to 7" in line for line in lines)
    assert any("alpha0.4 - alpha0.2, last rounds | +0.0 |" in line for line in lines)


def test_what_was_tested_around_a_pruning_is_told():
    rows = [dict(row) for row in PL.rows]
    for start in (2, 6):
        rows[start] |= {"accuracy/test_before_pruning": 0.3, "accuracy/test_after_pruning": 0.1}
    found = table([StudyResult(tuple(rows), PL.summary, "", "PL", 0)], (0,))
    assert found["a pruning lowers the accuracy", "PL, round 2, right after it, no step"][0] == "-20.0"


def test_csv_has_a_line_per_round():
    headings, *rows = results_table([PL], columns())
    assert len(rows) == ROUNDS
    third = dict(zip(headings, rows[2], strict=True))
    assert (third["method"], third["round"], float(str(third["accuracy/test"]))) == ("PL", 2, 0.2)
    assert (third["alpha"], third["beta"]) == (0.2, pytest.approx(0.2))
    assert (third["uplink_bytes"], third["macs_per_sample"]) == (40.0, 10.0)


def test_a_smaller_setting_is_said_to_be_smaller():
    paper = {"name": "p", "data": {"dataset": {"kind": "cifar10"}, "train_samples": 10000}, "training": {"rounds": 100}}
    assert differences(parse_config(paper)) == []
    assert "The scale is the paper's" in setting(make_plan(parse_config(paper), ("2",), (0,)))[0]
    assert differences(BASE) == [
        "digits instead of CIFAR-10",
        "all training images instead of 10000",
        "10 rounds instead of 100",
    ]
    text = "\n".join(setting(PLAN))
    assert "**This is not the paper's setting: digits" in text
    assert "- Schedules: α {2: 0.2, 6: 0.6}; β {1: 0.4};" in text


def test_figures_are_drawn_also_of_a_part(tmp_path: Path):
    assert draw_figures(PLAN, ALL, tmp_path) == ["fig2_accuracy.png", "fig3a.png", "fig3b.png"]  # L is missing
    seeds = [result(method, NL, seed=seed) for method in ("NL", "L") for seed in (0, 1)]
    assert draw_figures(PLAN, seeds, tmp_path)[:2] == ["fig2_accuracy.png", "fig2_ratios.png"]
    with Image.open(tmp_path / "fig2_ratios.png") as image:
        assert image.width == 715
    assert draw_figures(PLAN, [], tmp_path) == []


def write_run(runs: Path, run: StudyRun, rounds: int = ROUNDS) -> Path:
    folder = runs / run.folder
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(run.config))
    (folder / "summary.json").write_text(json.dumps({"rounds": rounds, "uplink_bytes": 1, "train_macs": 1}))
    return folder


def test_finished_is_all_rounds_of_the_same_configuration(tmp_path: Path):
    run, other = PLAN.runs[:2]
    assert not is_finished(tmp_path / "nothing", run.config)
    assert is_finished(write_run(tmp_path / "a", run), run.config)
    assert not is_finished(write_run(tmp_path / "b", run, rounds=9), run.config)
    with pytest.raises(ConfigError, match=r"--out: .* holds a run with other settings: lightweighting\.alpha"):
        is_finished(tmp_path / "a" / run.folder, other.config)
