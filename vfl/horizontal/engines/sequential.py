"""The sequential engine: one model, reused for one client after the other. The other engines are tested against it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vfl.base.random import seeded
from vfl.config import OptimizerConfig
from vfl.horizontal.flat import FlatModel
from vfl.horizontal.local import LocalResult, LocalTask, Loss, batch_loss
from vfl.runs.optim import build_optimizer
from vfl.runs.runtime import Runtime


class Engine(Protocol):
    """Computes the local training of a cohort."""

    def train(self, tasks: Sequence[LocalTask]) -> list[LocalResult]:
        """Return the results in the order of the tasks."""
        ...


@dataclass(eq=False)
class LocalEngine:
    """Common parts of the engines of one process."""

    model: FlatModel
    """Model that tells sizes and places, and computes the forward pass."""
    features: Tensor
    """[N, ...] of all clients, on the runtime's device."""
    labels: Tensor
    """[N] or [N, T]"""
    optimizer: OptimizerConfig
    """SGD of the clients; its momentum starts at zero for every task."""
    runtime: Runtime
    loss: Loss = batch_loss
    """Mean loss of a batch."""
    on_client: Callable[[int, int], None] = lambda done, total: None
    """Called with (clients done, clients of the cohort)."""


@dataclass(eq=False)
class SequentialEngine(LocalEngine):
    """Trains one client at a time. Overwrites the model: between calls its weights and statistics mean nothing."""

    def __post_init__(self) -> None:
        self.sgd = build_optimizer(self.model.module, self.optimizer)

    def train(self, tasks: Sequence[LocalTask]) -> list[LocalResult]:
        """Train the clients one after the other."""
        results: list[LocalResult] = []
        for task in tasks:
            # By the task's own seed, so that what Dropout draws depends on no client trained before.
            with seeded(task.seed, "local training"):
                results.append(self._train(task))
            self.on_client(len(results), len(tasks))
        return results

    def _train(self, task: LocalTask) -> LocalResult:
        self.model.module.train()
        full_gradient_P = self._full_gradient(task, task.start_P) if task.full_gradient == "start" else None
        self.model.load(task.start_P, task.statistics_Q)
        self.sgd.state.clear()
        for group in self.sgd.param_groups:
            group["lr"] = task.learning_rate
        shifts = [] if task.shift_P is None else self.model.split(task.shift_P)
        anchors = self.model.split(task.start_P) if task.pull else []
        losses: list[Tensor] = []
        squared_norms: list[Tensor] = []
        for rows_B in task.batches:
            losses.append(self._gradient(rows_B))
            if task.gradient_norms:  # of the loss alone: before shift and pull are added
                squared_norms.append(self._squared_norm())
            # strict=False: without shift or pull the lists are empty, and nothing is added.
            for parameter, shift in zip(self.model.parameters, shifts, strict=False):
                _gradient_of(parameter).add_(shift)
            for parameter, anchor in zip(self.model.parameters, anchors, strict=False):
                _gradient_of(parameter).add_(parameter.detach() - anchor, alpha=task.pull)
            self.sgd.step()
        # Before a full gradient at the end, whose pass moves the statistics once more.
        delta_P, statistics_Q = self.model.weights_P - task.start_P, self.model.statistics_Q.clone()
        if task.full_gradient == "end":
            full_gradient_P = self._full_gradient(task, self.model.weights_P.clone())
        norms_S = torch.stack(squared_norms) if task.gradient_norms else None
        return task.result(delta_P, statistics_Q, torch.stack(losses).mean(), full_gradient_P, norms_S)

    def _gradient(self, rows_B: Tensor) -> Tensor:
        """Compute the gradient of the batch's loss in the parameters and return the loss."""
        outputs = self.runtime.forward(self.model.module, self.features[rows_B])
        loss = self.loss(outputs, self.labels[rows_B])
        self.sgd.zero_grad()
        loss.backward()  # pyright: ignore[reportUnknownMemberType]  # unannotated in PyTorch
        return loss.detach()

    def _full_gradient(self, task: LocalTask, weights_P: Tensor) -> Tensor:
        """Return the gradient over all of the client's rows."""
        self.model.load(weights_P, task.statistics_Q)
        self._gradient(task.rows_N)
        gradient_P = torch.zeros_like(weights_P)
        for place, parameter in zip(self.model.split(gradient_P), self.model.parameters, strict=True):
            place.copy_(_gradient_of(parameter))
        return gradient_P

    def _squared_norm(self) -> Tensor:
        return torch.stack([_gradient_of(parameter).square().sum() for parameter in self.model.parameters]).sum()


def _gradient_of(parameter: Tensor) -> Tensor:
    if parameter.grad is None:  # it takes no part in the loss
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
