"""The bare PyTorch loop on the same split model: one process, one autograd graph, no messages.

It is the oracle of the tests (with alpha = beta = 0 and E = 1 LVFL must train the same weights) and the
yardstick of the benchmark.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vfl.config import OptimizerConfig
from vfl.core.tasks import Task
from vfl.runs.optim import build_optimizer
from vfl.runs.runtime import Runtime


class PlainModel(nn.Module):
    """All feature models and the head as one module: [B, ...] per party -> outputs."""

    def __init__(self, features: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.features = nn.ModuleList(features)
        self.head = head

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Embed every party's inputs and fuse them."""
        embeddings = [feature(part) for feature, part in zip(self.features, inputs, strict=True)]
        return self.head(torch.cat(embeddings, dim=1))


class JointTrainer:
    """Plain joint training, as one would write it by hand."""

    def __init__(
        self, features: Sequence[nn.Module], head: nn.Module, task: Task, config: OptimizerConfig, runtime: Runtime
    ) -> None:
        self.task = task
        self.runtime = runtime
        self.model = runtime.place(PlainModel(features, head))
        self.optimizer = build_optimizer(self.model, config)

    def step(self, images: Sequence[Tensor], labels_N: Tensor, rows_B: Tensor) -> Tensor:
        """Take one SGD step on the rows of every party's features [N, ...]; return the loss before it."""
        inputs = [self.runtime.batch(part, rows_B) for part in images]
        logits_BC = self.runtime.forward(self.model, inputs)
        loss = self.task.loss(logits_BC, labels_N[rows_B].to(self.runtime.device))
        self.optimizer.zero_grad()
        loss.backward()  # pyright: ignore[reportUnknownMemberType]  # unannotated in PyTorch
        self.optimizer.step()
        return loss.detach()
