"""A ``metrics.jsonl`` that was cut, damaged or lost: whoever reads its rounds says which are gone."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from made_runs import ROUNDS, final_accuracy, vertical_rows, vertical_summary, write_run

from vfl.reports.runs import load_runs
from vfl.runs.stored_run import Run

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
