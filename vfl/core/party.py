"""A feature party: a finished party that also trains, driven by the head server's messages.

Shapes: B batch, D embedding width, n the samples of a batch in which the party takes part.
"""

import warnings
from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vfl.base.macs import count_macs, count_parameters, measure_macs, skipped_macs
from vfl.base.modules import check_same_data, weights_digest
from vfl.compression.party_pruner import PartyPruner, model_costs
from vfl.compression.pruning import psi
from vfl.config import ExperimentConfig
from vfl.config.schedules import largest, schedule_of
from vfl.core.augmentation import build_views, resize_samples
from vfl.core.batch_statistics import embed_still
from vfl.core.costs.ledger import RoundMeter
from vfl.core.embeddings import EmbeddingSender
from vfl.core.finished_model import naming_model
from vfl.core.finished_party import FinishedParty
from vfl.core.forward import OWN, ForwardPass, ForwardPasses, PendingExchange
from vfl.core.label_protocol import HeadReplica, PartyProtocol
from vfl.core.own_classifier import classifier_frame
from vfl.core.presence import batch_rows, steps_in_round
from vfl.core.privacy.defences import PartyDefence
from vfl.core.privacy.message_recorder import MessageRecorder
from vfl.core.team import Team
from vfl.data.samples import Samples
from vfl.data.source import Prepared
from vfl.messages.control import (
    AskedRatios,
    Description,
    LocalReports,
    LocalRounds,
    Prices,
    RoundReport,
    RoundStart,
    fixed_seconds,
)
from vfl.messages.messages import Kind, Message, MessageError, Part, PartKind
from vfl.runs.checkpoint import State
from vfl.runs.loop import finite
from vfl.runs.optim import MakeOptimizer, build_optimizer, load_optimizer_state, optimizer_state, set_learning_rate
from vfl.runs.runtime import Runtime

PROBE_SAMPLES = 256
"""Size of the fixed batch on which Psi is measured."""

SECTION = "party"
"""A party's section of its own checkpoint."""


