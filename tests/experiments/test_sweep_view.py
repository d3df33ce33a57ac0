"""What a sweep shows on a terminal: what runs and how far it is, what has ended, what is left."""

import io

import pytest
from rich.console import Console

from vfl.experiments.sweep_view import SweepView

SUMMARY = {"test_accuracy": 0.9123, "savings_compute": 0.5, "savings_communication": 0.25, "wall_time_s": 61.0}
NAME = "lightweighting.alpha0.4-lightweighting.beta0.6-seed1"


def a_view(console: Console) -> SweepView:
    """A sweep of eight runs, two of them kept: two have ended, two run, two are left."""
    view = SweepView(console, total=8, kept=2)
    view.progress("light", 0, 10, None)
    view.progress("light", 10, 10, "accuracy 91.23%")
    view.progress("broken", 1, 10, None)
    view.progress(NAME, 0, 10, None)
    view.progress("slow", 3, 10, "accuracy 50.00%")
    view.progress("slow", 4, 10, None)
    view.end("light", SUMMARY, None)
    view.end("broken", None, "the training loss is not finite")
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
    words = "".join(out.getvalue().split())  # folded where they are too long
    told = (
        f"running {NAME}: 0/10 rounds running slow: 4/10 rounds, test accuracy 50.00% 3 finished, 1 failed, 2 running"
    )
    assert words.startswith(told.replace(" ", "") + ",2left;about")


def test_the_lines_of_what_has_ended_stay_and_those_of_what_runs_do_not():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None, legacy_windows=False)
    with SweepView(console, total=1) as view:
        view.progress("light", 1, 10, None)
        view.end("light", SUMMARY, None)
    assert "1/1 light: test accuracy 91.23%, compute saved 50.0%, communication saved 25.0%, 61 s\n" in out.getvalue()
    erased = out.getvalue().rpartition("\n")[2]
    assert "\x1b[2K" in erased  # the cursor is back where they began, and its lines are gone


def test_without_a_terminal_there_is_a_line_per_run_and_nothing_else():
    _, _, out = shown(40, terminal=False)
    assert out.getvalue().splitlines() == [
        "3/8 light: test accuracy 91.23%, compute saved 50.0%, communication saved 25.0%, 61 s",
        "4/8 broken: FAILED: the training loss is not finite",
    ]
