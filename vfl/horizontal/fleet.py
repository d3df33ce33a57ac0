"""The clients of a run in a simulation: rows of the data, kept state, and costs.

Shapes: N clients, P entries of the weights, Q of the statistics.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from vfl.base.costs import PartyCosts
from vfl.base.random import stream_seed
from vfl.config.schedules import value_at
from vfl.horizontal.algorithm import FederatedAlgorithm, Report, Vectors
from vfl.horizontal.client_states import ClientStates
from vfl.horizontal.config import HorizontalExperiment
from vfl.horizontal.devices import Work
from vfl.horizontal.engines.sequential import Engine
from vfl.horizontal.flat import FlatModel, book_message
from vfl.horizontal.local import LocalResult, LocalTask, client_name, client_number, local_batches
from vfl.runs.checkpoint import State

STATISTICS = "statistics"
"""Name of the floating-point buffers in a server's state and in messages."""
PASSES_PER_STEP = 3
"""Multiply-accumulates of a training step in forward passes: one forward pass, and a backward pass that counts two."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """A client's part of a round."""

    work: Work
    start: Vectors
    """The server's state when the client started."""
    round_index: int
    """Round of the learning rate's schedule."""
    stream: int
    """Number by which its batches are drawn; no client gets the same one twice."""


@dataclass(eq=False)
class Fleet:
    """Runs local training for a server and keeps the clients' side."""

    config: HorizontalExperiment
    algorithm: FederatedAlgorithm[Any]
    model: FlatModel
    """Model that tells sizes; its values may be overwritten."""
    engine: Engine
    rows: Sequence[Tensor]
    """Rows of the training data of every client, int64 [n_i] each."""
    names: Sequence[str]
    """Names of the clients in the summary."""
    states: ClientStates
    macs_per_sample: int
    """Multiply-accumulates of one forward pass."""
    costs: dict[int, PartyCosts] = field(default_factory=dict[int, PartyCosts], init=False)
    """Costs of the clients that took part."""
    _read: dict[int, Vectors] = field(default_factory=dict[int, Vectors], init=False)
    """States of the cohort at work, so that none is read twice."""

    def train(self, assignments: Sequence[Assignment]) -> list[LocalResult]:
        """Compute the local training of a cohort and record its cost."""
        cohort = [assignment.work for assignment in assignments]
        self._read = {work.client: self._own(work.client) for work in cohort}
        tasks = [self._task(assignment, cohort) for assignment in assignments]
        # Only the engine is timed: reading states and drawing batches is the simulation's work, not the clients'.
        started_s = time.perf_counter()
        results = self.engine.train(tasks)
        # A cohort may be computed at once: nobody's own seconds are known, and all samples cost alike.
        seconds_per_sample = (time.perf_counter() - started_s) / max(1, sum(result.samples for result in results))
        for assignment, result in zip(assignments, results, strict=True):
            costs = self.costs.setdefault(result.client, PartyCosts())
            extra = 0 if result.full_gradient_P is None else assignment.work.samples  # forward and backward once more
            macs = PASSES_PER_STEP * self.macs_per_sample * (result.samples + extra)
            costs.train_macs += macs
            costs.unpruned_train_macs += macs
            costs.train_time_s += seconds_per_sample * result.samples
            settings = {"learning_rate": result.learning_rate, "steps": result.steps}
            book_message(costs, "downlink", self.download_entries(), settings)
        return results

    def report(self, assignment: Assignment, result: LocalResult, staleness: int = 0) -> Report:
        """Finish a client's round: keep its state, record its upload, and return the report to the server."""
        client = assignment.work.client
        own = self._read.pop(client, None)  # removed, as the update below outdates it
        if own is None:  # another cohort, or a resume, came between this client's start and its end
            own = self._own(client)
        update = self.algorithm.client_update(result, own, assignment.start)
        client_state = dict(update.state)
        # With buffers: local BatchNorm's statistics stay with the client, beside the algorithm's own state.
        if self.config.horizontal.buffers == "local" and self.model.statistic_count:
            client_state[STATISTICS] = result.statistics_Q
        self.states.put(client, client_state, assignment.stream)
        book_message(
            self.costs[client],
            "uplink",
            self.upload_entries(update.upload),
            {"loss": float(result.loss), "samples": assignment.work.samples, "steps": result.steps},
        )
        return Report(assignment.work, update.upload, result, assignment.start["weights"], staleness)

    def download_entries(self) -> dict[str, int]:
        """Return the vectors that a client receives, with their true sizes."""
        return self._with_statistics(dict.fromkeys(self.algorithm.downloads, self.model.weight_count))

    def upload_entries(self, upload: Mapping[str, Tensor]) -> dict[str, int]:
        """Return the vectors that a client sends, with their true sizes, without padding."""
        # A vector of the weights' padded length is one of weights; any other is the algorithm's own and all true.
        padded = len(self.model.weights_P)
        return self._with_statistics(
            {
                name: self.model.weight_count if vector.numel() == padded else vector.numel()
                for name, vector in upload.items()
            }
        )

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return the costs of every client that took part."""
        return {
            self.names[client]: {
                "alpha": 0.0,
                "beta": 0.0,
                "samples": len(self.rows[client]),
                "parameters": self.model.weight_count,
                "macs_per_sample": self.macs_per_sample,
                "uplink_bytes": costs.training_bytes("uplink"),
                "downlink_bytes": costs.training_bytes("downlink"),
                "train_macs": costs.train_macs,
                "train_time_s": costs.train_time_s,
            }
            for client, costs in sorted(self.costs.items())
        }

    def state_dict(self) -> State:
        """Return the clients' kept state and costs."""
        costs = {client_name(client): asdict(costs) for client, costs in self.costs.items()}
        return {"states": self.states.state_dict(), "costs": costs}

    def load_state_dict(self, state: State) -> None:
        """Continue from kept state and costs."""
        self.states.load_state_dict(state["states"])
        self._read = {}
        self.costs = {client_number(name): PartyCosts(**costs) for name, costs in state["costs"].items()}

    def _task(self, assignment: Assignment, cohort: Sequence[Work]) -> LocalTask:
        client, training = assignment.work.client, self.config.training
        rows_N, own = self.rows[client], self._read[client]
        if self.algorithm.one_step_full_batch:
            batches = [rows_N]
        else:
            batches = local_batches(
                rows_N,
                training.batch_size,
                assignment.work.steps,
                seed=self.config.seed,
                round_index=assignment.stream,
                client=client,
            )
        task = LocalTask(
            client,
            rows_N,
            assignment.start["weights"],
            own.get(STATISTICS, assignment.start[STATISTICS]),
            batches,
            value_at(training.optimizer.learning_rate, assignment.round_index),
            seed=stream_seed(self.config.seed, "forward", assignment.stream, client_name(client)),
        )
        return self.algorithm.client_task(task, own, assignment.start, cohort)

    def _own(self, client: int) -> Vectors:
        device = self.model.weights_P.device
        return {name: vector.to(device) for name, vector in self.states.get(client).items()}

    def _with_statistics(self, entries: dict[str, int]) -> dict[str, int]:
        travel = self.config.horizontal.buffers == "average" and self.model.statistic_count > 0
        return entries | ({STATISTICS: self.model.statistic_count} if travel else {})
