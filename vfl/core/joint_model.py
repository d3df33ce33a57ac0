"""The joint model: all parties' finished models and the head, wherever the parties are. `Exchanges` train it.

A use is a function of it: `predict`, `joint_answers`, `column_importance`, `Evaluation`. Only what opens a run knows
where the parties are: a `Place` (``vfl/predict/open_run.py``).

Shapes: B batch, M samples, D width of one embedding, C outputs, K parties.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from vfl.base.modules import copy_model
from vfl.config.prediction import PredictionConfig
from vfl.core.head import Head
from vfl.core.parties import PartyProxy
from vfl.core.presence import RowMask
from vfl.core.row_by_row import RowByRow
from vfl.core.tasks import Task, Tested, measure
from vfl.data.samples import Labels
from vfl.messages.control import EvaluatedModel, Permuted, SampleRange
from vfl.messages.messages import Kind, Message
from vfl.models.auxiliary import has_classifiers


class StoredMeans(Protocol):
    """Mean embeddings [D] of the parties' training samples, which outlast a party's answers."""

    def of(self, names: Collection[str]) -> Mapping[str, Tensor]:
        """Return those of some parties."""
        ...

    def keep(self, joint: "JointModel") -> None:
        """Store those of the present parties."""
        ...


@dataclass(frozen=True, eq=False)
class JointModel:
    """A joint model and the samples that it is evaluated on: the test samples, or others in their place.

    Args:
        parties: all parties, in the order in which their embeddings are concatenated; absent ones are not asked.
        head: the head model.
        config: the experiment.
        samples: their labels [M], and the parties that have a row for them.
    """

    parties: Sequence[PartyProxy]
    head: Head
    config: PredictionConfig
    samples: Labels
    new: bool = False
    """The samples are others than the test samples: a row's outputs do not depend on the rows beside it."""
    labelled: bool = True
    """The samples' labels are known; otherwise they are zeros."""
    instead: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Replacement [D] of a missing embedding, by party; the head's placeholder replaces those of others."""
    away: Collection[str] = ()
    """Parties whose embeddings a prediction replaces."""
    file_order: Tensor | None = None
    """Tables only: order of the samples, as in ``NewSamples``."""
    stored_means: "StoredMeans | None" = None
    """Mean embeddings of parties, which may be away; None: the parties are asked for theirs."""

    @property
    def task(self) -> Task:
        """The meaning of the outputs."""
        return self.head.task

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all parties."""
        return tuple(party.receiver.sender for party in self.parties)

    @property
    def present(self) -> list[PartyProxy]:
        """The parties that are not absent."""
        return [party for party in self.parties if party.present]

    def without(self, away: Collection[str]) -> "JointModel":
        """Return the joint model without asking some parties: their embeddings are missing."""
        parties = [
            PartyProxy(party.receiver, None, party.ledger) if party.name in away else party for party in self.parties
        ]
        return replace(self, parties=parties)

    def predictions(self) -> Tensor:
        """Return the predictions [M, C] of the samples; for classes their probabilities."""
        predictions = list[Tensor]()
        for start, stop in self.batches():
            predictions.append(self.task.predictions(self.outputs(self.embeddings(start, stop))).cpu())
        return torch.cat(predictions)

    def measure(self, model: EvaluatedModel, sets: Sequence[tuple[str, ...]]) -> tuple[list[Tested], dict[str, Tested]]:
        """Return metrics and predictions of all samples for each set of parties, as if the others were absent.

        And those of each party's own classifier on the samples for which it has a row, if the head has them.
        """
        outputs: list[list[Tensor]] = [[] for _ in sets]
        own: list[list[tuple[Tensor, Tensor]]] = []
        for start, stop in self.batches():
            there = self.embeddings(start, stop, model=model)
            own.append(self.own_answers(there))
            away = {party: self.missing(*embedding_BD.shape) for party, embedding_BD in there.items()}
            for names, batches in zip(sets, outputs, strict=True):
                batches.append(self.outputs(away | {party: there[party] for party in names}))
        device, weights_M = self.head.runtime.device, self.samples.weights
        labels_M, weights_M = self.samples.values.to(device), None if weights_M is None else weights_M.to(device)
        tested = [measure(self.task, batches, labels_M, weights_M) for batches in outputs]
        alone: dict[str, Tested] = {}
        for name, batches in zip(self.names, zip(*own, strict=True), strict=False):
            here_M = torch.cat([present_B for _, present_B in batches])
            answers_nC = torch.cat([answer_BC[present_B] for answer_BC, present_B in batches])
            if len(answers_nC):
                weights_n = None if weights_M is None else weights_M[here_M]
                with warnings.catch_warnings():  # where its rows are of one class, it has no AUC
                    warnings.simplefilter("ignore")
                    alone[name] = measure(self.task, [answers_nC], labels_M[here_M], weights_n)
        return tested, alone

    def batches(self) -> Iterator[tuple[int, int]]:
        """Yield first row and end of the batches in which samples are evaluated."""
        samples, size = len(self.samples.values), self.config.evaluation.batch_size
        for start in range(0, samples, size):
            yield start, min(start + size, samples)

    def embeddings(self, start: int, stop: int, model: EvaluatedModel = "finished") -> dict[str, Tensor]:
        """Request the embeddings [B, D] of the samples ``start`` to ``stop``; return all parties' by name.

        The embeddings of absent parties, and of samples without a party's row, are missing values or what is
        ``instead``.
        """
        wanted, masks = SampleRange(start=start, stop=stop, model=model), self.masks(start, stop)
        waiting = [
            party.embed(wanted, mask.count, self.config.wire.values)
            for party, mask in zip(self.parties, masks.values(), strict=True)
        ]
        embeddings: dict[str, Tensor] = {}
        for party, (name, mask), answer in zip(self.parties, masks.items(), waiting, strict=True):
            embedding_BD = answer()
            here_B1 = mask.present_B[:, None] & (embedding_BD is not None)
            if embedding_BD is None:
                embedding_BD = self.missing(stop - start, party.receiver.width)
            elif not mask.whole:
                embedding_BD = mask.spread(embedding_BD, self.head.missing)
            if name in self.instead:
                embedding_BD = torch.where(here_B1, embedding_BD, self.instead[name])
            embeddings[name] = embedding_BD
        return embeddings

    def permuted(self, party: PartyProxy, start: int, stop: int, permuted: Permuted) -> Tensor:
        """Request one party's embeddings [B, D] of the test samples ``start`` to ``stop``, with a column permuted."""
        wanted = SampleRange(start=start, stop=stop, permuted=permuted)
        mask = self.masks(start, stop)[party.name]
        came = party.embed(wanted, mask.count, self.config.wire.values)()
        if came is None:
            return self.missing(stop - start, party.receiver.width)
        return came if mask.whole else mask.spread(came, self.head.missing)

    def masks(self, start: int, stop: int) -> dict[str, RowMask]:
        """Return each party's mask of the samples ``start`` to ``stop``: those for which it has a row."""
        present_MK = self.samples.present
        if present_MK is None:
            return {name: RowMask.of_all(stop - start) for name in self.names}
        by_party = zip(self.names, present_MK[start:stop].unbind(1), strict=True)
        return {name: RowMask.of(present_B) for name, present_B in by_party}

    def missing(self, samples: int, width: int) -> Tensor:
        """Return [B, D] of values for missing embeddings."""
        return torch.full((samples, width), self.head.missing)

    def mean_embeddings(self, names: Collection[str]) -> dict[str, Tensor]:
        """Request the means [D] of the parties' embeddings of all training samples; return them by name.

        Absent parties have none.
        """
        asked = [party.ask(Message(Kind.MEAN)) for party in self.parties if party.name in names]
        how: dict[str, Any] = {"rows": 1, "values": self.config.wire.values}
        came = {each.party.name: each.read(partial(each.party.read_embedding, **how)) for each in asked}
        return {name: mean_1D[0] for name, mean_1D in came.items() if mean_1D is not None}

    def replacing_means(self, names: Collection[str]) -> Mapping[str, Tensor]:
        """Return mean embeddings [D] of parties by name: stored ones, or by asking."""
        return self.mean_embeddings(names) if self.stored_means is None else self.stored_means.of(names)

    def own_answers(self, embeddings: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return each party's own answer [B, C], and bool [B], True where it has an embedding [B, D]; see `Head`."""
        if not has_classifiers(self.head.head):
            return []
        representation_BP = torch.cat([embeddings[name] for name in self.names], dim=1)
        with torch.inference_mode():
            return self.head.own_answers(representation_BP.to(self.head.runtime.device))

    def outputs(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Return the head's outputs [B, C] of all parties' embeddings [B, D]."""
        representation_BP = torch.cat([embeddings[name] for name in self.names], dim=1)

        with torch.inference_mode():
            representation_BP = representation_BP.to(self.head.runtime.device)
            return self._row_by_row([representation_BP]) if self.new else self.head.forward(representation_BP)

    @cached_property
    def _row_by_row(self) -> RowByRow:
        def probes(rows: int) -> list[Tensor]:
            width = sum(party.receiver.width for party in self.parties)
            return [torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(self.head.runtime.device)]

        return RowByRow(copy_model(self.head.head), self.head.runtime.forward, probes)
