"""A party that answers and does not train: one owner's finished feature model, and the samples that it embeds.

Shapes: B batch, C columns, D embedding width, S steps, n the samples of a batch for which the party has a row.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from vfl.base.random import generator
from vfl.compression.codec import ValueType
from vfl.compression.shrink import set_counts, take_shapes
from vfl.config.prediction import PredictionConfig
from vfl.core.column_paths import ColumnPaths, signed_ranks
from vfl.core.embeddings import EmbeddingSender, check_tested, decode_finite, encode_as
from vfl.core.finished_model import EvaluatedModels
from vfl.core.link import done
from vfl.core.parties import PartyProxy, PendingReply
from vfl.core.privacy.defences import PartyDefence
from vfl.data.samples import Samples
from vfl.data.source import Prepared
from vfl.messages.control import (
    ColumnCount,
    ColumnImportance,
    Completeness,
    Explained,
    Permuted,
    ReasonsOffer,
    SampleRange,
    Tells,
)
from vfl.messages.messages import REPLIES, Buffer, Kind, Message, MessageError, Part, PartKind
from vfl.models.features import TableFeatures
from vfl.runs.checkpoint import State
from vfl.runs.runtime import Runtime

T = TypeVar("T")


class FinishedParty:
    """One party k as a joint model asks it: embeds samples with its finished model. ``FeatureParty`` trains it.

    ``model``: a sample's tensors, [B, ...] each -> [B, D]. ``defence`` is its defence against leakage.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        data: Prepared,
        sender: EmbeddingSender,
        config: PredictionConfig,
        runtime: Runtime,
        defence: PartyDefence | None = None,
    ) -> None:
        self.name = name
        self.model = runtime.place(model)
        self.preparation = data.preparation
        self.train = data.train
        self.test = data.test
        self.data = data
        self.sender = sender
        self.config = config
        self.runtime = runtime
        self.defence = defence
        self.embeds_alone = defence is not None and defence.embeds_alone
        self.alpha = self.beta = 0.0
        self.alpha_max = 0.0
        """The ratio to which the finished model was pruned."""
        self.evaluated = EvaluatedModels(self.model, data.train, config, runtime)
        self.tells: Tells = "amounts"
        """What the owner discloses of its columns' reasons; in one process all owners are this user."""
        self.column_names: Sequence[str] = data.column_names
        """Names of its columns, numbers first, as it discloses them."""
        self.on_reasons: Callable[[Sequence[object], Tensor, Tensor], None] = lambda names, moved_nC, errors_n: None
        """Called with samples' names (ids, or keys), what each column moved, and the completeness errors."""
        self._paths: ColumnPaths | None = None

    def handle(self, request: Message, samples: Samples | None = None) -> Message:
        """Answer a message, which must be due (``vfl/core/round_orders.py``).

        ``samples``: prepared ones to evaluate instead of the test samples. Raises ValueError for a message that cannot
        be carried out.
        """
        parts = self.answer(request, self.test if samples is None else samples)
        return Message(REPLIES[request.kind], request.round_index, request.exchange, parts)

    def answer(self, request: Message, samples: Samples) -> tuple[Part, ...]:
        """Return the parts of the reply to a message."""
        match request.kind:
            case Kind.EVALUATE:
                return (Part(PartKind.EMBEDDING, self.frame_of(self.evaluate(SampleRange.of(request), samples))),)
            case Kind.MEAN:
                mean_1D = self.evaluated.mean_embedding()
                if self.defence is not None:
                    mean_1D = self.defence.add_noise(mean_1D)
                return (Part(PartKind.EMBEDDING, self._encoded(mean_1D, "mean embedding")),)
            case Kind.COLUMNS:
                return (ColumnCount(columns=len(self.preparation.column_places)).part(),)
            case Kind.IMPORTANCE if len(ColumnImportance.of(request).lost) == len(self.preparation.column_places):
                return ()  # the owner's process notes it
            case Kind.OFFER:
                return (self.offer().part(),)
            case Kind.EXPLAIN if self.offer().tells != "nothing":
                wanted = Explained.of(request)
                return (self.embed_paths(samples, self._explained_rows(wanted, samples), wanted.steps),)
            case Kind.ATTRIBUTE if self.offer().tells != "nothing":
                wanted = Explained.of(request)
                rows_n, frame = self._explained_rows(wanted, samples), request.only(PartKind.GRADIENT)
                return self.attribute(samples, rows_n, wanted, frame, [int(each) for each in samples.ids[rows_n]])
            case _:
                raise MessageError(f"{self.name} cannot answer {request.kind.name}")

    def offer(self) -> ReasonsOffer:
        """Return what the owner discloses of its columns' reasons; nothing without columns, and nothing beside noise.

        The points of a path are many rows that hardly differ: their mean would have little of the noise.
        """
        if self.embeds_alone or not self.preparation.column_places:
            return ReasonsOffer(tells="nothing")
        named = self.tells in ("ranks", "amounts")
        return ReasonsOffer(tells=self.tells, columns=tuple(self.column_names) if named else ())

    def embed_paths(self, samples: Samples, rows_n: Tensor, steps: int) -> Part:
        """Return the embeddings [1 + n S, D] of the reference and of the paths to some samples; empty for none."""
        if len(rows_n) == 0:
            return Part(PartKind.EMBEDDING, b"")
        paths, (rows_nW,) = self._column_paths(), self.batch(samples, rows_n)
        return Part(PartKind.EMBEDDING, encode_as("float32", paths.embed(rows_nW, steps), f"{self.name}'s path"))

    def attribute(
        self, samples: Samples, rows_n: Tensor, wanted: Explained, frame: Buffer, names: Sequence[object]
    ) -> tuple[Part, ...]:
        """Return the completeness errors, and what the owner discloses of what its columns moved.

        ``frame`` has the score's mean slopes on the steps of the paths, float32 [n S, D]; ``names`` are those of the
        samples for the owner's own file. Raises MessageError for slopes of other samples.
        """
        width = self.sender.receiver.width
        if len(rows_n) == 0 or len(wanted.gained or ()) != len(rows_n):
            raise MessageError(f"{self.name} has {len(rows_n)} of these samples, not {len(wanted.gained or ())}")
        what = f"the slopes along {self.name}'s paths"
        slope_nSD = decode_finite(frame, (len(rows_n) * wanted.steps, width), "float32", what)
        paths, (rows_nW,) = self._column_paths(), self.batch(samples, rows_n)
        gained_n = torch.tensor(wanted.gained, dtype=torch.float64)
        moved_nC, errors_n = paths.moved(rows_nW, slope_nSD.view(len(rows_n), wanted.steps, width), gained_n)
        if not bool(moved_nC.isfinite().all()):
            raise MessageError(f"{what}: what the columns moved is not finite")
        self.on_reasons(names, moved_nC, errors_n)
        told_nC = {"amounts": moved_nC, "ranks": signed_ranks(moved_nC)}.get(self.tells)
        told = b"" if told_nC is None else encode_as("float32", told_nC.float(), f"{self.name}'s reasons")
        errors = Completeness(errors=tuple(float(each) for each in errors_n))
        return errors.part(), Part(PartKind.REASONS, told)

    def _explained_rows(self, wanted: Explained, samples: Samples) -> Tensor:
        if wanted.stop > len(samples):
            raise MessageError(f"{self.name} has no samples {wanted.start} to {wanted.stop}")
        return samples.held_rows(torch.arange(wanted.start, wanted.stop))

    def _column_paths(self) -> ColumnPaths:
        model = self.evaluated.for_paths
        if self._paths is None or self._paths.model is not model:
            reference_W = self.preparation.reference()
            assert reference_W is not None, "it has columns"
            features = self.preparation.features
            codes = len(features.category_sizes) if isinstance(features, TableFeatures) else 0
            reference_1W = self.runtime.batch(reference_W[None], torch.arange(1))
            places = self.preparation.column_places
            self._paths = ColumnPaths(model, self.runtime.forward, reference_1W[0], codes, places)
        return self._paths

    def evaluate(self, wanted: SampleRange, samples: Samples) -> Tensor:
        """Return the embeddings [n, D] of a range of samples by one of the party's models, as they are received."""
        if not wanted.start < wanted.stop <= len(samples):
            raise MessageError(f"{self.name} has no test samples {wanted.start} to {wanted.stop}")
        rows_n = samples.held_rows(torch.arange(wanted.start, wanted.stop))
        if samples is not self.test:
            if wanted.permuted:
                raise MessageError("a column is permuted only among test samples")
            return self.embed_new(samples, rows_n)
        if len(rows_n) == 0:
            return torch.zeros(0, self.sender.receiver.width)
        inputs = self._permuted(rows_n, wanted.permuted) if wanted.permuted else self.batch(samples, rows_n)
        alone = self.embeds_alone
        return self._as_received(self.evaluated.embed(wanted.model, inputs, self.alpha, alone=alone))

    def embed_new(self, samples: Samples, rows_n: Tensor) -> Tensor:
        """Return the finished model's embeddings [n, D] of rows of other samples, as they are received.

        A row's embedding does not depend on the rows beside it.
        """
        if len(rows_n) == 0:
            return torch.zeros(0, self.sender.receiver.width)
        # Noise follows from the embedding's bits: another bit would draw other noise of the same row.
        alone = self.embeds_alone
        return self._as_received(self.evaluated.embed_each(self.batch(samples, rows_n), alone=alone))

    def _permuted(self, rows_n: Tensor, wanted: Permuted) -> tuple[Tensor, ...]:
        """Return the model's inputs for some test rows, with the values of one column permuted among all of them.

        The permutation follows from the experiment's seed, so that processes answer as one process.
        """
        if wanted.column >= len(self.preparation.column_places):
            raise MessageError(f"{self.name} has no column {wanted.column}")
        held = self.test.held_rows()
        stream = generator(self.config.seed, "permuted_column", wanted.draw, f"{self.name} {wanted.column}")
        instead_M = torch.arange(len(self.test))
        instead_M[held] = held[torch.randperm(len(held), generator=stream)]
        places = list(self.preparation.column_places[wanted.column])
        features_n = self.test.features[rows_n].clone()
        features_n[:, places] = self.test.features[instead_M[rows_n]][:, places]
        return (self.runtime.batch(features_n, torch.arange(len(rows_n))),)

    def batch(self, samples: Samples, rows_B: Tensor) -> tuple[Tensor, ...]:
        """Return the model's inputs for some rows."""
        return tuple(self.runtime.batch(tensor, rows_B) for tensor in samples.inputs)

    def load_finished(self, state: State) -> None:
        """Load the finished model of a state and its preparation of samples, with any data."""
        self.preparation.load_state_dict(state["preparation"])
        self.alpha_max, self.beta = float(state["pruner"]["alpha_max"]), float(state["beta"])
        if self.alpha_max:  # first: the weights of a pruned model fit no dense one
            self._restore_shapes(state)
        self.model.load_state_dict(state["model"])
        self.evaluated.load_state_dict(state["evaluated"])

    def _restore_shapes(self, state: State) -> None:
        take_shapes(self.model, state["model"])
        counts = state.get("pruner", {}).get("counts", {})
        set_counts(self.model, {tuple(name.rsplit(".", 1)): count for name, count in counts.items()})

    def _as_received(self, embedding_nD: Tensor) -> Tensor:
        """Return embeddings on the CPU with the defence's noise, and with the values that a message would bring."""
        embedding_nD = embedding_nD.cpu()
        if self.defence is not None:
            embedding_nD = self.defence.add_row_noise(embedding_nD)
        if self.config.evaluation.sparsified:
            embedding_nD = self.sender.as_received(embedding_nD, self.beta)
        # One unusual row must not end the evaluation of all. Infinity is none of it: the weights have diverged.
        if self.config.wire.values != "float32":  # which has the largest of its own
            kind = getattr(torch, self.config.wire.values)
            largest = torch.finfo(kind).max
            embedding_nD = embedding_nD.where(embedding_nD.isinf(), embedding_nD.clamp(-largest, largest))
            embedding_nD = embedding_nD.to(kind).float()
        return embedding_nD

    def frame_of(self, embedding_nD: Tensor) -> bytes:
        """Return the frame of embeddings, empty for none."""
        return self._encoded(embedding_nD, "embedding") if len(embedding_nD) else b""

    def _encoded(self, tensor: Tensor, what: str) -> bytes:
        return encode_as(self.config.wire.values, tensor, f"{self.name}'s {what}")


