"""Classes of a label column: numbers and spellings, their order, and the one that counts as positive."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from made_runs import vertical_rows, vertical_summary, write_run
from refusals import refused
from shorthand import release
from two_tables import bank_config

import vfl
from vfl.config import ConfigError
from vfl.data.source import LabelData, open_source
from vfl.predict.mode import summary_table
from vfl.reports.runs import load_subject
from vfl.reports.tables import settings_table

ROWS = 40


def labels(folder: Path, spelt: list[str], **data: object) -> LabelData:
    """Read a label column in which the given cells alternate."""
    rows = [f"{row},{row % 7},{spelt[row % len(spelt)]}" for row in range(ROWS)]
    (folder / "bank.csv").write_text("\n".join(["k,a,y", *rows]))
    config = bank_config(folder / "bank.csv", "y", data, features={"a": "number"})
    return open_source(config).split().labels


@pytest.mark.parametrize(
    ("spelt", "classes"),
    [
        (["1", "0"], ("0", "1")),
        (["+1", "-1"], ("-1", "+1")),
        (["10.0", "9.0"], ("9.0", "10.0")),
        (["1.5", "-0.5", "10"], ("-0.5", "1.5", "10")),
        (["1e1", "9"], ("9", "1e1")),
        (["yes", "no"], ("no", "yes")),
        (["9007199254740993", "9007199254740992"], ("9007199254740992", "9007199254740993")),
    ],
)
def test_classes_are_in_the_order_of_their_numbers_or_names(tmp_path: Path, spelt: list[str], classes: tuple[str, ...]):
    with warnings.catch_warnings(action="error"):
        assert labels(tmp_path, spelt).classes == classes


@pytest.mark.parametrize(
    ("spelt", "classes", "told"),
    [
        (["0", "1", "1.0", "0"], ("0", "1"), "'1' and '1.0' are one number and so one class, '1'"),
        (["+1", "1", "-1"], ("-1", "1"), r"'1' and '\+1' are one number"),
        (["Yes", "yes", "No"], ("No", "Yes", "yes"), "'Yes' and 'yes' are different classes; write them alike"),
        (["a  b", "a b", "c"], ("a  b", "a b", "c"), "'a  b' and 'a b' are different classes"),
        (["True", "true", "no"], ("no", "True"), "'True' and 'true' are one value and so one class"),
        (["007", "7", "8"], ("7", "007", "8"), "'7' and '007' are different classes"),
    ],
)
def test_a_class_in_two_spellings_is_told(tmp_path: Path, spelt: list[str], classes: tuple[str, ...], told: str):
    with pytest.warns(UserWarning, match=told):
        found = labels(tmp_path, spelt)
    assert found.classes == classes
    assert set(found.train.values.tolist()) == set(range(len(classes)))


@pytest.mark.parametrize(("given", "second"), [(None, "yes"), ("yes", "yes"), ("no", "no")])
def test_the_positive_class_is_the_second(tmp_path: Path, given: str | None, second: str):
    found = labels(tmp_path, ["yes", "no", "no"], positive_class=given)
    usual = labels(tmp_path, ["yes", "no", "no"])
    assert found.classes[1] == second
    names = [[each.classes[code] for code in each.train.values] for each in (found, usual)]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("spelt", "given", "line"),
    [
        (["yes", "no"], "ye", ("data.positive_class", "'ye'", "'yes'")),
        (["a", "b", "c"], "a", ("data.positive_class", "classes")),
    ],
)
def test_no_other_class_is_positive(tmp_path: Path, spelt: list[str], given: str, line: tuple[str, ...]):
    with refused(*line):
        labels(tmp_path, spelt, positive_class=given)


@pytest.mark.parametrize("positive", ["yes", None])
def test_the_end_and_the_report_name_the_positive_class(tmp_path: Path, positive: str | None):
    summary = vertical_summary(0.2, 0.2, 0.8) | {"metric": "f1", "test_metrics": {"f1": 0.8}}
    summary |= {"positive_class": positive} if positive else {}
    rows = [{**row, "f1/test": 0.8} for row in vertical_rows(0.2, 0.2, 0.8)]
    shown = [
        str(summary_table(summary).caption),
        settings_table(load_subject(write_run(tmp_path / "run", {}, rows, summary))).caption,
    ]
    assert ["of class 'yes'" in each for each in shown] == [positive is not None] * 2


QUICK = {"rounds": 4, "random_state": 0, "settings": {"threads": 1, "training.steps_per_round": 10}}
X = np.random.default_rng(0).normal(size=(60, 3))


@pytest.mark.parametrize("positive", [None, release("good"), "bad"])
def test_an_estimator_names_the_positive_class_and_keeps_its_columns(positive: str | None):
    y = np.where(X[:, 0] + X[:, 1] > 0.4, "good", "bad")
    found = vfl.VerticalClassifier(**QUICK, positive_class=positive).fit(X, y)
    assert found.classes_.tolist() == ["bad", "good"]
    assert found.run_.summary["positive_class"] == (positive or "good")
    known = found.predict_proba(X)
    assert known[y == "good", 1].mean() > known[y == "bad", 1].mean()
    assert (found.predict(X) == found.classes_[known.argmax(axis=1)]).all()


@pytest.mark.release
def test_an_estimator_tells_spellings_and_refuses_another_class():
    with pytest.warns(UserWarning, match="y: 'Yes' and 'yes' are different classes"):
        vfl.VerticalClassifier(**QUICK).fit(X, np.resize(["Yes", "yes", "No"], 60))
    with pytest.raises(ConfigError, match="positive_class: no class is called 'x'"):
        vfl.VerticalClassifier(**QUICK, positive_class="x").fit(X, X[:, 0] > 0)
