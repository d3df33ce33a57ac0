"""The two label protocols: who holds the labels decides what travels down and where gradients come from.

=============  ==========================================  ============================================
labels         server sends to party k                     party k's gradient at its embedding
=============  ==========================================  ============================================
shared         the others' frames, and theta_0 (head_sync)  through its replica of theta_0 (Algorithm 1)
server         g_k = d loss / d h^_k                        g_k, for all E local iterations (FedBCD-p)
=============  ==========================================  ============================================

Shapes: B batch, D width of one embedding, P width of all embeddings together, K parties, n the samples of a batch in
which a party takes part.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vfl.base.modules import weights_digest
from vfl.core.embeddings import Compressor, EmbeddingReceiver, ResidualSender, decompress_checked
from vfl.core.head import HeadTrainer
from vfl.core.own_classifier import OwnClassifier
from vfl.core.presence import Presence, RowMask, pack, unpack
from vfl.core.privacy.defences import Defence
from vfl.core.tasks import task_state
from vfl.messages.messages import Message, Part, PartKind
from vfl.runs.checkpoint import State

HeadSync = Literal["replay", "broadcast"]
PartsK = list[tuple[Part, ...]]
"""Message parts for each party."""


class Received(NamedTuple):
    """A party's embedding of a batch, as received."""

    frame: Part
    """The frame as received, with its dense size."""
    embedding_BD: Tensor
    """Decoded embedding, on the head's device."""
    mask: RowMask
    """The samples in which the party takes part."""


class Batch(NamedTuple):
    """An exchange's batch at the server."""

    rows_B: Tensor
    labels_B: Tensor
    received: Sequence[Received]
    """Embeddings in the parties' order."""
    embeddings: Sequence[Tensor]
    """The same, [B, D] each, without frames and masks."""
    weights_B: Tensor | None = None
    """Weights of the samples; None: all are alike."""


@dataclass(frozen=True, eq=False)
class ShareEmbeddings:
    """Server's side of ``labels: shared``: forwards every party's frame unchanged to all others."""

    head_sync: HeadSync

    def start_round(self, trainer: HeadTrainer, masks: Sequence[Sequence[RowMask]]) -> tuple[PartsK, str | None]:
        """Return theta_0 as each party's parts and its digest, if parties replay; they know their masks already."""
        if self.head_sync == "broadcast":
            return [()] * len(masks[0]), None
        return [trainer.parts()] * len(masks[0]), weights_digest(trainer.head.state_dict())

    def begin(self, trainer: HeadTrainer, batch: Batch) -> tuple[PartsK, list[Tensor]]:
        """Return the others' frames for each party, with theta_0 of this exchange if it is broadcast."""
        frames = [each.frame for each in batch.received]
        head = trainer.parts() if self.head_sync == "broadcast" else ()
        return [(*frames[:k], *frames[k + 1 :], *head) for k in range(len(frames))], []

    def state_dict(self) -> State:
        """Return an empty state: nothing outlasts an exchange."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""


@dataclass(frozen=True, eq=False)
class ReturnGradients:
    """Server's side of ``labels: server``: computes the gradient of every embedding and returns it to its owner."""

    senders: Sequence[ResidualSender]
    """One sender for each party."""
    defence: Defence | None = None
    """Defence applied to each party's gradients before they leave."""

    def start_round(self, trainer: HeadTrainer, masks: Sequence[Sequence[RowMask]]) -> tuple[PartsK, str | None]:
        """Return each party's own mask, unless all are whole; others' gaps stay hidden. No theta_0 is sent.

        A party cannot tell whether it lacks a sample or is left out of it.
        """
        if all(mask.whole for exchange in masks for mask in exchange):
            return [()] * len(masks[0]), None
        # `zip` turns masks by exchange into masks by party.
        return [(Part(PartKind.PRESENCE, pack(own)),) for own in zip(*masks, strict=True)], None

    def begin(self, trainer: HeadTrainer, batch: Batch) -> tuple[PartsK, list[Tensor]]:
        """Take the head's first step; its backward pass gives the gradients as well."""
        # A leaf of its own, so that one backward pass leaves the gradients of the head and of all embeddings.
        # Before the step, at theta_0 of the exchange: what the parties would compute with a replica of it.
        representation_BP = torch.cat(list(batch.embeddings), dim=1).requires_grad_()
        loss = trainer.step(representation_BP, batch.labels_B, batch.weights_B)
        assert representation_BP.grad is not None
        gradient_BP, place = representation_BP.grad.cpu(), 0
        size, sent = len(batch.rows_B), PartsK()
        scale = gradient_scale(size)
        for sender, (_, embedding_BD, mask) in zip(self.senders, batch.received, strict=True):
            gradient_nD = mask.rows_of(gradient_BP[:, place : place + embedding_BD.shape[1]])
            place += embedding_BD.shape[1]
            if self.defence is not None:
                # A row's own loss weighs 1 / B in the mean: clipping lengths do not depend on the batch size.
                gradient_nD = self.defence.apply(gradient_nD * size) / size
            # Scaled before they are compressed: float16 would lose the small ones. The party divides.
            sent.append((sender.send(gradient_nD * scale, mask.rows_of(batch.rows_B)),))
        return sent, [loss]

    def state_dict(self) -> State:
        """Return the unsent residuals, by the party's position."""
        kept = enumerate(sender.residual_ND for sender in self.senders)
        return {str(place): residual_ND for place, residual_ND in kept if residual_ND is not None}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        for place, residual_ND in state.items():
            mine_ND = self.senders[int(place)].residual_ND
            assert mine_ND is not None, "what is agreed does not change over a resume"
            mine_ND.copy_(residual_ND)


