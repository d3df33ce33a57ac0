"""A data source: the one place that knows what kind of features an experiment has. `docs/extending.md` shows one whole.

It names the owners, splits the samples over them, checks what a file holds, prepares what models read, and reads new
samples to predict. Everything else sees `Samples` (tensors, a row per sample) and `Features` (kind and shape).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from models.features import Features
from vfl.config.components import SOURCES
from vfl.config.data import DataConfig
from vfl.config.experiment import ExperimentConfig
from vfl.data.files import LabelData, PartyData, load_label_data, load_party_data
from vfl.data.rows import Rows
from vfl.data.samples import Dataset, Samples, check_aligned, check_finite
from vfl.digest import weights_digest
from vfl.runs.checkpoint import State


@dataclass(frozen=True, eq=False)
class Split:
    """Who holds what."""

    parties: tuple[PartyData, ...]
    """In the order in which their embeddings are concatenated."""
    labels: LabelData


@dataclass(frozen=True, eq=False)
class NewSamples:
    """Samples to predict, as every party holds them: raw."""

    whole: Samples
    """Ids and, where they are known, labels; features only where one holder has them all."""
    parts: tuple[Samples, ...]
    """In the parties' order; ids as in ``whole``."""
    keys: tuple[Sequence[str], ...] = ()
    """Of tables: the key columns' names, then every sample's key; empty where ids are all that names a sample."""
    present: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Of tables: by owner that is not away, whether it has a row for each sample, bool [N]."""
    order: Tensor | None = None
    """Of tables: the samples in the order of the rows of the table that names them, int64 [N]."""


class Preparation:
    """What was fitted to a holder's training samples alone; makes of its raw samples what its model reads.

    Subclasses override what differs from nothing being fitted.
    """

    def __init__(self, features: Features) -> None:
        self._features = features

    @property
    def features(self) -> Features:
        """What models are built from."""
        return self._features

    def apply(self, samples: Samples) -> Samples:
        """Return raw samples as a model reads them. Raises ValueError for samples that do not fit."""
        return samples

    def module(self) -> nn.Module | None:
        """Return ``apply`` as the first layer of an exported model; None where that takes what ``apply`` returns."""

    def state_dict(self) -> State:
        """Return what was fitted; it is saved with the party's state and never leaves the party."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Take over what was fitted."""

    def drawn(self, like: Samples) -> Samples:
        """Return seeded raw samples of the shape and types of ``like``, as they might be: pixels, amounts."""
        stream = torch.Generator().manual_seed(0)
        return replace(
            like, features=_draw(like.features, stream), more=tuple(_draw(each, stream) for each in like.more)
        )


def _draw(like: Tensor, stream: torch.Generator) -> Tensor:
    if like.is_floating_point():
        return torch.randn(like.shape, generator=stream, dtype=like.dtype)
    high = 256 if like.dtype == torch.uint8 else 1  # a whole number may be a place in a list of unknown length
    return torch.randint(0, high, like.shape, generator=stream, dtype=like.dtype)


class AsItIs(Preparation):
    """Nothing is fitted: models read the samples unchanged."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A holder's samples as its model reads them, and what prepared them."""

    preparation: Preparation
    train: Samples
    test: Samples
    raw: State = field(default_factory=dict[str, Any])
    """What new samples look like before they are prepared; saved with the party's state, as the preparation is."""

    @cached_property
    def digest(self) -> str:
        """Return what stands for all features, and for which are missing."""
        further = {
            f"{split}_{number}": tensor
            for split, samples in (("train", self.train), ("test", self.test))
            for number, tensor in enumerate((*samples.more, samples.present), start=1)
            if tensor is not None
        }
        known = {"train": self.train.features, "test": self.test.features, **further}
        # Of data that need not fit into memory, some rows.
        return weights_digest({n: each.sampled() if isinstance(each, Rows) else each for n, each in known.items()})


