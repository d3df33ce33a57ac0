"""What a report shows of a run's predictions, against counts by hand."""

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from vfl.reports.outcomes import calibration, confusion, outcome_drawings, read_predictions
from vfl.reports.reasons import read_reasons
from vfl.reports.runs import load_subject
from vfl.reports.write import write_report

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
