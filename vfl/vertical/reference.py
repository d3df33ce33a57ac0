"""Algorithm 1 of the LVFL paper written down as it stands: read this first.

Everything in one process: no messages, codecs or parties, a full copy of the head wherever the paper speaks of a
replica, and a forward pass for every local step. What a run computes is tested against it, without pruning and
without error feedback: those are explained where they are done (``vfl/lightweighting``).

Shapes: N samples, B batch; features [N, ...] per party.
"""

import copy
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Reference:
    """All parties and the server.

    Args:
        models: feature models f(theta_k), one per party.
        head: f(theta_0).
        features: [N, ...] of each party.
        labels_N: int64 class indices.
        iterations: E, local steps per exchange.
        beta: share of the embedding's entries that are not sent.
        labels: whether parties hold the labels and replay the head, or get a gradient from the server.
        learning_rate: of SGD with ``momentum``.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        head: nn.Module,
        features: Sequence[Tensor],
        labels_N: Tensor,
        *,
        iterations: int,
        beta: float,
        labels: Literal["shared", "server"],
        learning_rate: float,
        momentum: float,
    ) -> None:
        self.models, self.head = models, head
        self.features, self.labels_N = features, labels_N
        self.iterations, self.beta, self.labels = iterations, beta, labels
        self.optimizers = {
            module: torch.optim.SGD(module.parameters(), lr=learning_rate, momentum=momentum)
            for module in (*models, head)
        }

    def exchange(self, rows_B: Tensor) -> None:
        """Exchange embeddings of some rows once, then take E local steps everywhere."""
        y_B = self.labels_N[rows_B]
        sent = [self.sparsify(model(x[rows_B]).detach()) for model, x in zip(self.models, self.features, strict=True)]
        leaves = [h.clone().requires_grad_() for h in sent]
        at_server = torch.autograd.grad(F.cross_entropy(self.head(torch.cat(leaves, 1)), y_B), leaves)
        replica = copy.deepcopy(self.head)  # the head as it was when the embeddings were sent
        for k, model in enumerate(self.models):
            for _ in range(self.iterations):
                own = model(self.features[k][rows_B])
                if self.labels == "server":
                    loss = (own * at_server[k]).sum()  # whose gradient at h_k is the server's
                else:
                    loss = F.cross_entropy(replica(torch.cat([*sent[:k], own, *sent[k + 1 :]], 1)), y_B)
                self.descend(model, loss)
        for _ in range(self.iterations):
            self.descend(self.head, F.cross_entropy(self.head(torch.cat(sent, 1)), y_B))

    def sparsify(self, h: Tensor) -> Tensor:
        """Return h without the beta of its entries that are smallest in magnitude."""
        flat = h.flatten().clone()
        flat[torch.argsort(h.abs().flatten(), stable=True)[: int(self.beta * h.numel())]] = 0.0
        return flat.view_as(h)

    def descend(self, module: nn.Module, loss: Tensor) -> None:
        """Take one step on a module's own parameters."""
        parameters = list(module.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        self.optimizers[module].step()  # pyright: ignore[reportUnknownMemberType]  # unannotated in PyTorch
