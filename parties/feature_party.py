"""A feature party: one owner's features and feature model, driven by the head server's messages.

Shapes: B batch, D embedding width, n the samples of a batch in which the party takes part.
"""

import copy
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vfl.checkpoint import State
from vfl.config import ExperimentConfig
from vfl.data.samples import Samples
from vfl.data.source import Prepared
from vfl.digest import check_same_data, weights_digest
from vfl.lightweighting.pruning import psi
from vfl.lightweighting.sparsify import omega
from vfl.lightweighting.unprunable import build_pruner
from vfl.loop import finite
from vfl.macs import count_macs, count_parameters
from vfl.optim import build_optimizer, load_optimizer_state, optimizer_state, set_learning_rate
from vfl.random import seeded
from vfl.runtime import Runtime
from vfl.schedules import largest, schedule_of
from vfl.vertical.batch_statistics import batch_norms, embed_still
from vfl.vertical.batches import batch_rows, steps_in_round
from vfl.vertical.embeddings import EmbeddingSender, encode_as
from vfl.vertical.evaluated import EvaluatedModels
from vfl.vertical.labels import PartyProtocol
from vfl.vertical.orders import Order, orders_of
from vfl.vertical.team import Single
from vfl.wire.control import AskedRatios, Description, Prices, Report, RoundStart, SampleRange, fixed_seconds
from vfl.wire.messages import REPLIES, Kind, Message, MessageError, Part, PartKind

R = TypeVar("R")

PROBE_SAMPLES = 256
"""Size of the fixed batch on which Psi is measured."""
BACKWARD_FORWARDS = 2
"""A backward pass costs two forwards: the gradients of the inputs and of the weights."""
OWN: Mapping[str, Tensor] = {}
"""In the place of copied weights: the model's own."""


class ForwardPass(NamedTuple):
    """Embeddings with their autograd graph."""

    embedding_nD: Tensor
    """Fresh and unsparsified."""
    weights: Mapping[str, Tensor]
    """Copies of the model's parameters to which the graph belongs, by name; or OWN."""


@dataclass
class PendingExchange:
    """What stays between sending an embedding and the update that answers it, with a later order."""

    exchange: int
    inputs: tuple[Tensor, ...]
    forward: ForwardPass | None
    """The first local iteration's; None: it is of the model before it was pruned."""
    sent_nD: Tensor
    """As the others received it."""


@dataclass
class RoundCounts:
    """What a party counts during one round."""

    passes: int = 0
    """Forward passes of training batches: each draws from a stream of its own."""
    draws: bool = False
    """Whether the model draws random numbers (Dropout), as its first pass shows."""
    train_macs: int = 0
    unpruned_train_macs: int = 0
    train_time_s: float = 0.0
    omega: float = 0.0
    """Sum over the round's exchanges."""
    psi: float = 0.0


