"""A party's own classifier in the rounds that it trains alone: its steps, and how its weights travel.

Shapes: D embedding width, n the samples of a batch in which the party takes part.
"""

import torch
from torch import Tensor, nn

from vfl.base.errors import Diverged
from vfl.compression.codec import encode
from vfl.core.embeddings import MOST_TESTED, decode_finite
from vfl.core.head import HeadTrainer
from vfl.messages.messages import Buffer
from vfl.models.auxiliary import AuxiliaryHead
from vfl.runs.checkpoint import State
from vfl.runs.optim import build_optimizer, load_optimizer_state, optimizer_state, set_learning_rate


def classifier_of(head: nn.Module, position: int) -> nn.Module:
    """Return the classifier of the party at a position among the embeddings."""
    assert isinstance(head, AuxiliaryHead), "local rounds build classifiers"
    return head.classifiers[position]


def classifier_frame(classifier: nn.Module) -> bytes:
    """Return a classifier's weights as one frame, names sorted; always float32."""
    weights = classifier.state_dict()
    return encode(torch.cat([weights[name].flatten() for name in sorted(weights)]).cpu())


def load_classifier(classifier: nn.Module, frame: Buffer, what: str) -> None:
    """Load the weights of ``classifier_frame``.

    Raises ValueError for another number or values that are not finite, Diverged for so large ones that the loss of all
    parties' mean would overflow.
    """
    weights = classifier.state_dict()
    sizes = [weights[name].numel() for name in sorted(weights)]
    values = decode_finite(frame, (sum(sizes),), "float32", what)
    if values.abs().max() > MOST_TESTED:
        raise Diverged(f"{what} has values beyond {MOST_TESTED:g}")
    for name, part in zip(sorted(weights), torch.split(values, sizes), strict=True):
        weights[name].copy_(part.view_as(weights[name]))


class OwnClassifier:
    """A party's classifier while the party trains alone, with an optimizer that the joint rounds do not go on with."""

    def __init__(self, trainer: HeadTrainer, position: int) -> None:
        self.trainer = trainer
        self.module = classifier_of(trainer.head, position)
        self.optimizer = build_optimizer(self.module, trainer.config)

    def start_exchange(self, round_index: int, exchange: int, steps: int) -> None:
        """Set the learning rate of a batch of the round."""
        set_learning_rate(self.optimizer, self.trainer.config.rate_at(round_index, exchange, steps))

    def step(self, embedding_nD: Tensor, labels_n: Tensor) -> tuple[Tensor, float]:
        """Take one step; return the loss's gradient at the embeddings [n, D], and the loss, both before it."""
        own_nD = embedding_nD.detach().requires_grad_()
        loss = self.trainer.loss(self.module(own_nD), labels_n)
        self.optimizer.zero_grad()
        loss.backward()  # pyright: ignore[reportUnknownMemberType]  # unannotated in PyTorch
        self.optimizer.step()
        assert own_nD.grad is not None
        return own_nD.grad, float(loss.detach())

    def state_dict(self) -> State:
        """Return the momentum; the weights are the head's."""
        return optimizer_state(self.optimizer, self.module)

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        load_optimizer_state(self.optimizer, self.module, state)
