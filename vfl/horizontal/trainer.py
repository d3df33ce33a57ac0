"""The server of a horizontal run, in rounds: an ``Algorithm`` of the training loop.

    select -> clients train -> client_update -> aggregate -> server_update

Shapes: N clients, P entries of the weights, Q of the statistics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vfl.base.costs import total_costs
from vfl.base.modules import check_same_data, weights_digest
from vfl.horizontal.algorithm import FederatedAlgorithm, Report, Vectors
from vfl.horizontal.config import HorizontalExperiment
from vfl.horizontal.devices import Devices
from vfl.horizontal.flat import FlatModel
from vfl.horizontal.fleet import STATISTICS, Assignment, Fleet
from vfl.horizontal.local import client_name
from vfl.runs.checkpoint import State
from vfl.runs.loop import Metrics, finite
from vfl.runs.runtime import Runtime


@dataclass(eq=False)
class Evaluator:
    """Accuracy and loss on the test samples."""

    model: FlatModel
    """Model to evaluate with; it is overwritten."""
    features: Tensor
    """[M, ...] test samples, on the runtime's device."""
    labels: Tensor
    """[M], or [M, T] if every position counts."""
    batch_size: int
    """Samples per forward pass."""
    runtime: Runtime
    running_statistics: bool
    """Use BatchNorm's running statistics; False normalises by the test batch."""

    @torch.inference_mode()
    def evaluate(self, weights_P: Tensor, statistics_Q: Tensor) -> Metrics:
        """Return ``accuracy/test`` and ``loss/test``. Raises Diverged if the loss is not finite."""
        self.model.load(weights_P, statistics_Q)
        self.model.module.eval()
        # The layers then also move the model's running statistics, which `load` overwrites before anyone reads them.
        if not self.running_statistics:
            for module in self.model.module.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):  # pyright: ignore[reportPrivateUsage]  # the only common base
                    module.train()
        correct, loss_sum = 0, 0.0
        for start in range(0, len(self.labels), self.batch_size):
            stop = start + self.batch_size
            outputs = self.runtime.forward(self.model.module, self.features[start:stop])
            labels = self.labels[start:stop]
            loss_sum += float(F.cross_entropy(outputs, labels, reduction="sum"))
            correct += int((outputs.argmax(dim=1) == labels).sum())
        loss = finite(loss_sum / self.labels.numel(), "the test loss")
        return {"accuracy/test": correct / self.labels.numel(), "loss/test": loss}


@dataclass(eq=False)
class HorizontalTrainer:
    """Common parts of synchronous and asynchronous servers: state, evaluation, totals."""

    config: HorizontalExperiment
    algorithm: FederatedAlgorithm[Any]
    fleet: Fleet
    devices: Devices
    evaluator: Evaluator
    data_digest: str
    """Digest of the samples and their split, which must be the same on resume."""
    state: Vectors = field(init=False)
    simulated_time_s: float = field(default=0.0, init=False)
    metric: str = field(default="accuracy", init=False)
    rounds_ahead: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        model = self.fleet.model
        self.state = self.algorithm.initial_state(model.weights_P.clone())
        self.state[STATISTICS] = model.statistics_Q.clone()

    def evaluate(self) -> Metrics:
        """Return accuracy and mean loss of the global model on the test samples."""
        return self.evaluator.evaluate(self.state["weights"], self.state[STATISTICS])

    def summary(self) -> dict[str, Any]:
        """Return the totals of all rounds, and the costs of every client that took part."""
        costs = {client_name(client): costs for client, costs in self.fleet.costs.items()}
        self.fleet.model.load(self.state["weights"], self.state[STATISTICS])
        return {
            **total_costs(costs),
            "simulated_time_s": self.simulated_time_s,
            "model_digest": weights_digest(self.fleet.model.learned()),
            "parties": self.fleet.summary(),
        }

    def state_dict(self) -> dict[str, State]:
        """Return the server's and the clients' sections."""
        server: State = {
            "data_digest": self.data_digest,
            "vectors": dict(self.state),
            "simulated_time_s": self.simulated_time_s,
        }
        return {"server": server, "clients": self.fleet.state_dict()}

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Continue from a state, bit for bit. Raises ValueError if the data differs."""
        server = state["server"]
        check_same_data("the clients' samples", server["data_digest"], self.data_digest)
        device = self.fleet.model.weights_P.device
        self.state = {name: vector.to(device) for name, vector in server["vectors"].items()}
        self.simulated_time_s = server["simulated_time_s"]
        self.fleet.load_state_dict(state["clients"])

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def server_step(self, reports: Sequence[Report]) -> Metrics:
        """Aggregate, update the state, and return the algorithm's diagnostics; without reports nothing changes."""
        if not reports:
            return {}
        aggregate = self.algorithm.aggregate(self.state, reports)
        statistics_Q = self._mean_statistics(reports, aggregate.statistics_share)
        self.state = self.algorithm.server_update(self.state, aggregate) | {STATISTICS: statistics_Q}
        return dict(aggregate.metrics)

    def _mean_statistics(self, reports: Sequence[Report], share: float) -> Tensor:
        """Return ``share`` of the clients' mean running statistics by n_i, and the rest of the server's own.

        If clients do not send them, these are only the server's own.
        """
        before_Q = self.state[STATISTICS]
        if self.config.horizontal.buffers != "average" or not self.fleet.model.statistic_count:
            return before_Q
        total = sum(report.work.samples for report in reports)
        mean_Q = (1 - share) * before_Q
        for report in reports:
            mean_Q.add_(report.result.statistics_Q, alpha=share * (report.work.samples / total))
        return mean_Q