class FeatureParty:
    """One party k: embeds its features, prunes its model, takes E local iterations per exchange.

    ``model`` is dense: a sample's tensors, [B, ...] each -> [B, D]. ``team`` are the party's processes.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        data: Prepared,
        protocol: PartyProtocol,
        sender: EmbeddingSender,
        config: ExperimentConfig,
        runtime: Runtime,
        team: Single | None = None,
    ) -> None:
        self.name = name
        self.model = runtime.place(model)
        self.preparation = data.preparation
        self.raw = data.raw
        self.train = data.train
        self.test = data.test
        self.protocol = protocol
        self.sender = sender
        self.config = config
        self.runtime = runtime
        self.team = team or Single()
        self.optimizer = build_optimizer(self.model, config.training.optimizer)
        self.example = self.batch(data.train, data.train.held_rows()[:1])
        ratios = config.lightweighting
        self.pruner = build_pruner(self.model, self.example, ratios.pruning, largest(schedule_of(ratios.alpha, name)))
        self.unpruned_macs = self.macs = count_macs(self.model, *self.example)
        self.steps = steps_in_round(config.training, len(data.train))
        self.evaluated = EvaluatedModels(self.model, self.pruner, data.train, config, runtime)
        self.alpha = self.beta = 0.0
        self.round_index: int = -1
        self.batches: list[Tensor] = []
        """Of the present round's exchanges, the rows in which the party takes part."""
        self.due = deque[Order]()
        """Of the present round, the orders to come."""
        self.pending = deque[PendingExchange]()
        """The exchanges whose updates are to come, at most one more than parties are ahead."""
        self.counts = RoundCounts()

    def handle(self, request: Message) -> Message:
        """Answer a message. Raises MessageError for one that does not belong here."""
        parts = self._answer(request)
        return Message(REPLIES[request.kind], request.round_index, request.exchange, parts)

    def _answer(self, message: Message) -> tuple[Part, ...]:
        match message.kind:
            case Kind.START_ROUND:
                self.start_round(message)
                return ()
            case Kind.EMBED | Kind.UPDATE:
                return self._timed(self.exchange, message)
            case Kind.END_ROUND:
                return (self.end_round(message).part(),)
            case Kind.EVALUATE:
                wanted = SampleRange.of(message)
                return (Part(PartKind.EMBEDDING, self.evaluate(wanted)),)
            case Kind.MEAN:
                return (Part(PartKind.EMBEDDING, self.mean_embedding()),)
            case Kind.DESCRIBE:
                return (self.describe().part(),)
            case Kind.PRICES:
                asked = AskedRatios.of(message)
                return (self.prices(asked.alphas).part(),)
            case _:
                raise MessageError(f"{self.name} cannot answer {message.kind.name}")

    @cached_property
    def _data_digest(self) -> str:
        further = {
            f"{split}_{number}": tensor
            for split, samples in (("train", self.train), ("test", self.test))
            for number, tensor in enumerate((*samples.more, samples.present), start=1)
            if tensor is not None
        }
        return weights_digest({"train": self.train.features, "test": self.test.features, **further})

    def _timed(self, step: Callable[[Message], R], message: Message) -> R:
        self.runtime.synchronize()
        started_s = time.perf_counter()
        result = step(message)
        self.runtime.synchronize()
        self.counts.train_time_s += time.perf_counter() - started_s
        return result

    def _untimed(self, step: Callable[[], R]) -> R:
        """Do something within a timed step that does not count as training: the next rounds will not have it."""
        started_s = time.perf_counter()
        result = step()
        self.runtime.synchronize()
        self.counts.train_time_s -= time.perf_counter() - started_s
        return result

    def start_round(self, message: Message) -> None:
        """Take the round's ratios (and head), and derive the order of its batches."""
        if message.round_index != self.round_index + 1:
            raise MessageError(f"round {message.round_index} came, {self.name} has done {self.round_index + 1}")
        assigned = RoundStart.of(message)
        self.round_index = message.round_index
        self.alpha, self.beta = assigned.alpha, assigned.beta
        set_learning_rate(self.optimizer, self.config.training.optimizer, message.round_index)
        batch_size = self.config.training.batch_size
        batches = batch_rows(self.config.seed, message.round_index, self.steps, len(self.train), batch_size)
        shares = self.protocol.start_round(message, assigned.head_digest, batches)
        self.batches = [share.rows_of(rows_B) for rows_B, share in zip(batches, shares, strict=True)]
        # With labels at the server it is the server that says who takes part, by the match it has: perhaps an older
        # one.
        if any(len(self.train.held_rows(rows_n)) < len(rows_n) for rows_n in self.batches):
            raise MessageError(f"{self.name} has no row for samples that the server wants; match the tables again")
        self.due = deque(orders_of(self.steps, self.config.training.staleness))
        self.pending.clear()
        self.counts = RoundCounts()
        self.model.train()

    def exchange(self, message: Message) -> tuple[Part, ...]:
        """Take the update that an order brings, if any; return the embeddings that it asks for, if any."""
        order = self._next_order(message)
        if order.brings is not None:
            self.update(message)
        elif message.parts:
            raise MessageError(f"an update came to {self.name} before the round's first embedding")
        return (Part(PartKind.EMBEDDING, self.embed(order.exchange)),) if order.kind is Kind.EMBED else ()

    def embed(self, exchange: int) -> bytes:
        """Return the frame of the sparsified embeddings of a batch, empty for no rows (Algorithm 1, lines 5-6)."""
        rows_n = self.batches[exchange]
        inputs = self.batch(self.train, rows_n)
        forward = self._forward(inputs, self._kept_weights())
        dense_nD = forward.embedding_nD.detach().cpu()
        frame, sent_nD = self.sender.send(dense_nD, rows_n, self.beta) if len(rows_n) else (b"", dense_nD)
        self.counts.omega += omega(dense_nD, sent_nD)
        self.pending.append(PendingExchange(exchange, inputs, forward, sent_nD))
        return frame

    def update(self, message: Message) -> None:
        """Prune if alpha rose (first exchange of a round), then take E local iterations (lines 10-17)."""
        pending = self.pending[0]
        self.protocol.receive(message, pending.exchange, pending.sent_nD)
        # The weights are about to move; what was finished or pruned of the present ones would be stale.
        self.evaluated.forget()
        # Not at the round's start: the first embedding is the unpruned model's, as in Algorithm 1. The graphs of all
        # embeddings under way end at tensors that pruning has replaced.
        if pending.exchange == 0 and self._untimed(self.prune):
            for each in self.pending:
                each.forward = None
        self.pending.popleft()
        samples, iterations = len(pending.sent_nD), self.config.training.local_iterations
        for _ in range(iterations if samples else 0):
            # The first iteration goes back through the graph of the embedding that was sent, the later ones embed anew.
            embedding_nD, weights = pending.forward or self._forward(pending.inputs, OWN)
            pending.forward = None
            gradient_nD = self.protocol.gradient(embedding_nD.detach())
            self.optimizer.zero_grad()
            # embedding_nD.backward(gradient_nD), bit for bit; its first call imports sympy, which takes 0.8 s.
            embedding_nD.flatten().dot(gradient_nD.flatten()).backward()  # pyright: ignore[reportUnknownMemberType]  # unannotated
            # With staleness the graph ends at copies; their gradient moves the present weights (docs/protocol.md).
            for name, weight in weights.items():
                self.model.get_parameter(name).grad = weight.grad
            self.team.add_gradients(self.model, samples)
            self.optimizer.step()
            self.counts.train_macs += BACKWARD_FORWARDS * self.macs * samples
        self.counts.unpruned_train_macs += (1 + BACKWARD_FORWARDS) * iterations * self.unpruned_macs * samples
        self.protocol.finish(iterations)

    def prune(self) -> bool:
        """Prune to the round's alpha if it is above all before; measure Psi on the probe batch."""
        if self.alpha <= self.pruner.alpha_max:
            return False
        before_BD = self._probe()
        pruned = self.pruner.prune_to(self.alpha, self.optimizer)
        if pruned:
            self.macs = count_macs(self.model, *self.example)
            self.counts.psi = psi(before_BD, self._probe())
        elif self.pruner.widths() == self.pruner.original_widths:
            warnings.warn(
                f"{self.name}: alpha {self.alpha:g} removes no filter: the layers are too narrow for it, "
                "or lightweighting.pruning.round_to is too large",
                stacklevel=2,
            )
        return pruned

    def end_round(self, message: Message) -> Report:
        """Take the last update; return what the round cost and the errors that lightweighting made.

        Raises MessageError where that is not due.
        """
        self._next_order(message)
        self._timed(self.update, message)
        return Report(
            alpha=self.pruner.alpha_max,
            beta=self.beta,
            macs_per_sample=self.macs,
            parameters=count_parameters(self.model),
            train_macs=self.counts.train_macs,
            unpruned_train_macs=self.counts.unpruned_train_macs,
            train_time_s=fixed_seconds(self.counts.train_time_s),
            omega=finite(self.counts.omega / self.steps, f"omega/{self.name}"),
            psi=finite(self.counts.psi, f"psi/{self.name}"),
            head_drift=self.protocol.drift(),
        )

    def evaluate(self, wanted: SampleRange) -> bytes:
        """Return the frame of the embeddings of a range of test samples by one of the party's models."""
        if not wanted.start < wanted.stop <= len(self.test):
            raise MessageError(f"{self.name} has no test samples {wanted.start} to {wanted.stop}")
        rows_n = self.test.held_rows(torch.arange(wanted.start, wanted.stop))
        if len(rows_n) == 0:
            return b""
        inputs = self.batch(self.test, rows_n)
        embedding_BD = self.evaluated.embed(wanted.model, inputs, self.alpha).cpu()
        if self.config.evaluation.sparsified:
            embedding_BD = self.sender.as_received(embedding_BD, self.beta)
        return encode_as(self.config.wire.values, embedding_BD, f"{self.name}'s embedding")

    def mean_embedding(self) -> bytes:
        """Return the frame of the mean [1, D] of the finished model's embeddings of the training samples."""
        rows_N = self.train.held_rows()
        total_D = torch.zeros(self.sender.receiver.width, dtype=torch.float64)
        for rows_B in torch.split(rows_N, self.config.evaluation.batch_size):
            embedding_BD = self.evaluated.embed("finished", self.batch(self.train, rows_B), 0.0)
            total_D += embedding_BD.double().sum(dim=0).cpu()
        mean_1D = (total_D / len(rows_N)).float().unsqueeze(0)
        return encode_as(self.config.wire.values, mean_1D, f"{self.name}'s mean embedding")

    def describe(self) -> Description:
        """Return digests of the weights and the finished model, the prunable layers' widths, and evaluation's cost."""
        return Description(
            weights_digest=weights_digest(self.model.state_dict()),
            finished_digest=self.evaluated.digest(),
            evaluation_macs=self.evaluated.macs,
            widths=self.pruner.widths(),
            original_widths=self.pruner.original_widths,
        )

    def prices(self, alphas: Sequence[float]) -> Prices:
        """Return what the model would cost at each of some ascending ratios, by pruning a copy of it."""
        # One copy for all ratios: they ascend, and pruned filters never return. In one call, so that the pruner's model
        # is the copy.
        model, pruner = copy.deepcopy((self.model, self.pruner))
        macs: list[int] = []
        parameters: list[int] = []
        for alpha in alphas:
            if pruner.original_widths:
                pruner.prune_to(alpha)
            macs.append(count_macs(model, *self.example))
            parameters.append(count_parameters(model))
        return Prices(macs_per_sample=tuple(macs), parameters=tuple(parameters))

    def batch(self, samples: Samples, rows_B: Tensor) -> tuple[Tensor, ...]:
        """Return what the model is called with for some rows."""
        return tuple(self.runtime.batch(tensor, rows_B) for tensor in samples.inputs)

    def state_dict(self) -> State:
        """Return everything that the party's next rounds depend on."""
        return {
            "name": self.name,
            "pruner": self.pruner.state_dict(),
            "model": self.model.state_dict(),
            "momentum": optimizer_state(self.optimizer, self.model),
            "feedback": self.sender.receiver.state_dict(),
            "protocol": self.protocol.state_dict(),
            "evaluated": self.evaluated.state_dict(),
            "data_digest": self._data_digest,
            "preparation": self.preparation.state_dict(),
            "raw": self.raw,
            "round": self.round_index,
            "beta": self.beta,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a state; the party must be as it was built (dense). Raises ValueError for other data."""
        check_same_data(f"{self.name}'s features", state["data_digest"], self._data_digest)
        self.load_finished(state)
        self.round_index = int(state["round"])
        load_optimizer_state(self.optimizer, self.model, state["momentum"])
        self.sender.receiver.load_state_dict(state["feedback"])
        self.protocol.load_state_dict(state["protocol"])

    def load_finished(self, state: State) -> None:
        """Take over the finished model of a state and how it prepares samples, of whichever data the party is made."""
        self.preparation.load_state_dict(state["preparation"])
        self.beta = float(state["beta"])
        # Structure first: the weights and momenta of a pruned model fit no dense one.
        self.pruner.load_state_dict(state["pruner"], self.optimizer)
        self.model.load_state_dict(state["model"])
        self.evaluated.load_state_dict(state["evaluated"])
        self.macs = count_macs(self.model, *self.example)

    def _next_order(self, message: Message) -> Order:
        """Return the round's next order. Raises MessageError for another one."""
        due = self.due[0] if self.due else Order(Kind.START_ROUND, 0, None)
        if (message.kind, message.round_index, message.exchange) != (due.kind, self.round_index, due.exchange):
            at = "{} of round {}, exchange {}".format
            raise MessageError(
                f"{self.name} is not at {at(message.kind.name, message.round_index, message.exchange)}, but at "
                f"{at(due.kind.name, self.round_index, due.exchange)}"
            )
        return self.due.popleft()

    def _kept_weights(self) -> Mapping[str, Tensor]:
        """Return the weights to embed with: copies, where other updates change the model before the batch's own."""
        if self.config.training.staleness == 0:
            return OWN
        weights = self.model.named_parameters()
        return {name: weight.detach().clone().requires_grad_(weight.requires_grad) for name, weight in weights}

    def _forward(self, inputs: tuple[Tensor, ...], weights: Mapping[str, Tensor]) -> ForwardPass:
        """Embed a batch of which any number of rows is left, 0 and 1 as well, with the model's weights or copies."""
        samples = len(inputs[0])
        if samples == 0:
            return ForwardPass(torch.empty(0, self.sender.receiver.width), OWN)
        self.counts.train_macs += self.macs * samples
        # A row alone has no variance: it is normalised with the running statistics, which it does not move.
        frozen = batch_norms(self.model).values() if samples == 1 else ()
        for norm in frozen:
            norm.eval()
        # Nor may other batches move them before its backward pass.
        statistics = {name: buffer.clone() for name, buffer in self.model.named_buffers()} if frozen else {}
        kept = {**weights, **statistics}

        def call(*batch: Tensor) -> Tensor:
            return functional_call(self.model, kept, batch)

        # Where nothing is replaced without it: it looks through the whole model, as long as a small one's pass.
        with self._stream() as drew:
            embedding_nD = self.team.embed(self.model, call if kept else self.model, inputs, self.runtime)
            self.counts.draws |= drew()
        self.counts.passes += 1
        for norm in frozen:
            norm.train()
        return ForwardPass(embedding_nD, weights)

    def _stream(self) -> AbstractContextManager[Callable[[], bool]]:
        """Seed what the next pass draws; a model that draws nothing does not keep others from their own passes."""
        if self.counts.passes and not self.counts.draws:
            return nullcontext(lambda: False)
        return seeded(self.config.seed, "forward", self.round_index, f"{self.name} {self.counts.passes}")

    def _probe(self) -> Tensor:
        rows_B = self.train.held_rows()[:PROBE_SAMPLES]
        return embed_still(self.model, self.batch(self.train, rows_B), self.runtime)
