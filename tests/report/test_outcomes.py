"""What a report shows beside its curves: predictions, what owners gain together, what leaks."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import PARTIES, ROUNDS, vertical_rows, vertical_summary, write_run
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from refusals import refuses
from rich.console import Console
from scipy import stats
from shorthand import examples

from scripts.audit import show
from vfl.base.estimates import Estimate, meeting_line, over_seeds
from vfl.reports.apart import own_rows, own_variants
from vfl.reports.leakage import AUDIT, audit_rows, read_audit
from vfl.reports.outcomes import calibration, confusion, outcome_drawings, read_predictions
from vfl.reports.reasons import read_reasons
from vfl.reports.runs import load_subject
from vfl.reports.write import first, write_report

TWO = """customer,label,prediction,probability,p_no,p_yes,owners
a,no,no,0.9,0.9,0.1,bank
b,no,yes,0.7,0.3,0.7,bank
c,yes,yes,0.75,0.25,0.75,bank
d,yes,yes,0.95,0.05,0.95,bank
e,yes,no,0.85,0.85,0.15,bank
"""
THREE = """id,label,prediction,probability,p_0,p_1,p_2
0,0,0,0.8,0.8,0.1,0.1
1,1,2,0.6,0.1,0.3,0.6
2,2,2,0.62,0.1,0.28,0.62
"""
REASONS = """customer,label,prediction,probability,p_no,p_yes,owners,reasons_of,log_odds,without_owners,p_a,b,\
p_a.x,p_a.y,rank_b.z,reference_p_a,error_p_a,reference_b,error_b
k,no,no,0.9,0.9,0.1,p_a+b,yes,-2.2,0.1,-1.5,-0.8,-2,0.5,-1,-0.7,0.01,0,0
l,yes,yes,0.7,0.3,0.7,b,yes,0.8,0.1,0.7,0,,,1,,,0,0
"""
AMOUNTS = "id,label,value\n0,10.5,11\n1,-3,-5\n"


def shown(run: Path, text: str) -> list[str]:
    (run / "predictions.csv").write_text(text)
    return [drawing.name for drawing in outcome_drawings(load_subject(run))]


def test_a_report_shows_how_good_each_prediction_is(one_run: Path, tmp_path: Path):
    assert outcome_drawings(load_subject(one_run)) == []
    assert shown(one_run, AMOUNTS) == ["residuals"]
    assert shown(one_run, "id,prediction,probability,p_0,p_1\n0,1,0.6,0.4,0.6\n") == [], "without labels"
    assert shown(one_run, THREE) == ["roc", "calibration", "confusion"]
    assert shown(one_run, TWO) == ["roc", "calibration", "confusion"]
    two = read_predictions(one_run / "predictions.csv")
    assert two is not None
    assert confusion(two).tolist() == [[1, 1], [1, 2]]
    assert calibration(two) == [pytest.approx(each) for each in ((0.125, 0.5), (0.725, 0.5), (0.95, 1.0))]
    roc, *_ = outcome_drawings(load_subject(one_run))
    assert roc.figure.axes[0].get_legend_handles_labels()[1] == ["yes, AUC 0.833"]
    names = write_report(load_subject(one_run), tmp_path / "report")
    assert {"roc.png", "calibration.png", "confusion.png"} <= {*names}


def test_many_classes_are_calibrated_by_the_predicted_one(one_run: Path):
    shown(one_run, THREE)
    found = read_predictions(one_run / "predictions.csv")
    assert found is not None
    assert confusion(found).tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    assert calibration(found) == [pytest.approx((0.61, 0.5)), pytest.approx((0.8, 1.0))]


def test_reasons_have_bars_of_the_first_row_and_of_the_means(one_run: Path):
    assert shown(one_run, REASONS) == ["roc", "calibration", "confusion", "reasons", "reasons_row"]
    predicted = read_predictions(one_run / "predictions.csv")
    assert predicted is not None
    assert predicted.classes == ("no", "yes"), "an owner whose name begins like a probability is no class"
    told = read_reasons(one_run / "predictions.csv")
    assert told is not None
    assert (told.owners, told.columns, told.first) == (("p_a", "b"), ("p_a.x", "p_a.y"), "k")
    *_, average, one = outcome_drawings(load_subject(one_run))

    def bars(axes: Axes) -> dict[str, float]:
        names = [label.get_text() for label in axes.get_yticklabels()]
        return dict(
            zip(
                names,
                [bar.get_bbox().x1 + bar.get_bbox().x0 for bar in axes.patches if isinstance(bar, Rectangle)],
                strict=True,
            )
        )

    assert bars(average.figure.axes[0]) == pytest.approx({"p_a": 1.1, "b": 0.4, "p_a.x": 2, "p_a.y": 0.5})
    assert bars(one.figure.axes[0]) == pytest.approx({"p_a": -1.5, "b": -0.8, "p_a.x": -2, "p_a.y": 0.5})
    named = "id,value,score,without_owners,a,reason_1\n0,3,3,1,2,a.x\n"
    assert shown(one_run, named) == ["reasons", "reasons_row"]


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8))
@examples(100)
def test_the_interval_over_seeds_is_students(differences: list[float]):
    estimate = over_seeds(differences)
    half = stats.sem(differences) * stats.t.ppf(0.975, len(differences) - 1)
    assert estimate.value == pytest.approx(sum(differences) / len(differences), abs=1e-9)
    assert estimate.high - estimate.value == pytest.approx(half, abs=1e-6)
    assert estimate.value - estimate.low == pytest.approx(half, abs=1e-6)


def test_one_seed_decides_nothing():
    for only in (3.0, -3.0):
        assert "train alone" not in meeting_line(over_seeds([only]), "points", 1000, 1.0)
    assert "train alone" in meeting_line(Estimate(0.5, -0.1, 1.1), "points", 1000, 1.0)
    assert "train alone" not in meeting_line(Estimate(0.5, 0.1, 0.9), "points", 1000, 1.0)


def made(folder: Path, gains: dict[int, float]) -> list[Path]:
    """Runs of owners who meet and who never do, by seed, in which meeting gains so much."""
    runs: list[Path] = []
    alone = {"alone": {name: {"accuracy": 0.4 + 0.1 * place} for place, name in enumerate(PARTIES)}}
    for seed, gain in gains.items():
        for local, final in ((0, 0.5 + gain), (ROUNDS, 0.5)):
            summary = vertical_summary(0, 0, final) | (alone if local else {})
            if local:
                summary |= {"uplink_bytes": 10, "downlink_bytes": 10}
            training = {"rounds": ROUNDS, "local_rounds": local}
            rows = vertical_rows(0, 0, final)
            runs.append(write_run(folder / f"{local}-{seed}", {"seed": seed, "training": training}, rows, summary))
    return runs


@pytest.mark.parametrize(("gains", "adds"), [({0: 0.1, 1: 0.11, 2: 0.12}, True), ({0: 0.1, 1: -0.1, 2: 0.0}, False)])
def test_a_report_says_whether_owners_should_meet(tmp_path: Path, gains: dict[int, float], adds: bool):
    subject = load_subject(*made(tmp_path / "runs", gains))
    (line,) = (each for each in first(subject) if "learn alone" in each)
    assert ("train alone" not in line) == adds
    assert f"{100 * sum(gains.values()) / 3:.3f}" in line
    variants = own_variants(subject)
    assert [row[0] for row in own_rows(variants)] == list(PARTIES)
    assert own_rows(variants)[1][1].startswith("50")


def finding(attacker: str, attack: str, known: int, *, leaks: bool) -> dict[str, object]:
    estimates: dict[str, object] = {
        "found": {"value": 0.94, "low": 0.91, "high": 0.97},
        "control": {"value": 0.5, "low": 0.4, "high": 0.6},
    }
    return {"attacker": attacker, "attack": attack, "measure": "AUC", "rows": 200, "known": known, "leaks": leaks} | (
        estimates
    )


ANNA, ONLOOKER = "anna", "who sees anna's embeddings"
FOUND = {
    "rounds": ROUNDS,
    "findings": [
        finding(ANNA, "gradient norm", 0, leaks=True),
        finding(ONLOOKER, "embedding decoder", 100, leaks=False),
        finding(ANNA, "gradient direction", 1, leaks=True),
    ],
    "by_round": {},
    "left_out": ["gradients by round: keep more"],
}


def test_attackers_are_named_once_with_all_that_they_found():
    rows = audit_rows(FOUND)
    assert [row[:3] for row in rows] == [
        (ANNA, "gradient norm", "no row"),
        ("", "gradient direction", "1 row"),
        (ONLOOKER, "embedding decoder", "100 rows"),
    ]
    assert rows[0][3:] == ("AUC", "0.94 (0.91 to 0.97)", "0.50 (0.40 to 0.60)", "yes")


def test_the_console_says_how_many_attacks_found_something():
    console = Console(record=True, width=200)
    show(FOUND, console)  # type: ignore[arg-type]
    text = console.export_text()
    assert text.count(ONLOOKER) == 1
    assert "2 of 3 measurements found more than chance." in text
    assert "not measured: gradients by round" in text


def test_a_report_shows_the_audit_of_the_very_state(one_run: Path, tmp_path: Path):
    assert load_subject(one_run).runs[0].leakage is None
    (one_run / AUDIT).write_text(json.dumps(FOUND))
    write_report(load_subject(one_run), tmp_path / "report")
    for name in ("report.html", "report.md"):
        text = (tmp_path / "report" / name).read_text()
        assert "What leaks" in text
        assert "0.94 (0.91 to 0.97)" in text
        assert "Not measured: gradients by round: keep more." in text
    # A run that was continued since is another one.
    (one_run / AUDIT).write_text(json.dumps(FOUND | {"rounds": ROUNDS - 1}))
    assert load_subject(one_run).runs[0].leakage is None


@pytest.mark.parametrize("text", ["{", "{}", '{"findings": [{"attacker": 1}]}', "[]"])
def test_a_damaged_audit_says_how_to_write_it_again(tmp_path: Path, text: str):
    (tmp_path / AUDIT).write_text(text)
    refuses("leakage.json", lambda: read_audit(tmp_path, ROUNDS), tmp_path)
