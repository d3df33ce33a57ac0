"""The loop's callbacks: early stopping, rows of metrics, TensorBoard's scalars, progress."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_algorithm import Fake, Watch, run
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vfl.runs.callbacks import EarlyStop, JsonLines, ShowProgress
from vfl.runs.loop import Callback, Metrics, TrainingLoop
from vfl.runs.tensorboard import TensorBoard

# early stopping


@pytest.mark.parametrize(
    ("accuracies", "patience", "rounds"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5], 1, 5),
        ([0.1, 0.2, 0.2, 0.4, 0.5], 1, 3),  # equal is not better
        ([0.5, 0.4, 0.6, 0.1, 0.2], 2, 5),
        ([0.5, 0.4, 0.3, 0.9, 0.9], 2, 3),
        ([0.0, 0.0, 0.0, 0.0, 0.0], 3, 4),
    ],
)
def test_early_stop_waits_for_so_many_evaluations_without_a_better_one(tmp_path, accuracies, patience, rounds):
    loop, summary = run(tmp_path, 5, Fake(accuracies), [EarlyStop(patience)])
    assert summary["rounds"] == rounds
    assert summary["test_accuracy"] == accuracies[rounds - 1]
    if rounds < 5:
        assert f"no better test accuracy than {max(accuracies[:rounds]):.2%}" in str(loop.stop_reason)


def test_early_stop_counts_evaluations_and_not_rounds(tmp_path: Path):
    _, summary = run(tmp_path, 20, Fake([0.5] * 20), [EarlyStop(2)], evaluate_every=3)
    assert summary["rounds"] == 9


@pytest.mark.parametrize("split", [1, 2, 3])
def test_early_stop_goes_on_counting_after_a_resume(tmp_path: Path, split: int):
    accuracies = [0.5, 0.4, 0.45, 0.49, 0.6]
    first = Fake(accuracies)
    run(tmp_path, 5, first, [EarlyStop(3), Watch(first.log, stop_in=split - 1)])
    loop, summary = run(tmp_path, 5, Fake(accuracies), [EarlyStop(3)])
    assert summary["rounds"] == 4
    assert loop.stop_reason == "no better test accuracy than 50.00% in 3 evaluations"


def test_a_run_that_stopped_early_stays_stopped(tmp_path: Path):
    _, first = run(tmp_path, 5, Fake([0.5] * 5), [EarlyStop(1)])
    fake = Fake([0.5] * 5)
    loop, summary = run(tmp_path, 5, fake, [EarlyStop(1)])
    assert summary == first
    assert "train 2" not in fake.log
    assert loop.stop_reason is not None


# metrics.jsonl


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_row_per_round_is_readable_at_once(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"

    class Reader(Callback):
        def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
            assert rows_of(path)[-1] == {"round": round_index, **metrics}

    run(tmp_path, 3, callbacks=[JsonLines(path), Reader()], evaluate_every=2)
    rows = rows_of(path)
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert ["accuracy/test" in row for row in rows] == [False, True, True]


@pytest.mark.parametrize(
    "tail",
    [
        "",
        '{"round": 4, "loss/train": 0.1}\n{"round": 5, "loss/train": 0.1}\n',  # written, but their checkpoint is lost
        '{"round": 4, "loss/tr',
        '{"round": 4, "loss/train": 0.1}\n{"rou',
        "{",
        "[4]\n",
        '{"loss/train": 0.1}\n',
        "\x00\x00\x00",
        "\x80\xff",
    ],
)
def test_a_resume_keeps_the_rows_before_it_and_writes_the_others_again(tmp_path: Path, tail: str):
    path = tmp_path / "metrics.jsonl"
    run(tmp_path / "whole", 6, callbacks=[JsonLines(tmp_path / "whole.jsonl")])
    run(tmp_path, 4, callbacks=[JsonLines(path)])
    path.write_bytes(path.read_bytes() + tail.encode("latin-1"))
    run(tmp_path, 6, callbacks=[JsonLines(path)])
    assert path.read_text() == (tmp_path / "whole.jsonl").read_text()


def test_a_run_without_a_checkpoint_starts_its_rows_anew(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 0, "loss/train": 9.0}\n{"round": 1')
    run(tmp_path, 1, callbacks=[JsonLines(path)])
    assert rows_of(path) == [{"round": 0, "loss/train": 1.0, "accuracy/test": 0.01, "loss/test": 0.5}]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda rows: ["{" + rows[0], *rows[1:]], r"rounds \[1\] are damaged or missing"),
        (lambda rows: [rows[0], *rows[2:]], r"rounds \[2\] are damaged or missing"),
        (lambda rows: [rows[0].replace("0.", "1."), *rows[1:]], "a row is not as it was written"),
        (lambda rows: [], r"rounds \[1, 2, 3, 4\] are damaged or missing"),
    ],
)
def test_a_damaged_early_row_is_found_and_said(tmp_path: Path, damage: Any, said: str):
    path = tmp_path / "metrics.jsonl"
    run(tmp_path, 4, callbacks=[JsonLines(path)])
    path.write_text("".join(damage(path.read_text().splitlines(keepends=True))))
    with pytest.warns(UserWarning, match=f"metrics.jsonl: {said}"):
        run(tmp_path, 6, callbacks=[JsonLines(path)])


# TensorBoard


@pytest.fixture
def ordered_event_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every session a second of its own: event files are read in the order of their names."""
    seconds = iter(range(1_700_000_000, 1_800_000_000))
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time.time", lambda: next(seconds))


