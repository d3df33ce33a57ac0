"""The head model, and its training step, which the server takes and parties that hold the labels replay.

Shapes: B batch, D width of one embedding, P width of all embeddings together (the representation Phi), C classes.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from vfl.compression.codec import encode
from vfl.config import ConfigError, OptimizerConfig
from vfl.core.embeddings import decode_finite
from vfl.core.finished_model import naming_model
from vfl.core.tasks import Task
from vfl.messages.messages import Buffer, Part, PartKind
from vfl.models.auxiliary import AuxiliaryHead, OwnWhereMissing, has_classifiers, join_weights, split_weights
from vfl.models.mlp import has_placeholders, placeholders_of
from vfl.runs.checkpoint import State
from vfl.runs.optim import MakeOptimizer, build_optimizer, load_optimizer_state, optimizer_state, set_learning_rate
from vfl.runs.runtime import Runtime

OwnLoss = Callable[[Tensor, Tensor], Tensor]
"""A user's loss of outputs [B, C] and targets [B], classes or standardised values: a scalar."""


class Head:
    """A head model theta_0 on its device, and the task that gives its outputs a meaning."""

    def __init__(self, head: nn.Module, task: Task, runtime: Runtime) -> None:
        self.head = runtime.place(head)
        self.task = task
        self.runtime = runtime

    @cached_property
    def missing(self) -> float:
        """Value of a missing embedding's entries: NaN if the head can recognise it, else 0."""
        return math.nan if has_placeholders(self.head) or has_classifiers(self.head) else 0.0

    def forward(self, representation_BP: Tensor) -> Tensor:
        """Return the outputs [B, C] of all embeddings."""
        return self.runtime.forward(self.head, representation_BP)

    def own_answers(self, representation_BP: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each party's own answer [B, C] and its presence, bool [B]; none without auxiliary classifiers."""
        return self.head.own_answers(representation_BP) if isinstance(self.head, AuxiliaryHead) else []


def own_where_missing(head: Head, field: str) -> Head:
    """Return a head that lets the present parties answer by their own classifiers where an embedding is missing.

    Raises ConfigError, naming ``field``, for a head without classifiers.
    """
    if not isinstance(head.head, AuxiliaryHead):
        raise ConfigError(f"{field}: own needs the parties' classifiers; train with training.auxiliary above 0")
    return Head(OwnWhereMissing(head.head), head.task, head.runtime)


def load_head(head: nn.Module, state: State) -> None:
    """Load a trained head of a ``HeadTrainer.state_dict``."""
    head.load_state_dict(state["weights"])
    if isinstance(head, AuxiliaryHead):
        head.averages = state.get("averages", False)


class HeadTrainer(Head):
    """A head model with its optimizer, and everything else that decides its next steps."""

    def __init__(
        self,
        head: nn.Module,
        task: Task,
        config: OptimizerConfig,
        runtime: Runtime,
        optimizer: MakeOptimizer | None = None,
        own_loss: OwnLoss | None = None,
        auxiliary: float = 0.0,
    ) -> None:
        """``auxiliary`` weighs the losses of the parties' own classifiers, which an `AuxiliaryHead` has."""
        super().__init__(head, task, runtime)
        self.config = config
        self.own_loss = own_loss
        self.auxiliary = auxiliary
        self.optimizer = build_optimizer(self.head, config, optimizer)
        self._rates = config.rates_of(0, 1)
        """Learning rate of each exchange of the round."""

    def start_round(self, round_index: int, steps: int) -> None:
        """Begin a round of ``steps`` exchanges."""
        self._rates = self.config.rates_of(round_index, steps)

    def start_exchange(self, exchange: int) -> None:
        """Set the learning rate of an exchange of the round."""
        set_learning_rate(self.optimizer, self._rates[exchange])

    def losses(
        self, representation_BP: Tensor, labels_B: Tensor, weights_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of the head's answer, and the objective: with the parties' own losses, each by its weight.

        A party's own loss is the mean over the rows in which it takes part.
        """
        loss = objective = self.loss(self.forward(representation_BP), labels_B, weights_B)
        for answer_BC, present_B in self.own_answers(representation_BP) if self.auxiliary else ():
            if present_B.all():  # the usual case, without a copy of the rows
                objective = objective + self.auxiliary * self.loss(answer_BC, labels_B, weights_B)
            elif present_B.any():
                weights_n = None if weights_B is None else weights_B[present_B]
                objective = objective + self.auxiliary * self.loss(answer_BC[present_B], labels_B[present_B], weights_n)
        return loss, objective

    def loss(self, outputs_BC: Tensor, labels_B: Tensor, weights_B: Tensor | None = None) -> Tensor:
        """Return the task's loss of some outputs."""
        if self.own_loss is None:
            return self.task.loss(outputs_BC, labels_B, weights_B)
        if outputs_BC.dim() > 2:
            raise ConfigError("models.members: have their own losses each; use 1 beside an own loss")
        loss = cast(object, self.own_loss(outputs_BC, self.task.targets(labels_B)))
        if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
            raise ConfigError("loss: must return a scalar tensor that depends on the outputs")
        return loss

    def backward(self, representation_BP: Tensor, labels_B: Tensor, weights_B: Tensor | None = None) -> Tensor:
        """Compute the gradients of theta_0, and of the representation if it asks for one; return the head's loss."""
        loss, objective = self.losses(representation_BP, labels_B, weights_B)
        self.optimizer.zero_grad()
        objective.backward()  # pyright: ignore[reportUnknownMemberType]  # unannotated in PyTorch
        return loss.detach()

    def apply(self) -> None:
        """Take the SGD step on theta_0 whose gradients ``backward`` computed."""
        self.optimizer.step()

    def step(self, representation_BP: Tensor, labels_B: Tensor, weights_B: Tensor | None = None) -> Tensor:
        """Take one SGD step on theta_0 and return the loss before it."""
        loss = self.backward(representation_BP, labels_B, weights_B)
        self.optimizer.step()
        return loss

    def steps(
        self, embeddings: Sequence[Tensor], labels_B: Tensor, number: int, weights_B: Tensor | None = None
    ) -> list[Tensor]:
        """Take ``number`` SGD steps (0: none) on the same embeddings, [B, D] each; return the loss before each."""
        if number == 0:
            return []
        representation_BP, losses = torch.cat(list(embeddings), dim=1), list[Tensor]()
        for _ in range(number):
            losses.append(self.step(representation_BP, labels_B, weights_B))
        return losses

    def embedding_gradient(
        self, embeddings: Sequence[Tensor], position: int, labels_B: Tensor, *, with_head: bool
    ) -> Tensor:
        """Return the loss's gradient [B, D] with respect to ``embeddings[position]``; theta_0 stays unchanged.

        With ``with_head`` the same pass leaves theta_0's gradients behind, for ``apply``.
        """
        own_BD = embeddings[position].detach().requires_grad_()
        parts = [own_BD if index == position else other for index, other in enumerate(embeddings)]
        representation_BP = torch.cat(parts, dim=1)
        if not with_head:  # not by backward(): theta_0's .grad may hold the gradients that wait for `apply`
            return torch.autograd.grad(self.losses(representation_BP, labels_B)[1], own_BD)[0]
        self.backward(representation_BP, labels_B)
        assert own_BD.grad is not None
        return own_BD.grad

    def parts(self) -> tuple[Part, ...]:
        """Return theta_0 as message parts, names sorted; always float32, so that replays start from equal bits."""
        weights = self.head.state_dict()
        return tuple(Part(PartKind.HEAD, encode(weights[name])) for name in sorted(weights))

    def adopt(self, frames: Sequence[Buffer]) -> float:
        """Load theta_0 from message parts; return the largest difference from the weights here (the drift).

        Raises ValueError for another number of tensors, another shape or values that are not finite.
        """
        weights = self.head.state_dict()
        if len(frames) != len(weights):
            raise ValueError(f"the head came in {len(frames)} tensors instead of {len(weights)}")
        drift = 0.0
        for name, frame in zip(sorted(weights), frames, strict=True):
            shape = tuple(weights[name].shape)
            received = decode_finite(frame, shape, "float32", f"the head's {name}").to(self.runtime.device)
            drift = max(drift, float((received - weights[name]).abs().max()))
            weights[name].copy_(received)  # into the module: tensors of a state_dict share its memory
        return drift

    def state_dict(self) -> State:
        """Return weights and momentum by name, and whether the answer is the mean of the parties' own."""
        averages = {"averages": True} if isinstance(self.head, AuxiliaryHead) and self.head.averages else {}
        momentum = optimizer_state(self.optimizer, self.head)
        return {"weights": self.head.state_dict(), "momentum": momentum, **averages}

    def load_state_dict(self, state: State) -> None:
        """Restore weights and momentum."""
        load_head(self.head, state)
        load_optimizer_state(self.optimizer, self.head, state["momentum"])

    def begin_with(self, state: State) -> None:
        """Load the weights in another run's state, not the momentum.

        Placeholders and classifiers that it lacks stay as built. Raises ConfigError for another head.
        """
        joint, classifiers = split_weights(state["weights"])
        own = self.head.state_dict()
        if isinstance(self.head, AuxiliaryHead):
            joint = join_weights(joint, classifiers or split_weights(own)[1])
        with naming_model("the head server"):
            self.head.load_state_dict(placeholders_of(own) | joint)
