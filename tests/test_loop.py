"""The one loop: the order of its calls, evaluations, checkpoints, restoring, stopping, failures."""

import json
import signal
from pathlib import Path

import pytest
from fake_algorithm import Fake, LoggingStore, Watch, run

from vfl.base.errors import Diverged
from vfl.runs.callbacks import JsonLines
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.loop import Callback, Metrics, TrainingLoop
from vfl.runs.signals import stop_on_signal


def test_the_order_of_calls(tmp_path: Path):
    fake = Fake()
    loop = TrainingLoop(fake, 2, [Watch(fake.log)], checkpoints=LoggingStore(tmp_path, fake.log))
    summary = loop.run()
    assert fake.log == [
        "start",
        *("train 0", "evaluate", "saw 0 accuracy/test", "save 1"),
        *("train 1", "evaluate", "saw 1 accuracy/test", "save 2"),
        *("summary", "end", "close"),
    ]
    assert summary.pop("wall_time_s") > 0
    assert summary == {
        "rounds": 2,
        "test_accuracy": 0.02,
        "test_loss": 0.5,
        "metric": "accuracy",
        "test_metrics": {"accuracy": 0.02},
        "trained": 2,
    }


@pytest.mark.parametrize(
    ("rounds", "every", "evaluated"),
    [(6, 1, [0, 1, 2, 3, 4, 5]), (6, 2, [1, 3, 5]), (5, 2, [1, 3, 4]), (5, 4, [3, 4]), (3, 10, [2]), (1, 1, [0])],
)
def test_evaluation_is_due_every_so_often_and_in_the_last_round(rounds: int, every: int, evaluated: list[int]):
    fake = Fake()
    summary = TrainingLoop(fake, rounds, [Watch(fake.log)], evaluate_every=every).run()
    assert [r for r in range(rounds) if f"saw {r} accuracy/test" in fake.log] == evaluated
    assert fake.log.count("evaluate") == len(evaluated)
    assert summary["test_accuracy"] == rounds / 100


@pytest.mark.parametrize(
    ("rounds", "every", "saved"), [(4, 1, [1, 2, 3, 4]), (6, 2, [2, 4, 6]), (5, 2, [2, 4, 5]), (3, 10, [3])]
)
def test_a_checkpoint_is_due_every_so_often_and_after_the_last_round(tmp_path, rounds, every, saved):
    fake = Fake()
    TrainingLoop(fake, rounds, checkpoints=LoggingStore(tmp_path, fake.log), checkpoint_every=every).run()
    assert [line for line in fake.log if line.startswith("save")] == [f"save {number}" for number in saved]


@pytest.mark.parametrize("rounds_before", [0, 2, 3])
def test_a_restored_run_goes_on_at_the_next_round(tmp_path: Path, rounds_before: int):
    earlier_s = run(tmp_path, rounds_before)[1]["wall_time_s"] if rounds_before else 0.0
    fake = Fake()
    watch = Watch(fake.log)
    _, summary = run(tmp_path, 5, fake, [watch])
    assert [line for line in fake.log if line.startswith("train")] == [f"train {r}" for r in range(rounds_before, 5)]
    assert (summary["rounds"], summary["trained"]) == (5, 5)
    assert summary["wall_time_s"] > earlier_s  # of all sessions


def test_a_finished_run_has_nothing_to_do_and_the_same_summary(tmp_path: Path):
    fake = Fake()
    _, first = run(tmp_path, 3)
    store = LoggingStore(tmp_path / "checkpoints", fake.log)
    again = TrainingLoop(fake, 3, [Watch(fake.log)], checkpoints=store).run()
    assert again == first  # seconds included
    assert fake.log == ["start", "summary", "end", "close"]


def test_a_corrupt_checkpoint_costs_the_rounds_since_the_one_before(tmp_path: Path):
    _, whole = run(tmp_path, 4)
    (tmp_path / "checkpoints/round_000004/owner.json").write_text("{}")
    fake = Fake()
    with pytest.warns(UserWarning, match=r"round 4 is corrupt .* using round 3 instead"):
        _, summary = run(tmp_path, 4, fake)
    assert [line for line in fake.log if line.startswith("train")] == ["train 3"]
    assert {**summary, "wall_time_s": 0} == {**whole, "wall_time_s": 0}


