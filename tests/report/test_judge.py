"""Pareto fronts, costs up to a target, rows that were lost, and the table at the end of a run."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import ROUNDS, final_accuracy, vertical_rows, vertical_summary, write_run

from vfl.config import parse_config
from vfl.predict.mode import summary_table
from vfl.reports.judge import (
    cheapest_within,
    lost,
    noise,
    pareto_front,
    reached,
    sent_bytes,
    target_score,
    train_macs,
)
from vfl.reports.runs import ReportedRun, Subject, Variant, load_runs, load_subject
from vfl.reports.tables import advice, choice_table, settings_table, tables
from vfl.reports.write import markdown
from vfl.runs.stored_run import Run


def variant(label: str, cost: int, accuracy: float) -> Variant:
    run = ReportedRun((), {"test_accuracy": accuracy, "train_macs": cost}, label, {}, parse_config({"name": "x"}))
    return Variant(label, {}, (run,))


def of_metric(metric: str, label: str, cost: int, score: float) -> Variant:
    plain = variant(label, cost, 0.5)
    reached = {"metric": metric, "test_metrics": {metric: score, "accuracy": 0.5}, "unpruned_train_macs": 3}
    reached |= dict.fromkeys(("uplink_bytes", "downlink_bytes", "dense_uplink_bytes", "dense_downlink_bytes"), 1)
    runs = tuple(replace(run, summary=run.summary | reached) for run in plain.runs)
    return replace(plain, settings={"x": 3 - cost}, runs=runs)


def test_runs_are_judged_by_their_own_metric_and_errors_the_other_way_round():
    auc = [of_metric("auc", "dense", 3, 0.74), of_metric("auc", "light", 2, 0.73), of_metric("auc", "least", 1, 0.6)]
    error = [of_metric("rmse", each.label, int(train_macs(each)), 1 / each.score) for each in auc]
    for variants in (auc, error):
        subject = Subject("s", Path(), tuple(variants), ())
        assert [each.label for each in pareto_front(variants, train_macs)] == ["least", "light", "dense"]
        assert cheapest_within(subject, 2, train_macs).label == "light"
    assert target_score(subject) == 1.5  # 1.351 / 0.9
    below_zero = Subject("s", Path(), (of_metric("r2", "worse than the mean", 1, -0.5),), ())
    assert target_score(below_zero) == -0.55
    assert settings_table(subject).headings[2:4] == ("RMSE", "change (percent)")
    assert settings_table(subject).rows[1][:4] == ("light", "1", "1.37", "+1.37")


points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12)


@given(points)
def test_the_front_is_what_nothing_beats(pairs: list[tuple[int, int]]):
    variants = [variant(str(place), cost, accuracy / 10) for place, (cost, accuracy) in enumerate(pairs)]
    front = {(train_macs(each), each.score) for each in pareto_front(variants, train_macs)}
    every = {(cost, accuracy / 10) for cost, accuracy in pairs}
    beaten = {
        (cost, accuracy)
        for cost, accuracy in every
        for other, better in every
        if (other <= cost and better > accuracy) or (other < cost and better >= accuracy)
    }
    assert front == every - beaten


def test_what_reaching_the_target_took(sweep: Path):
    subject = load_subject(sweep)
    target = target_score(subject)
    assert target == 0.815  # nine tenths of 0.905, in tenths of a percent
    reference = reached(subject.reference, target)
    assert reference is not None
    # Round 4 of 4 for both seeds (0.9 * 3 / 4 is below it); all of the run's bytes, MACs and seconds.
    assert (reference.rounds, reference.bytes, reference.macs, reference.seconds) == (4, 3200, 8000, 2.0)
    half = reached(subject.reference, 0.4)
    assert half is not None
    assert (half.rounds, half.bytes, half.macs) == (2, 1600, 4000)
    assert reached(subject.reference, 0.905) is None  # one of the seeds never was so good


@pytest.mark.filterwarnings("ignore:.*have no row")
def test_a_run_that_lost_rows_reaches_the_target_in_the_round_that_its_row_names(tmp_path: Path):
    rows = vertical_rows(0.0, 0.0, 0.8)
    run = write_run(tmp_path / "run", {}, [rows[0], rows[3]], vertical_summary(0.0, 0.0, 0.8))
    found = reached(load_subject(run).reference, 0.5)
    assert found is not None
    assert (found.rounds, found.bytes) == (4, 1600), "of the rows that are left"


def test_the_cheapest_within_the_points(sweep: Path):
    subject = load_subject(sweep)
    assert cheapest_within(subject, 0.0, sent_bytes) is subject.reference
    assert cheapest_within(subject, 2.0, sent_bytes).label == "α 0, β 0.8"  # loses 1.6 points
    assert cheapest_within(subject, 2.0, train_macs).label == "α 0.2, β 0"  # loses 2 points
    assert cheapest_within(subject, 100, train_macs).settings["lightweighting.alpha"] == 0.6


def seeds(label: str, cost: int, *accuracies: float) -> Variant:
    return Variant(label, {"x": cost}, tuple(variant(label, cost, each).runs[0] for each in accuracies))


def test_costs_within_one_percent_are_ties_that_go_to_the_more_accurate():
    cheap, same, dear = variant("cheap", 1000, 0.90), variant("same", 1010, 0.98), variant("dear", 1011, 0.97)
    assert pareto_front([cheap, same, dear], train_macs) == [same]
    subject = Subject("s", Path(), (replace(dear, settings={"x": 0}), cheap, same), ())
    assert cheapest_within(subject, 10, train_macs) is same
    apart = variant("apart", 1021, 0.99)
    assert pareto_front([same, apart], train_macs) == [same, apart]


def test_a_difference_below_the_spread_of_seeds_is_said_to_be_noise():
    spread = seeds("a", 1, 0.90, 0.94)
    assert noise(spread, seeds("b", 1, 0.50, 0.54)) == ""
    # Variances 0.0008 each, difference 0.01: 4 * 0.0016 / 0.0001 seeds.
    assert noise(spread, seeds("b", 1, 0.91, 0.95)).endswith("64 seeds would tell")
    assert noise(spread, spread).endswith("they are equal")
    assert noise(variant("c", 1, 0.5), spread) == "one seed cannot tell a difference from noise: train three"


def test_there_is_no_advice_where_nothing_saves(sweep: Path):
    subject = load_subject(sweep)
    dense = next(each for each in subject.variants if each.runs[0].bytes_saved == each.runs[0].macs_saved == 0)
    plain = Subject("s", sweep, (dense, replace(dense, label="other", settings={"x": 1})), ())
    assert advice(plain) == ""
    assert next(each.title for each in tables(plain)) == "Settings"
    assert next(each.title for each in tables(subject)) == "What to choose"


def test_where_all_that_saves_loses_too_much_the_advice_says_so(sweep: Path):
    subject = load_subject(sweep)
    worse = max(subject.variants, key=lambda each: lost(each, subject.reference))
    alone = replace(subject, variants=(subject.reference, worse))
    assert advice(alone) == f"Choose {subject.reference.label}: every cheaper setting is worse by more than 1.0 points."
    once = replace(alone, variants=tuple(replace(each, runs=each.runs[:1]) for each in alone.variants))
    assert advice(once).startswith("One seed: no advice")


def test_runs_of_several_folders_are_advised_on_as_well(sweep: Path):
    subject = replace(load_subject(sweep), folder=sweep / "elsewhere")
    assert advice(subject).startswith("Choose α ")
    assert "lvfl train" not in advice(subject)


@pytest.mark.parametrize(("score", "target"), [(0.16, 0.144), (0.9, 0.81), (0.5555, 0.5)])
def test_a_target_that_is_shown_is_the_one_that_is_meant(score: float, target: float):
    subject = Subject("s", Path(), (variant("only", 1, score),), ())
    assert target_score(subject) == target


def test_a_target_of_an_error_keeps_a_decimal():
    assert target_score(Subject("s", Path(), (of_metric("rmse", "only", 1, 12.96),), ())) == 14.4


def test_what_may_be_lost_says_of_what(sweep: Path):
    losses = [cell for row in choice_table(load_subject(sweep)).rows for cell in row[4:] if cell]
    assert losses
    assert all(cell.endswith("points") for cell in losses)


def test_the_advice_is_the_first_thing_said_and_names_the_command(sweep: Path):
    subject = load_subject(sweep)
    said = advice(subject)
    assert said.startswith("Choose α ")
    assert said.endswith("config.yaml")
    assert Path(said.rpartition("lvfl train ")[2]).exists()
    assert markdown(subject, [], []).splitlines()[2] == f"**{said}**"


RATIOS = (0.2, 0.5)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    final = final_accuracy(*RATIOS, seed=0)
    return write_run(tmp_path / "run", {}, vertical_rows(*RATIOS, final), vertical_summary(*RATIOS, final))


def keep(*lines: int) -> Callable[[str], str]:
    return lambda text: "".join(text.splitlines(keepends=True)[number] for number in lines)


SPOILT = {
    "cut at a line's end": (keep(0, 1), "3, 4"),
    "cut within a line": (lambda text: text[: -len(text.splitlines()[-1]) // 2], "4"),
    "empty": (lambda _text: "", "1, 2, 3, 4"),
    "a line in the middle": (keep(0, 2, 3), "2"),
    "a damaged line": (lambda text: text.replace('{"round": 1', '"round": 1', 1), "2"),
    "lost": (None, "1, 2, 3, 4"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_lost_rounds_are_named(how, run: Path):
    path, (spoil, named) = run / "metrics.jsonl", SPOILT[how]
    whole = [json.loads(line) for line in path.read_text().splitlines()]
    if spoil is None:
        path.unlink()
    else:
        path.write_text(spoil(path.read_text()))
    lost = {int(each) - 1 for each in named.split(", ")}
    with pytest.warns(UserWarning, match=rf"metrics\.jsonl: {len(lost)} of {ROUNDS} rounds .*{named}\b") as warned:
        rows = Run(run).metrics
    assert len(warned) == 1
    assert rows == [row for row in whole if row["round"] not in lost]
    with pytest.warns(UserWarning, match="rounds"):
        assert load_runs([run], run).runs[0].summary["rounds"] == ROUNDS


def test_a_whole_file_and_one_of_a_run_under_way_say_nothing(run: Path):
    with warnings.catch_warnings(action="error"):
        assert len(Run(run).metrics) == ROUNDS
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"round": 4, "loss/tr')
        assert len(Run(run).metrics) == ROUNDS
        (run / "summary.json").unlink()
        (run / "metrics.jsonl").unlink()
        assert Run(run).metrics == []


@pytest.mark.parametrize(
    ("alpha", "beta", "changes", "lines"),
    [
        (0.0, 0.0, {}, 0),
        (0.0, 0.0, {"uplink_bytes": 1600.2}, 0),  # a header, of thousands of bytes
        (0.0, 0.0, {"uplink_bytes": 400}, 3),  # as whole numbers of 8 bits
        (0.0, 0.0, {"train_macs": 4000}, 3),  # pruned until the last round
        (0.5, 0.0, {}, 3),
        (0.0, 0.5, {}, 3),
        (0.5, 0.0, {"train_macs": 8000}, 3),  # asked for, and nothing saved: that is worth its line
    ],
)
def test_savings_are_told_where_some_were_asked_for_or_made(
    alpha: float, beta: float, changes: dict[str, float], lines: int
):
    caption = str(summary_table(vertical_summary(alpha, beta, 0.8) | changes).caption)
    assert len(caption.splitlines()) == lines
    assert ("saved" in caption) == (lines > 0)
