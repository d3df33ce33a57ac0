"""Which training is next, whatever the executor."""

from collections.abc import Callable, Sequence
from pathlib import Path

from vfl.config import ExperimentConfig
from vfl.sweeps.executor import Event, Executor, Progress, QueuedRun, RunEnded

ROUNDS = 3


class Steps(Executor[str]):
    """Trains three runs at once, each for three rounds, a round of each at a time."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        self.began: dict[str, dict[str, int]] = {}
        """By run: the rounds that all had done when it began."""

    def threads(self, wanted: int | None) -> int:
        return 1

    def slots(self, run: QueuedRun) -> int:
        return 3

    def check(self, runs_dir: Path) -> None: ...

    def start(self, run: QueuedRun, runs_dir: Path) -> str:
        self.began[run.folder] = dict(self.done)
        self.done[run.folder] = 0
        return run.folder

    def wait(self, handles: Sequence[str]) -> Sequence[str]:
        return handles

    def receive(self, handle: str, *, interrupted: bool) -> Event:
        if self.done[handle] == ROUNDS:
            return RunEnded(finished=True)
        self.done[handle] += 1
        return Progress(self.done[handle])

    def interrupt(self, handle: str) -> None: ...

    def kill(self, handle: str) -> None: ...


def test_a_run_waits_for_the_rounds_it_needs_of_another_or_for_its_end(configure: Callable[..., ExperimentConfig]):
    config, steps = configure(), Steps()
    waits = {"first": None, "fork": ("first", 2), "later fork": ("fork", 99), "of a finished run": ("old", 1)}
    runs = [QueuedRun(name, config, after=after) for name, after in waits.items()]
    assert steps.train(runs, Path(), lambda run, event: None) is None
    assert steps.began == {
        "first": {},
        "of a finished run": {"first": 0},
        "fork": {"first": 2, "of a finished run": 2},
        "later fork": {"first": 3, "of a finished run": 3, "fork": 3},
    }
