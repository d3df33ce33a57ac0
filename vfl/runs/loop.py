"""The one training loop: vertical and horizontal algorithms, their callbacks, resume and interruption."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

from vfl.base.errors import ConfigError, Diverged
from vfl.runs.checkpoint import CheckpointStore, State

Metrics = dict[str, float]
"""Values of one round by TensorBoard tag, such as ``accuracy/test`` or ``alpha/party_1``."""


def finite(value: float, what: str) -> float:
    """Return a loss or metric unchanged. Raises Diverged, naming it (``what``), if it is not finite."""
    if not math.isfinite(value):
        raise Diverged(f"{what} is not finite")
    return value


class Algorithm(Protocol):
    """Algorithm that the loop trains."""

    def train_round(self, round_index: int) -> Metrics:
        """Train one round and return its metrics."""
        ...

    @property
    def rounds_ahead(self) -> int:
        """Rounds that are done already and only have to be counted."""
        ...

    def evaluate(self) -> Metrics:
        """Return ``METRIC/test`` and ``loss/test``. Weights, statistics and random streams stay as they are."""
        ...

    @property
    def metric(self) -> str:
        """Name of the metric by which models are compared, such as "accuracy"."""
        ...

    def summary(self) -> dict[str, Any]:
        """Return the totals since round 0, ready for JSON."""
        ...

    def state_dict(self) -> dict[str, State]:
        """Return everything that the next rounds depend on, one section per owner."""
        ...

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Continue from a state, bit for bit."""
        ...

    def close(self) -> None:
        """Release processes, connections and files."""
        ...


class Watched(Protocol):
    """A loop, or a party's part in one: everything that callbacks which only show need."""

    rounds: int
    next_round: int
    last_metrics: Metrics

    @property
    def metric(self) -> str:
        """Name of the metric by which models are compared."""
        ...


class Callback:
    """Observer of the loop. Override the methods that are needed."""

    name: str = ""
    """Key of this callback's state in the checkpoint; needed only by callbacks that keep one."""

    def on_start(self, loop: "TrainingLoop") -> None:
        """Run after the restore, before the first round."""

    def on_round(self, loop: "TrainingLoop", round_index: int, metrics: Metrics) -> None:
        """Run after every round, before its checkpoint; if the round is lost in a crash, it runs again for it."""

    def on_end(self, loop: "TrainingLoop") -> None:
        """Run at the end, also of an interrupted or failed run, if ``on_start`` succeeded; the last callback first."""

    def state_dict(self) -> State:
        """Return the state that must survive a resume."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""


class Viewer(Callback):
    """A callback that only shows; it also works for a party's part in a loop."""

    def on_start(self, loop: Watched) -> None:
        """Run before the first round of this session."""

    def on_round(self, loop: Watched, round_index: int, metrics: Metrics) -> None:
        """Run after every round."""

    def on_end(self, loop: Watched) -> None:
        """Run at the end."""


