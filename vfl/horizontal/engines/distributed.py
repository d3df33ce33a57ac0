"""The distributed engine: every worker trains some clients of a cohort; one all-reduce gives all results to all.

A worker fills in the rows of its own clients of a table that is zero elsewhere. The sum of the tables contains every
result as its worker computed it, so that all workers continue with the same bits, whatever their number.

Shapes: K clients of the cohort, R columns of the table; P, Q and S as in ``local.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vfl.horizontal.engines.sequential import Engine
from vfl.horizontal.flat import ALIGNMENT, FlatModel
from vfl.horizontal.local import LocalResult, LocalTask
from vfl.runs.torchrun_group import Workers


@dataclass(frozen=True, eq=False)
class DistributedEngine:
    """Trains clients on all workers."""

    inner: Engine
    """Engine that trains this worker's clients one by one, so that no result depends on which others it trains."""
    model: FlatModel
    """Model with the sizes of all vectors."""
    workers: Workers

    def train(self, tasks: Sequence[LocalTask]) -> list[LocalResult]:
        """Train this worker's share and return the results of all. Raises PeerLost."""
        # Every worker shares out all tasks by the same numbers, so no worker needs a message.
        work = [task.samples + (len(task.rows_N) if task.full_gradient else 0) for task in tasks]
        own = share_out(work, self.workers.size)[self.workers.rank]
        table = _Table(tasks, self.model)
        results = self.inner.train([tasks[place] for place in own])
        for place, result in zip(own, results, strict=True):
            table.fill_in(place, result)
        table.values = self.workers.add_up(table.values, _fingerprint(tasks))
        return [table.read(place, task) for place, task in enumerate(tasks)]


def share_out(work: Sequence[int], workers: int) -> list[list[int]]:
    """Return each worker's task indices: the largest task first, each to the worker with the least work so far."""
    shares: list[list[int]] = [[] for _ in range(workers)]
    loads = [0] * workers
    for place in sorted(range(len(work)), key=lambda place: -work[place]):
        least = loads.index(min(loads))
        shares[least].append(place)
        loads[least] += work[place]
    return shares


def _fingerprint(tasks: Sequence[LocalTask]) -> list[int]:
    """Return numbers that differ between workers if their weights or draws do."""
    # By id: a round's tasks share one start, which is summed up only once.
    starts = {id(task.start_P): task.start_P for task in tasks}.values()
    # Bits are added as integers, whose sum depends on no order and changes with any single bit.
    bits = [int(start_P.view(torch.int32).sum()) for start_P in starts]
    return [*bits, *(task.client for task in tasks), *(int(task.batches[0].sum()) for task in tasks)]


class _Table:
    """Results as rows of one vector."""

    def __init__(self, tasks: Sequence[LocalTask], model: FlatModel) -> None:
        weights, statistics = len(model.weights_P), len(model.statistics_Q)
        self.clients = len(tasks)
        self.columns = {
            "delta": weights,
            "statistics": statistics,
            "full_gradient": weights if any(task.full_gradient for task in tasks) else 0,
            "squared_norms": max((len(task.batches) for task in tasks if task.gradient_norms), default=0),
            "loss": 1,
        }
        # Vectors begin where they would as tensors of their own, so that no kernel takes another path for them.
        self.columns = {name: -(-size // ALIGNMENT) * ALIGNMENT for name, size in self.columns.items()}
        self.values = model.weights_P.new_zeros(self.clients * sum(self.columns.values()))

    def fill_in(self, place: int, result: LocalResult) -> None:
        """Write a result of this worker to its row."""
        row = self._row(place)
        row["delta"].copy_(result.delta_P)
        row["statistics"].copy_(result.statistics_Q)
        row["loss"][0] = result.loss
        # A row has room for what any task asks for; what this one does not have stays zero.
        if result.full_gradient_P is not None:
            row["full_gradient"].copy_(result.full_gradient_P)
        if result.squared_norms_S is not None:
            row["squared_norms"][: result.steps].copy_(result.squared_norms_S)

    def read(self, place: int, task: LocalTask) -> LocalResult:
        """Return the result of a task, as its worker wrote it."""
        row = {name: values.clone() for name, values in self._row(place).items()}  # no result keeps the others alive
        full_gradient_P = row["full_gradient"] if task.full_gradient else None
        norms_S = row["squared_norms"][: len(task.batches)] if task.gradient_norms else None
        return task.result(row["delta"], row["statistics"], row["loss"][0], full_gradient_P, norms_S)

    def _row(self, place: int) -> dict[str, Tensor]:
        parts = torch.split(self.values.view(self.clients, -1)[place], list(self.columns.values()))
        return dict(zip(self.columns, parts, strict=True))
