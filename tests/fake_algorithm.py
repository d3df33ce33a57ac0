"""An algorithm that only writes down what is asked of it, for tests of the loop and its callbacks."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vfl.runs.checkpoint import CheckpointStore, State
from vfl.runs.loop import Callback, Metrics, TrainingLoop


class Fake:
    """An algorithm whose only weight is the number of rounds it took.

    Args:
        accuracies: what the evaluations return, one per round.
        fail_in: round that fails.
    """

    def __init__(self, accuracies: list[float] | None = None, fail_in: int | None = None) -> None:
        self.accuracies = accuracies
        self.fail_in = fail_in
        self.trained = 0
        self.log: list[str] = []

    def train_round(self, round_index: int) -> Metrics:
        assert round_index == self.trained
        if round_index == self.fail_in:
            raise RuntimeError("the algorithm failed")
        self.log.append(f"train {round_index}")
        self.trained += 1
        return {"loss/train": 1.0 / self.trained}

    metric = "accuracy"
    rounds_ahead = 0

    def evaluate(self) -> Metrics:
        self.log.append("evaluate")
        accuracy = self.accuracies[self.trained - 1] if self.accuracies else self.trained / 100
        return {"accuracy/test": accuracy, "loss/test": 0.5}

    def summary(self) -> dict[str, Any]:
        self.log.append("summary")
        return {"trained": self.trained}

    def state_dict(self) -> dict[str, State]:
        return {"owner": {"trained": self.trained}}

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        self.trained = state["owner"]["trained"]

    def close(self) -> None:
        self.log.append("close")


class Watch(Callback):
    """Writes what it sees into the algorithm's own log; may ask for a stop, or fail, in a round."""

    def __init__(self, log: list[str], stop_in: int | None = None, fail: str = "") -> None:
        self.log = log
        self.stop_in = stop_in
        self.fail = fail

    def on_start(self, loop: TrainingLoop) -> None:
        self._see("start")

    def on_round(self, loop: TrainingLoop, round_index: int, metrics: Metrics) -> None:
        assert loop.next_round == round_index + 1
        self._see(f"saw {round_index} {sorted(metrics)[0]}")
        if round_index == self.stop_in:
            loop.request_stop("enough")

    def on_end(self, loop: TrainingLoop) -> None:
        self._see("end")

    def _see(self, event: str) -> None:
        self.log.append(event)
        if self.fail and event.startswith(self.fail):
            raise RuntimeError("a callback failed")


class LoggingStore(CheckpointStore):
    """A store that writes into the algorithm's log when it saves."""

    def __init__(self, directory: Path, log: list[str]) -> None:
        super().__init__(directory)
        self.log = log

    def save(self, done: int, sections: Mapping[str, State], among: Collection[int] | None = None) -> Path:
        self.log.append(f"save {done}")
        return super().save(done, sections, among)


def run(folder: Path, rounds: int, fake: Fake | None = None, callbacks: list[Callback] | None = None, **every: Any):
    """Run the fake, with what is saved in ``folder``; return the loop and the summary."""
    fake = fake or Fake()
    store = CheckpointStore(folder / "checkpoints")
    loop = TrainingLoop(fake, rounds, callbacks or [], checkpoints=store, **every)
    return loop, loop.run()