@pytest.mark.parametrize("stop_in", [0, 2])
def test_a_requested_stop_saves_the_round_and_ends(tmp_path: Path, stop_in: int):
    fake = Fake()
    loop, summary = run(tmp_path, 9, fake, [Watch(fake.log, stop_in)], checkpoint_every=5)
    assert (summary["rounds"], loop.stop_reason) == (stop_in + 1, "enough")
    assert loop.checkpoints is not None
    assert loop.checkpoints.rounds() == [stop_in + 1]
    assert fake.log[-2:] == ["end", "close"]
    assert run(tmp_path, 9)[1]["trained"] == 9


def test_a_stop_that_comes_between_two_rounds_saves_too(tmp_path: Path):
    class Late(TrainingLoop):
        def run_round(self, round_index: int) -> None:
            super().run_round(round_index)
            if round_index == 2:
                self.request_stop("after the round's checkpoint was found not to be due")

    store = CheckpointStore(tmp_path)
    Late(Fake(), 9, checkpoints=store, checkpoint_every=5).run()
    assert store.rounds() == [3]


def test_a_stop_before_the_first_round_saves_nothing(tmp_path: Path):
    class Stop(Callback):
        def on_start(self, loop: TrainingLoop) -> None:
            loop.request_stop("at once")

    loop, summary = run(tmp_path, 3, callbacks=[Stop()])
    assert loop.checkpoints is not None
    assert (summary["rounds"], summary["test_accuracy"], loop.checkpoints.rounds()) == (0, None, [])


@pytest.mark.parametrize(
    ("fail", "ended"),
    [("start", []), ("saw 1", ["first", "second"]), ("end", ["first", "second"]), ("train", ["first", "second"])],
)
def test_whatever_fails_callbacks_that_started_end_and_the_algorithm_is_closed(fail: str, ended: list[str]):
    fake = Fake(fail_in=1 if fail == "train" else None)
    logs: dict[str, list[str]] = {"first": [], "second": []}
    failing = Watch([], fail=fail)
    loop = TrainingLoop(fake, 3, [failing, *(Watch(log) for log in logs.values())])
    with pytest.raises(RuntimeError, match="failed"):
        loop.run()
    assert fake.log[-1] == "close"
    assert [name for name, log in logs.items() if log[-1:] == ["end"]] == ended


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_metric_that_is_not_finite_ends_the_run_before_the_round_counts(tmp_path: Path, value: float):
    fake = Fake(accuracies=[0.1, value])
    rows = tmp_path / "metrics.jsonl"
    with pytest.raises(Diverged, match=r"^accuracy/test is not finite: lower training\.optimizer\.learning_rate$"):
        run(tmp_path, 3, fake, [JsonLines(rows)])
    assert [json.loads(line)["round"] for line in rows.read_text().splitlines()] == [0]
    assert CheckpointStore(tmp_path / "checkpoints").rounds() == [1]
    assert fake.log[-1] == "close"


def test_a_failed_restore_closes_the_algorithm(tmp_path: Path):
    run(tmp_path, 1)
    (tmp_path / "checkpoints/round_000001/owner.json").write_text("{}")
    fake = Fake()
    with pytest.raises(ValueError, match="no usable checkpoint"):
        run(tmp_path, 3, fake)
    assert fake.log == ["close"]


def test_an_interrupt_leaves_the_checkpoints_and_closes(tmp_path: Path):
    class Interrupted(Fake):
        def train_round(self, round_index: int) -> Metrics:
            if round_index == 2:
                raise KeyboardInterrupt
            return super().train_round(round_index)

    fake = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 5, fake)
    assert fake.log[-1] == "close"
    assert CheckpointStore(tmp_path / "checkpoints").rounds() == [1, 2]


# signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_interrupts(number: signal.Signals):
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    asked: list[str] = []

    def raise_twice() -> None:
        with stop_on_signal(asked.append):
            signal.raise_signal(number)
            assert asked == [number.name]
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        raise_twice()
    assert asked == [number.name]
    assert {each: signal.getsignal(each) for each in before} == before