class SynchronousTrainer(HorizontalTrainer):
    """All clients of a round start from the same weights, and the round ends when the last is done."""

    def train_round(self, round_index: int) -> Metrics:
        """Run one round and return its metrics."""
        plan = self.devices.plan(round_index)
        selection = self.algorithm.select(self.state, round_index, plan)
        clients = range(len(plan.steps_N))
        # Another package's `select` may give anything. Ascending, because sums are added in the clients' order.
        if list(selection.clients) != sorted({*selection.clients} & {*clients}):
            raise ValueError(f"horizontal.algorithm: select gives {selection.clients}, not ascending ones of {clients}")
        self.state = self.state | selection.state
        assignments = [
            Assignment(plan.work(client), self.state, round_index, stream=round_index) for client in selection.clients
        ]
        before = spent(self.fleet, selection.clients)
        # Clients that drop out train as well: the work is spent, only the result never arrives.
        results = self.fleet.train(assignments)
        reports = [
            self.fleet.report(assignment, result)
            for assignment, result in zip(assignments, results, strict=True)
            if not plan.drops_out_N[result.client]
        ]
        diagnostics = self.server_step(reports)
        slowest_s = max((assignment.work.seconds for assignment in assignments), default=self.devices.empty_round_s)
        seconds = slowest_s if selection.seconds is None else selection.seconds
        self.simulated_time_s += seconds
        return {
            **report_metrics(reports),
            "clients/selected": len(assignments),
            "simulated_time_s/round": seconds,
            "simulated_time_s/total": self.simulated_time_s,
            **spent_since(before, spent(self.fleet, selection.clients)),
            **selection.metrics,
            **diagnostics,
        }


def report_metrics(reports: Sequence[Report]) -> Metrics:
    """Return the mean loss and the amount of work of a round's reports. Raises Diverged if the loss is not finite."""
    metrics: Metrics = {"clients/reporting": len(reports)}
    if not reports:
        return metrics
    loss = finite(float(torch.stack([report.result.loss for report in reports]).mean()), "the training loss")
    steps = [report.result.steps for report in reports]
    return metrics | {
        "loss/train": loss,
        "local_steps/mean": sum(steps) / len(steps),
        "local_steps/min": min(steps),
        "local_steps/max": max(steps),
    }


def spent(fleet: Fleet, clients: Sequence[int]) -> Metrics:
    """Return the bytes, multiply-accumulates and seconds that some clients have cost since round 0."""
    costs = [fleet.costs[client] for client in clients if client in fleet.costs]
    return {
        "uplink_bytes/clients": sum(each.training_bytes("uplink") for each in costs),
        "downlink_bytes/clients": sum(each.training_bytes("downlink") for each in costs),
        "train_macs/clients": sum(each.train_macs for each in costs),
        "train_time_s/clients": sum(each.train_time_s for each in costs),
    }


def spent_since(before: Metrics, now: Metrics) -> Metrics:
    """Return the difference between two results of ``spent`` for the same clients."""
    return {tag: value - before[tag] for tag, value in now.items()}