def scalars_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    tags: list[str] = events.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def test_tensorboard_has_every_metric_at_its_round(tmp_path: Path):
    run(tmp_path, 3, callbacks=[TensorBoard(tmp_path)], evaluate_every=2)
    scalars = scalars_of(tmp_path)
    assert scalars.keys() == {"loss/train", "accuracy/test", "loss/test"}
    assert scalars["loss/train"] == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    assert [step for step, _ in scalars["accuracy/test"]] == [1, 2]


@pytest.mark.usefixtures("ordered_event_files")
@pytest.mark.parametrize("every", [2, 5])
def test_tensorboard_shows_the_rounds_that_a_resume_repeats_once(tmp_path: Path, every: int):
    class Other(Fake):  # its losses tell which session they are of
        def train_round(self, round_index: int) -> Metrics:
            return {"loss/train": super().train_round(round_index)["loss/train"] + 100}

    with pytest.raises(RuntimeError):
        run(tmp_path, 6, Fake(fail_in=3), [TensorBoard(tmp_path)], checkpoint_every=every)
    assert [step for step, _ in scalars_of(tmp_path)["loss/train"]] == [0, 1, 2]
    run(tmp_path, 6, Other(), [TensorBoard(tmp_path)], checkpoint_every=every)
    kept = 2 if every == 2 else 0  # the round of the last checkpoint, none at all for 5
    assert [(step, value > 100) for step, value in scalars_of(tmp_path)["loss/train"]] == [
        (step, step >= kept) for step in range(6)
    ]


def test_tensorboard_gets_no_file_from_a_run_with_nothing_to_do(tmp_path: Path):
    run(tmp_path, 2, callbacks=[TensorBoard(tmp_path)])
    files = {path: path.read_bytes() for path in tmp_path.glob("events.*")}
    run(tmp_path, 2, callbacks=[TensorBoard(tmp_path)])
    assert {path: path.read_bytes() for path in tmp_path.glob("events.*")} == files


# progress


class Steps(Fake):
    """Reports the exchanges of its rounds, as algorithms do."""

    progress: ShowProgress

    def train_round(self, round_index: int) -> Metrics:
        metrics = super().train_round(round_index)
        for done in range(3):
            self.progress.on_step(done + 1, 3)
        return metrics | {"savings/compute": 0.25, "savings/communication": 0.5}


def show(folder: Path, rounds: int, console: Console, **fake: Any) -> None:
    algorithm = Steps(**fake)
    shown = {"savings/compute": "saved: compute {:.0%}", "savings/communication": "communication {:.0%}"}
    algorithm.progress = ShowProgress(console, shown)
    run(folder, rounds, algorithm, [algorithm.progress], evaluate_every=2)