class Answered(PendingReply):
    """The reply of a party in this process."""

    def read(self, parse: Callable[[Message], T]) -> T | None:
        """Return ``parse`` of the reply."""
        return None if self.reply is None else parse(self.reply.result())


class PartyHere(PartyProxy):
    """A party in this process, as a joint model asks it: its embeddings need no message, and have the values of one.

    ``samples``: prepared ones that it embeds instead of its test samples.
    """

    def __init__(self, party: FinishedParty, samples: Samples | None = None) -> None:
        super().__init__(party.sender.receiver, None, None)
        self.party = party
        self.samples = party.test if samples is None else samples

    @property
    def present(self) -> bool:
        """Return that the party is asked."""
        return True

    def ask(self, request: Message) -> PendingReply:
        """Let the party answer a message; its error is raised here."""
        return Answered(self, done(self.party.handle(request, self.samples)))

    def embed(self, wanted: SampleRange, rows: int, values: ValueType) -> Callable[[], Tensor | None]:
        """Let the party embed samples; return a function that returns the embeddings."""
        embedding_nD = self.party.evaluate(wanted, self.samples)
        assert len(embedding_nD) == rows, f"{self.name} has {len(embedding_nD)} of these samples, not {rows}"
        answer = check_tested(embedding_nD, self.receiver.what) if rows else None
        return lambda: answer
