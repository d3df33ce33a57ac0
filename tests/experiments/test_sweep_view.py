"""What a sweep shows on a terminal: what runs and how far it is, what has ended, what is left."""

import io
import time

import pytest
from rich.console import Console

from vfl.config import parse_config
from vfl.sweeps.executor import Lost, Progress, QueuedRun, RunEnded
from vfl.sweeps.sweep_view import SweepView

SUMMARY = {"test_accuracy": 0.9123, "savings_compute": 0.5, "savings_communication": 0.25, "wall_time_s": 61.0}
CONFIG = parse_config({"name": "made", "training": {"rounds": 10}})
NAME = "lightweighting.alpha0.4-lightweighting.beta0.6-seed1"


def a_view(console: Console) -> SweepView:
    """A sweep of eight runs, two of them kept: two have ended, two run, two are left."""
    view = SweepView(console, total=8, kept=2)
    light, broken, named, slow = (QueuedRun(name, CONFIG) for name in ("light", "broken", NAME, "slow"))
    view.show(light, Progress(0))
    view.show(light, Progress(10, "accuracy 91.23%"))
    view.show(broken, Progress(1))
    view.show(named, Progress(0, node="near"))
    view.show(slow, Progress(2, node="far"))
    view.show(slow, Progress(3, "accuracy 50.00%", "far"))
    view.show(slow, Progress(4, node="far"))
    view.show(light, RunEnded(finished=True), SUMMARY)
    view.show(broken, RunEnded(finished=False, error="the training loss is not finite"))
    return view


def shown(width: int, *, terminal: bool) -> tuple[SweepView, Console, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None, legacy_windows=False)
    return a_view(console), console, out


@pytest.mark.parametrize("width", [30, 60, 100])
def test_the_lines_name_what_runs_has_ended_and_is_left_at_any_width(width: int):
    view, console, out = shown(width, terminal=True)
    out.truncate(0)
    out.seek(0)
    console.print(view.lines())
    lines = out.getvalue().splitlines()
    assert out.getvalue().isascii()
    assert max(map(len, lines)) <= width
    assert "".join(lines).startswith("3 finished, 1 failed, 2 running, 2 left; about 1 min"[:width])
    if width == 100:
        rows = [line.split() for line in lines[-3:]]
        now = time.strftime("%H:%M")
        assert rows[0] == ["running", "node", "rounds", "test", "ends"]
        assert rows[1][:5] == ["slow", "far", "4/10", "accuracy", "50.00%"]
        assert rows[1][5] >= now or rows[1][5] == "00:00"
        assert rows[2] == [NAME, "near", "0/10"]
        assert "; 2 nodes" in " ".join(lines)


def test_a_run_whose_node_has_died_is_no_longer_there_and_its_work_is_not_counted_twice():
    out = io.StringIO()
    view = SweepView(Console(file=out, width=100), total=1)
    run = QueuedRun("light", CONFIG)
    view.show(run, Progress(0, node="near"))
    view.show(run, Progress(4, node="near"))
    view.show(run, Lost())
    assert "its node died" in out.getvalue()
    view.show(run, Progress(4, node="far"))
    assert view.running["light"].node == "far"
    view.show(run, RunEnded(finished=True), SUMMARY)
    assert view.worked == pytest.approx(1.0)


def test_the_lines_of_what_has_ended_stay_and_those_of_what_runs_do_not():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None, legacy_windows=False)
    with SweepView(console, total=1) as view:
        view.show(QueuedRun("light", CONFIG), Progress(1))
        view.show(QueuedRun("light", CONFIG), RunEnded(finished=True), SUMMARY)
    assert "1/1 light: test accuracy 91.23%, compute saved 50.0%, communication saved 25.0%, 61 s\n" in out.getvalue()
    erased = out.getvalue().rpartition("\n")[2]
    assert "\x1b[2K" in erased  # the cursor is back where they began, and its lines are gone


def test_without_a_terminal_there_is_a_line_per_run_and_nothing_else():
    _, _, out = shown(40, terminal=False)
    assert out.getvalue().splitlines() == [
        "3/8 light: test accuracy 91.23%, compute saved 50.0%, communication saved 25.0%, 61 s",
        "4/8 broken: FAILED: the training loss is not finite",
    ]