def test_progress_is_one_plain_line_per_round_where_there_is_no_terminal(tmp_path: Path):
    file = io.StringIO()
    show(tmp_path, 3, Console(file=file, width=40))  # narrower than the lines
    saved = "saved: compute 25%  communication 50%"
    assert file.getvalue().rstrip("\n").split("\n") == [
        f"1 of 3 rounds  loss 1.0000  {saved}",
        f"2 of 3 rounds  loss 0.5000  test accuracy 2.00%  {saved}",
        f"3 of 3 rounds  loss 0.3333  test accuracy 3.00%  {saved}",
    ]
    file = io.StringIO()
    show(tmp_path, 4, Console(file=file))
    assert file.getvalue().startswith("resumed after 3 of 4 rounds; goes on with round 4\n4 of 4 rounds  loss 0.2500")


class Clock:
    """A clock that a step moves on by as many seconds as it is told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Slow(Fake):
    """Takes the given seconds for each of a round's three steps."""

    progress: ShowProgress
    step_s: float = 100.0

    def train_round(self, round_index: int) -> Metrics:
        for done in range(3):
            self.progress.clock.now_s += self.step_s  # pyright: ignore[reportFunctionMemberAccess]
            self.progress.on_step(done + 1, 3)
        return super().train_round(round_index)


def slowly(folder: Path, rounds: int, console: Console, step_s: float = 100.0) -> None:
    algorithm = Slow()
    algorithm.step_s = step_s
    algorithm.progress = ShowProgress(console, {})
    algorithm.progress.clock = Clock()
    run(folder, rounds, algorithm, [algorithm.progress], evaluate_every=9)


def test_the_time_left_is_that_of_the_whole_training_and_a_long_round_says_how_far_it_is(tmp_path: Path):
    """The later rounds take as long as the first: that is told, so that only the first one says it."""
    file = io.StringIO()
    slowly(tmp_path, 4, Console(file=file))
    assert [line.rstrip() for line in file.getvalue().splitlines()] == [
        "0 of 4 rounds  step 1 of 3 after 2 min  18 min left",
        "1 of 4 rounds  loss 1.0000  15 min left",
        "2 of 4 rounds  loss 0.5000  10 min left",
        "3 of 4 rounds  loss 0.3333  5 min left",
        "4 of 4 rounds  loss 0.2500  test accuracy 4.00%",
    ]
    file = io.StringIO()
    slowly(tmp_path, 6, Console(file=file))
    assert file.getvalue().splitlines()[:2] == [
        "resumed after 4 of 6 rounds; goes on with round 5",
        "4 of 6 rounds  step 1 of 3 after 2 min  8 min left",
    ]
    file = io.StringIO()
    slowly(tmp_path, 6, Console(file=file))
    assert file.getvalue() == "resumed after 6 of 6 rounds; no round is left\n"


def test_the_bar_is_that_of_the_whole_training(tmp_path: Path):
    file = io.StringIO()
    slowly(tmp_path, 4, Console(file=file, force_terminal=True, width=80, _environ={}))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert "5 min left" in plain
    assert "step " not in plain


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_progress_is_a_bar_on_a_terminal_above_which_the_rounds_stay(tmp_path: Path, width: int):
    file = io.StringIO()
    show(tmp_path, 2, Console(file=file, force_terminal=True, width=width, _environ={}))
    text = file.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert text.startswith(HIDE)
    assert re.search(r"1 of 2 rounds [━╺╸]+ ", plain), "also after the first round's line"
    assert "0 of 2 rounds ━" in plain
    assert "3 of 2" not in plain
    assert "2 of 2 rounds  loss 0.5000  test accuracy 2.00%" in plain
    assert text.rfind(SHOW) > text.rfind(HIDE)  # the cursor is back


def test_progress_gives_the_cursor_back_when_the_run_fails(tmp_path: Path):
    file = io.StringIO()
    with pytest.raises(RuntimeError):
        show(tmp_path, 3, Console(file=file, force_terminal=True, width=120, _environ={}), fail_in=1)
    assert file.getvalue().rfind(SHOW) > file.getvalue().rfind(HIDE)