class Source:
    """Base of all sources: one of parts overrides `parties` and `split`, one of whole samples `load`; more as needed.

    Args:
        data: the section `data` of the experiment; a source's own settings are `data.dataset.options`.
        seed: of the experiment; decides which training samples are drawn.
    """

    task: Literal["classification", "regression"] = "classification"
    """Of the experiment: whether labels are classes or amounts."""
    task_said = False
    """Whether the experiment's settings name the task, and do not leave it to the default."""
    tensors = 1
    """Number of a sample's tensors, `Samples.inputs`."""

    def __init__(self, data: DataConfig, seed: int) -> None:
        self.data = data
        self.seed = seed

    @property
    def parties(self) -> tuple[str, ...]:
        """The owners' names, in the order in which the head concatenates their embeddings; known without any file.

        Raises ValueError where the source does not split over owners.
        """
        raise ValueError(f"data.dataset.kind: {self.data.dataset.kind} has no owners of features; use mode=horizontal")

    def split(self) -> Split:
        """Load everybody's samples, the same rows in the same order for all. Raises ValueError, naming the field."""
        kind = self.data.dataset.kind
        raise ValueError(f"data.dataset.kind: {kind} has owners and does not split over them; its source needs split()")

    def load(self) -> Dataset:
        """Load whole samples, for clients that hold samples. Raises ValueError, naming the field."""
        raise ValueError(f"data.dataset.kind: {self.data.dataset.kind} has no whole samples; use mode=vertical")

    def prepare(self, train: Samples) -> Preparation:
        """Fit to a holder's training samples. Raises ValueError for samples that cannot be used."""
        return AsItIs(Features(self.data.dataset.kind, tuple(train.features.shape[1:])))

    def preparation_text(self, party: str, preparation: Preparation) -> str | None:
        """Return what was fitted as JSON, for an export whose models take prepared samples; None for nothing to say."""
        return None

    def names(self, party: str) -> State:
        """Return how the columns of a party's new samples are called, to be saved with the party."""
        return {}

    def load_names(self, party: str, names: State) -> None:
        """Take over what ``names`` gave, so that the party's training data are not needed for it."""

    def check(self, samples: Samples) -> None:
        """Raise ValueError for raw samples, as a file holds them, that are not of this kind."""
        check_finite(samples)

    def held_by(self, party: str) -> PartyData:
        """Return what the party's own process holds. Raises ValueError, one line, for an unusable file."""
        if self.data.file is None:
            raise ValueError("data.file: is missing; name the party's file, as lvfl split-data writes it")
        return load_party_data(self.data.file, party, self.check, self.tensors)

    def held_labels(self) -> LabelData:
        """Return what the server's own process holds. Raises ValueError, one line, for an unusable file."""
        if self.data.file is None:
            raise ValueError("data.file: is missing; name the server's labels, as lvfl split-data writes them")
        return load_label_data(self.data.file)

    def read_tables(self, paths: Mapping[str, Path]) -> NewSamples:
        """Read new rows to predict from tables by owner. Raises ValueError for a source without tables."""
        raise ValueError(f"--table: {self.data.dataset.kind} has no tables; use --data")

    def whose_table(self, path: Path) -> tuple[str, ...]:
        """Return whose new rows a table without an owner's name holds. Raises ValueError where it is uncertain."""
        raise ValueError(f"--table: {self.data.dataset.kind} has no tables; use --data")

    def own_rows(self, path: Path, owner: str | None = None) -> NewSamples | None:
        """Read new rows of one owner alone (None: of the labels' owner) from a file of its own kind.

        None where ``path`` is no such file, but one that ``write_prediction_files`` wrote.
        """
        return None

    def read_samples(self, path: Path, trained: Samples, classes: int) -> NewSamples:
        """Read samples to predict from a file of this source's own.

        ``trained``: raw training samples of the first party. Raises ValueError, one line that begins with ``--data``.
        """
        raise ValueError(f"--data: {path}: {self.data.dataset.kind} reads no file of samples; predict the test samples")


def open_source(config: ExperimentConfig) -> Source:
    """Return the experiment's source. Raises ValueError for one that cannot be used."""
    source: Source = SOURCES.make(config.data.dataset.kind, config.data, config.seed, of=Source)
    source.task, source.task_said = config.task, "task" in config.model_fields_set
    return source


def split_samples(source: Source) -> Split:
    """Return who holds what: the source's owners, in its order, samples of the same ids as the labels.

    Raises ValueError, one line, for anything else, and as the source.
    """
    split = source.split()
    held, parties = tuple(part.party for part in split.parties), tuple(source.parties)
    if held != parties:
        kind, parts, owners = source.data.dataset.kind, ", ".join(held), ", ".join(parties)
        raise ValueError(f"data.dataset.kind: {kind} splits over {parts}; its owners are {owners}")
    digests = {part.party: part.ids_digests() for part in split.parties} | {"labels": split.labels.ids_digests()}
    for subset in ("train", "test"):
        check_aligned({holder: each[subset] for holder, each in digests.items()})
    for part in split.parties:
        source.check(part.train)
        source.check(part.test)
    return split


def prepare_party(source: Source, data: PartyData) -> Prepared:
    """Return a party's samples as its model reads them."""
    # A missing row holds anything at all, and must not enter means. Test rows must not either.
    preparation = source.prepare(data.train.held())
    prepared = (prepare_samples(preparation, each) for each in (data.train, data.test))
    return Prepared(preparation, *prepared, raw=_raw_state(data.train, source.names(data.party)))


def _raw_state(samples: Samples, names: State) -> State:
    shapes = [[str(each.dtype).removeprefix("torch."), *each.shape[1:]] for each in samples.inputs]
    return {"shapes": shapes, "names": names}


def stand_in(source: Source, party: str, state: State, rows: int) -> tuple[Prepared, Samples]:
    """Return a party's data with ``rows`` drawn rows in the place of its own, prepared as these were, and raw.

    ``state``: the party's, of a run; its preparation and ``Prepared.raw`` are what new samples need.
    """
    raw: State = state["raw"]
    source.load_names(party, raw["names"])
    features, *more = (torch.zeros(rows, *shape, dtype=getattr(torch, kind)) for kind, *shape in raw["shapes"])
    zeros = Samples(torch.arange(rows), features, more=tuple(more))
    preparation = source.prepare(zeros)
    preparation.load_state_dict(state["preparation"])
    drawn = preparation.drawn(zeros)
    prepared = prepare_samples(preparation, drawn)
    return Prepared(preparation, prepared, prepared, raw), drawn


def prepare_whole(source: Source) -> Dataset:
    """Load whole samples as a model reads them."""
    data = source.load()
    preparation = source.prepare(data.train)  # one for all clients, fitted to the training samples of all of them
    return replace(data, train=prepare_samples(preparation, data.train), test=prepare_samples(preparation, data.test))


def prepare_samples(preparation: Preparation, samples: Samples) -> Samples:
    """Return raw samples as a model reads them.

    Raises ValueError as the preparation, and where it moves samples or makes values that are not finite.
    """
    prepared = preparation.apply(samples)
    what = type(preparation).__name__
    if not prepared.ids.equal(samples.ids):  # it may be another package's, and labels lie with somebody else
        raise ValueError(f"{what}: apply gives other samples; it must keep all of them, in their order")
    if not prepared.held().is_finite():  # else the loss would be NaN, and the learning rate be blamed
        raise ValueError(f"{what}: gives values that are not finite; replace NaN and what is too large for float32")
    return prepared