class FeatureParty(FinishedParty):
    """One party k: embeds its features, prunes its model, takes E local iterations per exchange.

    ``model`` is dense. ``team`` are the party's processes, None if it has one.
    """

    config: ExperimentConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # it is never set again

    def __init__(
        self,
        name: str,
        model: nn.Module,
        data: Prepared,
        protocol: PartyProtocol,
        sender: EmbeddingSender,
        config: ExperimentConfig,
        runtime: Runtime,
        team: Team | None = None,
        defence: PartyDefence | None = None,
        optimizer: MakeOptimizer | None = None,
    ) -> None:
        super().__init__(name, model, data, sender, config, runtime, defence)
        self.protocol = protocol
        self.passes = ForwardPasses(name, self.model, sender.receiver.width, config.seed, runtime, team)
        self.optimizer = build_optimizer(self.model, config.training.optimizer, optimizer)
        # One row is enough: costs and structure follow from shapes.
        self.example: tuple[Tensor, ...] = self.batch(data.train, data.train.held_rows()[:1])
        ratios = config.lightweighting
        self.pruner = PartyPruner(name, self.model, self.example, ratios.pruning)
        if largest(ratios.most_alpha(name)) > 0:
            self.pruner.prepare(largest(schedule_of(ratios.alpha, name)), optimizer)
        counted = measure_macs(self.model, *self.example)
        if counted.uncounted:
            warnings.warn(
                f"{name}: multiply-accumulates of {', '.join(sorted(counted.uncounted))} are not counted", stacklevel=2
            )
        self.unpruned_macs = self.macs = counted.layers.total()
        self.skipped_macs = self.unpruned_skipped_macs = skipped_macs(self.model, *self.example)
        """Multiply-accumulates of a sample's backward pass that frozen layers save, now and unpruned."""
        if whole := self.pruner.whole_macs:
            share = sum(whole.values()) / self.macs
            warnings.warn(
                f"{name}: stay whole, {share:.0%} of the multiply-accumulates: {', '.join(whole)}", stacklevel=2
            )
        self.steps = steps_in_round(config.training, len(data.train))
        self.evaluated.pruner = self.pruner
        self.views = build_views(config, name, data)
        """The images that training sees instead of the party's own; None: it sees these."""
        self.resolution = 1.0
        """Share of their sides with which ``train`` and ``test`` have the images of ``data``."""
        self.may_rest = config.training.party_dropout > 0
        """Rows that it has may be left out of a round; the choice reveals something of what the server knows."""
        self.weights_file: str | None = None
        """Digest of the file whose weights the model began with; None if it began with none."""
        self.round_index: int = -1
        self.rates: list[float] = []
        """Learning rate of each exchange of the present round."""
        self.batches: list[Tensor] = []
        """Rows in which the party takes part, for each exchange of the present round."""
        self.pending = deque[PendingExchange]()
        """Exchanges whose updates have not arrived yet, at most one more than the party runs ahead."""
        self.meter = RoundMeter(runtime)
        """Counts the computation of the present round."""
        self.recorder: MessageRecorder | None = None
        """Records what the party sends and receives, for an audit."""

    def answer(self, request: Message, samples: Samples) -> tuple[Part, ...]:
        """Return the parts of the reply to a message; what is not of training is answered as by a finished party."""
        match request.kind:
            case Kind.START_ROUND:
                self.start_round(request)
                return ()
            case Kind.EMBED | Kind.UPDATE:
                with self.meter.training():
                    return self.exchange(request)
            case Kind.END_ROUND:
                return (self.end_round(request).part(),)
            case Kind.TRAIN_ALONE:
                return self.train_alone(request)
            case Kind.DESCRIBE:
                return (self.describe().part(),)
            case Kind.MODEL_COSTS:
                return (self.prices(AskedRatios.of(request)).part(),)
            case _:
                return super().answer(request, samples)

    def start_round(self, message: Message) -> None:
        """Set the round's ratios (and head), and derive the order of its batches."""
        assigned = RoundStart.of(message)
        batches = self._assign(message.round_index, assigned)
        masks = self.protocol.start_round(message, assigned.head_digest, batches)
        self.batches = [mask.rows_of(rows_B) for rows_B, mask in zip(batches, masks, strict=True)]
        if self.recorder is not None:
            self.recorder.start_round(self.round_index)
        # With labels at the server it is the server that says who takes part, by the match it has: perhaps an older
        # one.
        if any(len(self.train.held_rows(rows_n)) < len(rows_n) for rows_n in self.batches):
            raise MessageError(f"{self.name} has no row for samples that the server wants; match the tables again")
        shown = sum(len(self.train.held_rows(rows_B)) for rows_B in batches), sum(map(len, self.batches))
        if not self.may_rest and shown[0] != shown[1]:
            raise MessageError(
                f"{shown[0] - shown[1]} rows of {self.name} are left out, to which "
                "training.party_dropout does not agree"
            )

    def _assign(self, round_index: int, assigned: RoundStart) -> list[Tensor]:
        """Set the round's ratios, forget what was under way, and return the rows [B] of the round's batches."""
        self.round_index = round_index
        self.alpha, self.beta = assigned.alpha, assigned.beta
        self.resize(assigned.resolution or 1.0)
        self.rates = self.config.training.optimizer.rates_of(round_index, self.steps)
        self.pending.clear()
        self.meter = RoundMeter(self.runtime)
        self.passes.start_round(round_index)
        return batch_rows(self.config.seed, round_index, self.steps, len(self.train), self.config.training.batch_size)

    def resize(self, resolution: float) -> None:
        """Go on with images of this share of their sides, in training and evaluation; 1: with the full ones."""
        if resolution == self.resolution:
            return
        self.resolution, self.train, self.test = resolution, self.data.train, self.data.test
        if resolution < 1:
            whole = self.train, self.test
            self.train, self.test = (resize_samples(self.name, self.data, each, resolution) for each in whole)
        self.example = self.batch(self.train, self.train.held_rows()[:1])
        self._count()
        self.evaluated.train = self.train
        self.evaluated.forget()

    def exchange(self, message: Message) -> tuple[Part, ...]:
        """Apply an order's update, if any; return the requested embeddings, if any."""
        asks = message.kind is Kind.EMBED
        if not asks or message.exchange > self.config.training.staleness:  # the round's first orders bring none
            self.update(message)
        return (Part(PartKind.EMBEDDING, self.embed(message.exchange)),) if asks else ()

    def embed(self, exchange: int) -> bytes:
        """Return the frame of the sparsified embeddings of a batch, empty for no rows (Algorithm 1, lines 5-6)."""
        rows_n = self.batches[exchange]
        inputs = self.batch(self.train, rows_n)
        if self.views is not None:
            inputs = self.views.shown(inputs, rows_n, self.round_index, exchange)
        # With staleness other updates change the model before the batch's own.
        weights = self.passes.copied_weights() if self.config.training.staleness else OWN
        forward = self._forward(inputs, weights)
        dense_nD = forward.embedding_nD.detach().cpu()
        frame, sent_nD = self.sender.send(dense_nD, rows_n, self.beta) if len(rows_n) else (b"", dense_nD)
        self.meter.sent(dense_nD, sent_nD)
        self.pending.append(PendingExchange(exchange, inputs, forward, sent_nD))
        return frame

    def update(self, message: Message) -> None:
        """Prune if alpha rose (first exchange of a round), then take E local iterations (lines 10-17)."""
        pending = self.pending[0]
        set_learning_rate(self.optimizer, self.rates[pending.exchange])
        self.protocol.receive(message, pending.exchange, pending.sent_nD)
        if self.recorder is not None:
            self.recorder.record(self.protocol, pending.exchange, self.batches[pending.exchange], pending.sent_nD)
        if pending.exchange == 0:  # the weights are about to move; what was finished or pruned of them is stale
            self.evaluated.forget()
        # Not at the round's start: the first embedding is the unpruned model's, as in Algorithm 1. The graphs of all
        # embeddings under way end at tensors that pruning has replaced.
        if pending.exchange == 0:
            with self.meter.not_training():
                pruned = self.prune()
            for each in self.pending if pruned else ():
                each.forward = None
        self.pending.popleft()
        samples, iterations = len(pending.sent_nD), self.config.training.local_iterations
        for _ in range(iterations if samples else 0):
            # The first iteration goes back through the graph of the embedding that was sent, the later ones embed anew.
            embedding_nD, weights = pending.forward or self._forward(pending.inputs, OWN)
            pending.forward = None
            gradient_nD = self.protocol.gradient(embedding_nD.detach())
            if self.defence is not None:
                gradient_nD = self.defence.gradient(pending.inputs, embedding_nD, gradient_nD)
            self._descend(embedding_nD, gradient_nD, weights, samples)
        self.meter.updated(self.unpruned_macs, samples, iterations, self.unpruned_skipped_macs)
        self.protocol.finish(iterations)

    def _descend(self, embedding_nD: Tensor, gradient_nD: Tensor, weights: Mapping[str, Tensor], samples: int) -> None:
        """Take one step along the gradient at the embeddings; their graph ends at the model's weights or at copies."""
        self.optimizer.zero_grad()
        # embedding_nD.backward(gradient_nD), bit for bit; its first call imports sympy, which takes 0.8 s.
        embedding_nD.flatten().dot(gradient_nD.flatten()).backward()  # pyright: ignore[reportUnknownMemberType]  # unannotated
        # With staleness the graph ends at copies; their gradient moves the present weights (docs/protocol.md).
        for name, weight in weights.items():
            self.model.get_parameter(name).grad = weight.grad
        if self.passes.team is not None:
            self.passes.team.add_gradients(self.model, samples)
        self.optimizer.step()
        self.meter.backward(self.macs, samples, self.skipped_macs)

    def prune(self) -> bool:
        """Prune to the round's alpha if it exceeds all earlier ones; measure Psi on the probe batch."""
        if self.alpha <= self.pruner.alpha_max:
            return False
        # In evaluation mode, which moves no statistics: Psi is due to the pruning only.
        before_BD = self._probe()
        refit = self.evaluated.refit(self.model)
        pruned = self.pruner.prune_to(self.alpha, self.optimizer, refit)
        if pruned:
            if refit is not None:
                self.meter.refit_macs = refit.macs
            self._count()
            self.meter.psi = psi(before_BD, self._probe())
        elif self.pruner.widths() == self.pruner.original_widths:
            warnings.warn(
                f"{self.name}: alpha {self.alpha:g} removes no filter: the layers are too narrow for it, "
                "or lightweighting.pruning.round_to is too large",
                stacklevel=2,
            )
        return pruned

    def end_round(self, message: Message) -> RoundReport:
        """Apply the last update; return the round's costs and the errors due to lightweighting."""
        with self.meter.training():
            self.update(message)
        return self._report(head_drift=self.protocol.drift())

    def train_alone(self, message: Message) -> tuple[Part, Part]:
        """Train rounds on the party's own classifier; return their reports and the classifier's weights."""
        protocol = self.protocol
        if not isinstance(protocol, HeadReplica):
            raise MessageError(f"{self.name} holds no labels to train alone")
        rounds = enumerate(LocalRounds.of(message).rounds, message.round_index)
        reports = tuple(self._train_round_alone(number, assigned, protocol) for number, assigned in rounds)
        frame = classifier_frame(protocol.classifier.module)
        return LocalReports(reports=reports).part(), Part(PartKind.HEAD, frame)

    def _train_round_alone(self, round_index: int, assigned: RoundStart, protocol: HeadReplica) -> RoundReport:
        batches = self._assign(round_index, assigned)
        masks = protocol.start_alone(round_index, batches)
        self.batches = [mask.rows_of(rows_B) for rows_B, mask in zip(batches, masks, strict=True)]
        self.evaluated.forget()
        if self.alpha > self.pruner.alpha_max:  # no embedding of the unpruned model is under way
            self.prune()
        losses: list[float] = []
        with self.meter.training():
            for exchange, rows_n in enumerate(self.batches):
                set_learning_rate(self.optimizer, self.rates[exchange])
                protocol.classifier.start_exchange(round_index, exchange, self.steps)
                inputs = self.batch(self.train, rows_n)
                if self.views is not None:
                    inputs = self.views.shown(inputs, rows_n, round_index, exchange)
                losses += self._steps_alone(inputs, rows_n, protocol)
        own_loss = finite(sum(losses) / len(losses), f"own_loss/{self.name}") if losses else None
        return self._report(own_loss=own_loss)

    def _steps_alone(self, inputs: tuple[Tensor, ...], rows_n: Tensor, protocol: HeadReplica) -> list[float]:
        """Take E local iterations on a batch; return the loss before the first, nothing for no rows."""
        samples, iterations = len(rows_n), self.config.training.local_iterations
        labels_n = protocol.labels_N[rows_n.to(protocol.labels_N.device)]
        losses: list[float] = []
        for _ in range(iterations if samples else 0):
            self.meter.forward(self.macs, samples)
            embedding_nD, _ = self.passes.embed(inputs, OWN)
            gradient_nD, loss = protocol.classifier.step(embedding_nD, labels_n)
            losses.append(loss)
            self._descend(embedding_nD, gradient_nD, OWN, samples)
        self.meter.updated(self.unpruned_macs, samples, iterations, self.unpruned_skipped_macs)
        return losses[:1]

    def _report(self, head_drift: float | None = None, own_loss: float | None = None) -> RoundReport:
        return RoundReport(
            alpha=self.pruner.alpha_max,  # reached, which may be more than assigned: nothing is un-pruned
            beta=self.beta,
            resolution=self.resolution if self.resolution < 1 else None,
            macs_per_sample=self.macs,
            parameters=count_parameters(self.model),
            train_macs=self.meter.train_macs,
            unpruned_train_macs=self.meter.unpruned_train_macs,
            refit_macs=self.meter.refit_macs or None,
            skipped_macs=self.meter.skipped_macs or None,
            unpruned_skipped_macs=self.meter.unpruned_skipped_macs or None,
            train_time_s=fixed_seconds(self.meter.train_time_s),
            omega=finite(self.meter.omega / self.steps, f"omega/{self.name}"),
            psi=finite(self.meter.psi, f"psi/{self.name}"),
            head_drift=head_drift,
            own_loss=own_loss,
        )

    def prices(self, asked: AskedRatios) -> Prices:
        """Return the model's costs at the ratios and resolutions asked about."""
        one = self.data.train.take(self.train.held_rows()[:1])
        whole, *smaller = (
            self.batch(samples, torch.tensor([0]))
            for samples in (one, *(resize_samples(self.name, self.data, one, each) for each in asked.resolutions or ()))
        )
        return model_costs(self.model, self.pruner, whole, smaller, asked.alphas)

    def describe(self) -> Description:
        """Return digests of the weights and the finished model, the prunable layers' widths, and evaluation's cost."""
        return Description(
            weights_digest=weights_digest(self.model.state_dict()),
            finished_digest=self.evaluated.digest(),
            evaluation_macs=self.evaluated.macs,
            widths=self.pruner.widths(),
            original_widths=self.pruner.original_widths,
            weights_file=self.weights_file,
            whole_macs=self.pruner.whole_macs or None,
            unpruned_macs=self.unpruned_macs if self.pruner.whole_macs else None,
        )

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
            "data_digest": self.data.digest,
            "preparation": self.preparation.state_dict(),
            "raw": self.data.raw,
            "round": self.round_index,
            "beta": self.beta,
            "resolution": self.resolution,
            **({} if self.weights_file is None else {"weights_file": self.weights_file}),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a state; the party must be as it was built (dense). Raises ValueError for other data."""
        check_same_data(f"{self.name}'s features", state["data_digest"], self.data.digest)
        self.resize(state.get("resolution", 1.0))  # first: it forgets the finished model
        self.load_finished(state)
        self.round_index = int(state["round"])
        self.weights_file = state.get("weights_file")
        load_optimizer_state(self.optimizer, self.model, state["momentum"])
        self.sender.receiver.load_state_dict(state["feedback"])
        self.protocol.load_state_dict(state["protocol"])

    def begin_with(self, state: State) -> None:
        """Begin a training with the model in the party's state of a finished run; the party must be as it was built.

        Its prunings are repeated, nothing un-prunes; momentum, residuals and costs begin anew. Raises ConfigError for
        another model.
        """
        with naming_model(self.name):
            self.load_finished(state)
        self.evaluated.macs = 0
        self.protocol.begin_with(state["protocol"])

    def load_finished(self, state: State) -> None:
        """Load the finished model of a state and its preparation of samples, with any data."""
        super().load_finished(state)
        self._count()

    def _count(self) -> None:
        """Count the model's multiply-accumulates for a sample anew."""
        self.macs = count_macs(self.model, *self.example)
        self.skipped_macs = skipped_macs(self.model, *self.example)

    def _restore_shapes(self, state: State) -> None:
        self.pruner.load_state_dict(state["pruner"], self.optimizer)

    def _forward(self, inputs: tuple[Tensor, ...], weights: Mapping[str, Tensor]) -> ForwardPass:
        self.meter.forward(self.macs, len(inputs[0]))
        embedding_nD, used = self.passes.embed(inputs, weights)
        return ForwardPass(embedding_nD if self.defence is None else self.defence.add_noise(embedding_nD), used)

    def _probe(self) -> Tensor:
        rows_B = self.train.held_rows()[:PROBE_SAMPLES]
        return embed_still(self.model, self.batch(self.train, rows_B), self.runtime)
