"""A party that answers and does not train: one owner's finished feature model, and the samples that it embeds.

Shapes: B batch, D embedding width, n the samples of a batch for which the party has a row.
"""

import torch
from torch import Tensor, nn

from vfl.base.random import generator
from vfl.compression.shrink import set_counts, take_shapes
from vfl.config import ExperimentConfig
from vfl.core.embeddings import EmbeddingSender, encode_as
from vfl.core.finished_model import EvaluatedModels
from vfl.core.privacy.defences import NoDefence
from vfl.data.samples import Samples
from vfl.data.source import Prepared
from vfl.messages.control import ColumnCount, ColumnImportance, Permuted, SampleRange
from vfl.messages.messages import REPLIES, Kind, Message, MessageError, Part, PartKind
from vfl.runs.checkpoint import State
from vfl.runs.runtime import Runtime


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
        config: ExperimentConfig,
        runtime: Runtime,
        defence: NoDefence = NoDefence(),  # noqa: B008 - without state
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
        self.alpha = self.beta = 0.0
        self.evaluated = EvaluatedModels(self.model, data.train, config, runtime)

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
                return (Part(PartKind.EMBEDDING, self.evaluate(SampleRange.of(request), samples)),)
            case Kind.MEAN:
                mean_1D = self.defence.add_noise(self.evaluated.mean_embedding())
                return (Part(PartKind.EMBEDDING, self._encoded(mean_1D, "mean embedding")),)
            case Kind.COLUMNS:
                return (ColumnCount(columns=len(self.preparation.column_places)).part(),)
            case Kind.IMPORTANCE if len(ColumnImportance.of(request).lost) == len(self.preparation.column_places):
                return ()  # the owner's process notes it
            case _:
                raise MessageError(f"{self.name} cannot answer {request.kind.name}")

    def evaluate(self, wanted: SampleRange, samples: Samples) -> bytes:
        """Return the frame of the embeddings of a range of samples by one of the party's models."""
        if not wanted.start < wanted.stop <= len(samples):
            raise MessageError(f"{self.name} has no test samples {wanted.start} to {wanted.stop}")
        rows_n = samples.held_rows(torch.arange(wanted.start, wanted.stop))
        if samples is not self.test:
            if wanted.permuted:
                raise MessageError("a column is permuted only among test samples")
            return self.embed_new(samples, rows_n)
        if len(rows_n) == 0:
            return b""
        inputs = self._permuted(rows_n, wanted.permuted) if wanted.permuted else self.batch(samples, rows_n)
        alone = self.defence.embeds_alone
        return self._evaluation(self.evaluated.embed(wanted.model, inputs, self.alpha, alone=alone))

    def embed_new(self, samples: Samples, rows_n: Tensor) -> bytes:
        """Return the frame of the finished model's embeddings [n, D] of rows of other samples, empty for no rows.

        A row's embedding does not depend on the rows beside it.
        """
        if len(rows_n) == 0:
            return b""
        # Noise follows from the embedding's bits: another bit would draw other noise of the same row.
        alone = self.defence.embeds_alone
        return self._evaluation(self.evaluated.embed_each(self.batch(samples, rows_n), alone=alone))

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
        self.beta = float(state["beta"])
        self._restore_shapes(state)  # first: the weights of a pruned model fit no dense one
        self.model.load_state_dict(state["model"])
        self.evaluated.load_state_dict(state["evaluated"])

    def _restore_shapes(self, state: State) -> None:
        take_shapes(self.model, state["model"])
        counts = state.get("pruner", {}).get("counts", {})
        set_counts(self.model, {tuple(name.rsplit(".", 1)): count for name, count in counts.items()})

    def _evaluation(self, embedding_nD: Tensor) -> bytes:
        embedding_nD = self.defence.add_row_noise(embedding_nD.cpu())
        if self.config.evaluation.sparsified:
            embedding_nD = self.sender.as_received(embedding_nD, self.beta)
        # One unusual row must not end the evaluation of all. Infinity is none of it: the weights have diverged.
        if self.config.wire.values != "float32":  # which has the largest of its own
            largest = torch.finfo(getattr(torch, self.config.wire.values)).max
            embedding_nD = embedding_nD.where(embedding_nD.isinf(), embedding_nD.clamp(-largest, largest))
        return self._encoded(embedding_nD, "embedding")

    def _encoded(self, tensor: Tensor, what: str) -> bytes:
        return encode_as(self.config.wire.values, tensor, f"{self.name}'s {what}")
