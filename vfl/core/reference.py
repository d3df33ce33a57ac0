"""Algorithm 1 of the LVFL paper, written down literally: read this first.

Everything is in one process: no messages, codecs or parties, a full copy of the head wherever the paper speaks of a
replica, and a forward pass for every local step. Runs are tested against it, without pruning and error feedback, which
``vfl/compression`` and ``vfl/core/embeddings.py`` explain.

Shapes: N samples, B batch; features [N, ...] per party.
"""

import copy
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vfl.models.auxiliary import AuxiliaryHead


@dataclass(eq=False)
class Reference:
    """All parties and the server."""

    models: Sequence[nn.Module]
    """Feature models f(theta_k), one per party."""
    head: nn.Module
    """f(theta_0)."""
    features: Sequence[Tensor]
    labels_N: Tensor
    """int64 class indices."""
    _: KW_ONLY
    iterations: int
    """E, local steps per exchange."""
    beta: float
    """Share of the embedding's entries that are not sent."""
    labels: Literal["shared", "server"]
    """Protocol: parties hold the labels and replay the head, or get a gradient from the server."""
    learning_rate: float
    momentum: float
    auxiliary: float = 0.0
    """Weight of each party's own loss beside the head's; the head is an `AuxiliaryHead` then."""

    def __post_init__(self) -> None:
        self.optimizers = {
            module: torch.optim.SGD(module.parameters(), lr=self.learning_rate, momentum=self.momentum)
            for module in (*self.models, self.head)
        }

    def exchange(self, rows_B: Tensor) -> None:
        """Exchange the embeddings of some rows once, then take E local steps on all sides."""
        y_B = self.labels_N[rows_B]
        # Lines 5 and 6: one embedding per party, cut off from its graph, as it travels.
        sent = [self.sparsify(model(x[rows_B]).detach()) for model, x in zip(self.models, self.features, strict=True)]
        # Lines 8 and 9, or with the labels at the server g_k instead of the others' embeddings.
        leaves = [h.clone().requires_grad_() for h in sent]
        at_server = torch.autograd.grad(self.loss(self.head, leaves, y_B), leaves)
        replica = copy.deepcopy(self.head)  # the head as it was when the embeddings were sent
        # Lines 14 to 17 (10 to 12 prune). One party after another is the same as all at once: each reads what was sent,
        # its own model and the replica, and no party's steps move what another one reads.
        for k, model in enumerate(self.models):
            for _ in range(self.iterations):
                own = model(self.features[k][rows_B])
                if self.labels == "server":
                    loss = (own * at_server[k]).sum()  # whose gradient at h_k is the server's
                else:
                    loss = self.loss(replica, [*sent[:k], own, *sent[k + 1 :]], y_B)
                self.descend(model, loss)
        # k = 0 of line 14: the head steps on what was sent, the same in every iteration.
        for _ in range(self.iterations):
            self.descend(self.head, self.loss(self.head, sent, y_B))

    def loss(self, head: nn.Module, embeddings: Sequence[Tensor], y_B: Tensor) -> Tensor:
        """Return the head's loss and, by their weight, those of the classifiers on each party's own embedding."""
        loss = F.cross_entropy(head(torch.cat(list(embeddings), 1)), y_B)
        if isinstance(head, AuxiliaryHead):
            for classifier, h in zip(head.classifiers, embeddings, strict=True):
                loss = loss + self.auxiliary * F.cross_entropy(classifier(h), y_B)
        return loss

    def sparsify(self, h: Tensor) -> Tensor:
        """Return h without the share beta of its entries that are smallest in magnitude."""
        flat = h.flatten().clone()
        flat[torch.argsort(h.abs().flatten(), stable=True)[: int(self.beta * h.numel())]] = 0.0
        return flat.view_as(h)

    def descend(self, module: nn.Module, loss: Tensor) -> None:
        """Take one step on a module's own parameters."""
        parameters = list(module.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        self.optimizers[module].step()  # pyright: ignore[reportUnknownMemberType]  # unannotated in PyTorch