ServerProtocol = ShareEmbeddings | ReturnGradients
"""The server's side of a label protocol: in a round ``start_round``, in an exchange ``begin``."""


@dataclass(eq=False)
class HeadReplica:
    """Party's side of ``labels: shared``.

    Holds the labels, a replica of the head and the others' stale embeddings. Within an exchange theta_0 keeps its value
    of the exchange (supplement, eq. 8-9); ``finish`` replays the server's steps, which are a function of (theta_0, Phi,
    y) alone.
    """

    trainer: HeadTrainer
    """The replica, built like the server's head."""
    labels_N: Tensor
    """Labels of all training samples, on the trainer's device."""
    position: int
    """The party's index among the embeddings."""
    others: Sequence[EmbeddingReceiver]
    """Receivers of the other parties' frames, in the parties' order."""
    head_sync: HeadSync
    presence: Presence
    """Participation in each batch, as the server knows it."""

    def __post_init__(self) -> None:
        self._drift = 0.0
        self._batches: Sequence[Tensor] = []
        self._masks: list[list[RowMask]] = []  # the parties' masks of each batch
        self._own = RowMask.of_all(0)  # this party's part in the present exchange
        self._sent_nD = torch.empty(0)
        self._embeddings: list[Tensor] = []
        self._labels_B = self.labels_N[:0]
        self._gradients_are_here = False  # of the first replayed step
        self._classifier: OwnClassifier | None = None

    @property
    def classifier(self) -> OwnClassifier:
        """The party's own classifier, for rounds that it trains alone."""
        if self._classifier is None:
            self._classifier = OwnClassifier(self.trainer, self.position)
        return self._classifier

    def start_alone(self, round_index: int, batches: Sequence[Tensor]) -> list[RowMask]:
        """Return the party's mask of each batch of a round that it trains alone."""
        return [masks[self.position] for masks in self.presence.of_round(round_index, batches)]

    def start_round(self, message: Message, head_digest: str | None, batches: Sequence[Tensor]) -> list[RowMask]:
        """Load theta_0, noting the replica's drift from it; return the party's mask of each batch."""
        alone, self._classifier = self._classifier is not None, None  # from here on its steps are the head's
        self._batches, self._masks = batches, self.presence.of_round(message.round_index, batches)
        self.trainer.start_round(message.round_index, len(batches))
        if self.head_sync == "replay":
            drift = self.trainer.adopt(message.payloads(PartKind.HEAD))
            self._drift = 0.0 if alone else drift  # the others' classifiers have learned meanwhile
            if head_digest != weights_digest(self.trainer.head.state_dict()):
                raise ValueError("the head that arrived is not the one that the server sent (digests differ)")
        return [masks[self.position] for masks in self._masks]

    def receive(self, message: Message, exchange: int, sent_nD: Tensor) -> None:
        """Decode the others' embeddings and, if it is broadcast, load theta_0; the others received ``sent_nD``."""
        frames = message.payloads(PartKind.EMBEDDING)
        if len(frames) != len(self.others):
            raise ValueError(f"{len(frames)} embeddings of other parties came instead of {len(self.others)}")
        self.trainer.start_exchange(exchange)
        rows_B, masks = self._batches[exchange], [*self._masks[exchange]]  # a copy: the own part is taken out
        self._own = masks.pop(self.position)
        missing, device = self.trainer.missing, self.trainer.runtime.device
        embeddings = [
            other.receive_rows(frame, rows_B, mask, missing)
            for other, frame, mask in zip(self.others, frames, masks, strict=True)
        ]
        embeddings.insert(self.position, self._own.spread(sent_nD, missing))
        self._sent_nD = sent_nD.to(device)
        self._embeddings = [embedding.to(device) for embedding in embeddings]
        self._labels_B = self.labels_N[rows_B.to(device)]
        # With replay theta_0 of this exchange is here already: the one of the exchange before and its replayed steps.
        if self.head_sync == "broadcast":
            self.trainer.adopt(message.payloads(PartKind.HEAD))

    def gradient(self, embedding_nD: Tensor) -> Tensor:
        """Return the gradient at Phi_k: the others' stale embeddings and the party's fresh ones.

        While the fresh ones equal those sent (beta = 0, first local iteration), Phi_k is Phi_0: one pass through the
        head gives this gradient and those of the first step to replay.
        """
        representation = [*self._embeddings]
        representation[self.position] = self._own.spread(embedding_nD, self.trainer.missing)
        # Values are compared, not beta: the shortcut is exact only if the server holds these very bits.
        # Only once: the gradients wait in theta_0's .grad for `finish`. A broadcast head takes no steps here.
        same = torch.equal(embedding_nD, self._sent_nD) and not self._gradients_are_here
        with_head = same and self.head_sync == "replay"
        self._gradients_are_here |= with_head
        gradient_BD = self.trainer.embedding_gradient(
            representation, self.position, self._labels_B, with_head=with_head
        )
        return self._own.rows_of(gradient_BD)

    def finish(self, iterations: int) -> None:
        """Replay the server's steps on Phi_0."""
        if self.head_sync == "replay":
            # The first replayed step's gradients were computed with this party's own, in the same pass.
            if self._gradients_are_here:
                self.trainer.apply()
            # Also where this party takes no part in the batch: the server steps, and the replica must follow.
            self.trainer.steps(self._embeddings, self._labels_B, iterations - self._gradients_are_here)
        self._embeddings, self._gradients_are_here = [], False

    def drift(self) -> float | None:
        """Return the drift found at the start of the round; 0 means equal bits."""
        return self._drift if self.head_sync == "replay" else None

    def state_dict(self) -> State:
        """Return the replica, its momentum, and the estimates of the others' embeddings."""
        alone = {} if self._classifier is None else {"classifier": self._classifier.state_dict()}
        return {
            "head": self.trainer.state_dict(),
            **alone,
            "task": task_state(self.trainer.task),
            "others": {other.sender: other.state_dict() for other in self.others},
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        self.trainer.load_state_dict(state["head"])
        if "classifier" in state:
            self.classifier.load_state_dict(state["classifier"])
        for other in self.others:
            other.load_state_dict(state["others"][other.sender])

    def begin_with(self, state: State) -> None:
        """Begin with the head in the state of a finished run."""
        self.trainer.begin_with(state["head"])


def gradient_scale(batch_size: int) -> float:
    """Return the factor by which gradients are multiplied to travel: a power of two near B, so that no bit is lost.

    Gradients of a mean over B samples are of the order 1 / B, where float16 has few bits or none.
    """
    return 2.0 ** math.floor(math.log2(batch_size))


class ReceivedGradient:
    """Party's side of ``labels: server``: sees no label, no head and no other party's embedding."""

    def __init__(self, compressor: Compressor, device: torch.device) -> None:
        self.compressor = compressor
        self.device = device
        self._batches: Sequence[Tensor] = []
        self._gradient_nD = torch.empty(0)

    def start_round(self, message: Message, head_digest: str | None, batches: Sequence[Tensor]) -> list[RowMask]:
        """Read the party's own mask from the server; without one it is all samples."""
        self._batches = batches
        told = message.payloads(PartKind.PRESENCE)
        return unpack(told[0], batches) if told else [RowMask.of_all(len(rows_B)) for rows_B in batches]

    def receive(self, message: Message, exchange: int, sent_nD: Tensor) -> None:
        """Decode the gradient of the party's embedding."""
        frames = message.payloads(PartKind.GRADIENT)
        if len(frames) != 1:
            raise ValueError(f"{len(frames)} gradients came instead of 1")
        if len(sent_nD):  # else the frame is empty, and no local iteration will ask for a gradient
            shape = len(sent_nD), sent_nD.shape[1]
            gradient_nD = decompress_checked(self.compressor, frames[0], shape, "the gradient")
            self._gradient_nD = gradient_nD.to(self.device).div_(gradient_scale(len(self._batches[exchange])))

    def gradient(self, embedding_nD: Tensor) -> Tensor:
        """Return the same gradient for each local iteration."""
        return self._gradient_nD

    def finish(self, iterations: int) -> None:
        """Forget the gradient."""
        self._gradient_nD = torch.empty(0)

    def drift(self) -> None:
        """Return None: nothing is replayed."""

    def state_dict(self) -> State:
        """Return an empty state: nothing outlasts an exchange."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""

    def begin_with(self, state: State) -> None:
        """Begin with the state of a finished run."""


PartyProtocol = HeadReplica | ReceivedGradient
"""A party's side of a label protocol: in a round ``start_round``, in an exchange ``receive``, E times ``gradient``, and
``finish``."""
