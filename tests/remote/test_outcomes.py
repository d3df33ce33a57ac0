"""Outcomes: what is kept of scores, how much of it, and what becomes of a file that cannot be used."""

import sqlite3

import pytest
from refusals import refuses

from vfl.core.tasks import Classification, Regression
from vfl.parties.serving import observed_outcomes as module
from vfl.parties.serving.observed_outcomes import Outcomes

TASK = Classification(2, names=("no", "yes"))


def kept(path, log=print):
    return Outcomes(path, log)


def test_periods_are_in_the_order_of_scoring_and_the_latest_scores_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PERIOD", 4)
    monkeypatch.setattr(module, "MOST_SCORES", 10)
    outcomes = kept(tmp_path / "o")
    outcomes.keep("m1", [((f"{n}",), (0.9, 0.1)) for n in range(8)])
    outcomes.keep("m2", [((f"{n}",), (0.2, 0.8)) for n in range(8, 13)])
    assert outcomes.note([((f"{n}",), float(n % 2)) for n in range(13)]) == [("0",), ("1",), ("2",)]
    periods = outcomes.periods(TASK)
    assert [(period.rows, period.models) for period in periods] == [(4, ("m1",)), (4, ("m1", "m2")), (2, ("m2",))]
    assert periods[1].metrics["auc"] == 0.25  # yes: 7 of m1 at 0.1, 9 of m2 at 0.8; no: 8 and 10 at 0.8
    assert outcomes.last(TASK) == (10, outcomes.last(TASK)[1])
    outcomes.close()
    again = kept(tmp_path / "o")
    assert again.periods(TASK) == periods
    again.close()


def test_a_score_without_outcome_is_replaced_and_one_with_it_stays(tmp_path):
    outcomes = kept(tmp_path / "o")
    key = ("7",)
    outcomes.keep("a", [(key, (1.0,))])
    outcomes.keep("b", [(key, (2.0,))])
    assert outcomes.note([(key, 5.0)]) == []
    outcomes.keep("c", [(key, (3.0,))])
    assert outcomes.note([(key, 5.0)]) == []
    (period,) = outcomes.periods(Regression(0, 1))
    assert (period.models, period.rows, period.metrics["mae"]) == (("b", "c"), 2, 2.5)
    outcomes.close()


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "o").write_text("not a database" * 100)
    refuses("serving.outcomes", lambda: kept(tmp_path / "o"), tmp_path / "o")


def test_a_full_disk_stops_no_score_and_is_told_once(tmp_path):
    lines: list[str] = []
    outcomes = kept(tmp_path / "o", lines.append)
    with sqlite3.connect(tmp_path / "o") as other:
        other.execute("DROP TABLE scores")
    for _ in range(3):
        outcomes.keep("a", [(("1",), (1.0,))])
    with pytest.raises(OSError, match="no such table"):
        outcomes.note([(("1",), 0.0)])
    assert len(lines) == 1
    assert "scores cannot be kept" in lines[0]
    outcomes.close()
