"""An audit's findings where people read them: console, report and model card."""

import json
from pathlib import Path

import pytest
from made_runs import ROUNDS
from refusals import refuses
from rich.console import Console

from scripts.audit import show
from vfl.reports.leakage import AUDIT, audit_rows, read_audit
from vfl.reports.runs import load_subject
from vfl.reports.write import write_report


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