@dataclass(eq=False)
class TrainingLoop:
    """Runs an algorithm round by round."""

    algorithm: Algorithm
    """Algorithm to train; closed at the end."""
    rounds: int
    """Total number of rounds, including those before a resume."""
    callbacks: Sequence[Callback] = ()
    """Called in order."""
    _: KW_ONLY
    checkpoints: CheckpointStore | None = None
    """Store from which state is restored and to which it is saved; None keeps nothing."""
    checkpoint_every: int = 1
    """Rounds between checkpoints; the last and an interrupted round are always saved."""
    evaluate_every: int = 1
    """Rounds between evaluations; the last round is always evaluated."""
    evaluated: str = "test"
    """Name of the evaluated samples in the summary."""

    def __post_init__(self) -> None:
        self.next_round = 0
        self.last_metrics: Metrics = {}
        self.stop_reason: str | None = None
        self.to_resume = False
        self.wall_time_s = 0.0
        """Seconds up to the end of the last round, summed over all sessions of this run."""
        self._saved_round = 0
        self._started_s = time.perf_counter()

    @property
    def metric(self) -> str:
        """The algorithm's metric."""
        return self.algorithm.metric

    def run(self) -> dict[str, Any]:
        """Train the rounds that are left and return the run's summary."""
        with ExitStack() as at_end:
            at_end.callback(self.algorithm.close)  # first: it runs last, and also where the restore fails
            self.restore()
            for callback in self.callbacks:
                callback.on_start(self)
                at_end.callback(callback.on_end, self)
            # Rounds ahead are done, and a state saved before they are counted would be of two rounds at once.
            while self.next_round < self.rounds and (self.stop_reason is None or self.algorithm.rounds_ahead):
                self.run_round(self.next_round)
            # Not after an error: a failed round has left the algorithm between two rounds.
            if self._saved_round != self.next_round:
                self.save()
            return self.summary()

    def run_round(self, round_index: int) -> None:
        """Train, evaluate and report one round, and save it if a checkpoint is due.

        Raises Diverged, before anything is reported, if a metric is not finite.
        """
        metrics = self.algorithm.train_round(round_index)
        last = round_index + 1 == self.rounds
        if last or (round_index + 1) % self.evaluate_every == 0:
            metrics |= self.algorithm.evaluate()
        for tag, value in metrics.items():
            finite(value, tag)
        self.next_round = round_index + 1
        self.last_metrics |= metrics
        self.wall_time_s = time.perf_counter() - self._started_s
        for callback in self.callbacks:
            callback.on_round(self, round_index, metrics)
        if self.next_round % self.checkpoint_every == 0:
            self.save()

    def request_stop(self, reason: str, *, to_resume: bool = False) -> None:
        """End the run after the present round and its checkpoint. ``to_resume``: it is interrupted, not finished."""
        self.to_resume = to_resume  # first: the reason ends the loop, which may run in another thread
        self.stop_reason = reason

    def summary(self) -> dict[str, Any]:
        """Return rounds done, last evaluation, seconds and the algorithm's totals."""
        tested = {tag.removesuffix("/test"): value for tag, value in self.last_metrics.items() if tag.endswith("/test")}
        return {
            "rounds": self.next_round,
            f"{self.evaluated}_accuracy": self.last_metrics.get("accuracy/test"),
            f"{self.evaluated}_loss": self.last_metrics.get("loss/test"),
            "metric": self.metric,
            f"{self.evaluated}_metrics": {name: value for name, value in tested.items() if name != "loss"},
            "wall_time_s": self.wall_time_s,
            **self.algorithm.summary(),
        }

    def save(self) -> None:
        """Commit a checkpoint of the rounds done so far."""
        if self.checkpoints is None:
            return
        own: State = {
            "next_round": self.next_round,
            "last_metrics": dict(self.last_metrics),
            "wall_time_s": self.wall_time_s,
            "callbacks": {callback.name: callback.state_dict() for callback in self.callbacks if callback.name},
        }
        self.checkpoints.save(self.next_round, {"loop": own, **self.algorithm.state_dict()})
        self._saved_round = self.next_round

    def restore(self) -> None:
        """Continue from the newest good checkpoint; without one, start at round 0."""
        loaded = self.checkpoints.load_latest() if self.checkpoints else None
        if loaded is None:
            return
        _, sections = loaded
        own = sections.pop("loop")
        self.next_round = self._saved_round = own["next_round"]
        if self.next_round > self.rounds:
            raise ConfigError(f"training.rounds: {self.rounds} are fewer than the {self.next_round} that are done")
        self.last_metrics = own["last_metrics"]
        self.wall_time_s = own["wall_time_s"]
        self._started_s -= self.wall_time_s  # as if this session had begun when the first one did, without the pause
        for callback in self.callbacks:
            if callback.name in own["callbacks"]:  # patience may be new
                callback.load_state_dict(own["callbacks"][callback.name])
        self.algorithm.load_state_dict(sections)
