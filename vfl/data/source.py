"""A data source: the one place that knows the kind of an experiment's features. `docs/extending.md` shows one.

It names the owners, splits the samples over them, checks a file's content, prepares the inputs of models, and reads new
samples to predict. Everything else sees `Samples` (tensors, a row per sample) and `Features` (kind and shape).
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vfl.base.errors import ConfigError
from vfl.base.modules import weights_digest
from vfl.config.components import SOURCES
from vfl.config.data import DataConfig
from vfl.config.prediction import PredictionConfig
from vfl.data.drift import Histograms
from vfl.data.files import LabelData, PartyData, in_classes, load_label_data, load_party_data, numbered
from vfl.data.lazy_rows import LazyRows
from vfl.data.samples import Dataset, Samples, check_aligned, check_finite
from vfl.models.features import Features
from vfl.runs.checkpoint import State

SERVER = "server"
"""Name of the server among the owners of a run's states."""
DRAWN = 64
"""Random rows that replace a party's own: as many as are computed at once, which is tried with them."""
MOST_NAMED = 10
"""Most cells far from the training rows that are named."""


@dataclass(frozen=True, eq=False)
class Split:
    """Samples of all parties, and the labels."""

    parties: tuple[PartyData, ...]
    """Parties in the order in which their embeddings are concatenated."""
    labels: LabelData


@dataclass(frozen=True, eq=False)
class NewSamples:
    """Raw samples to predict, of all parties."""

    whole: Samples
    """Ids and, if known, labels; features only if one holder has them all."""
    parts: tuple[Samples, ...]
    """Samples of each party, in the parties' order; ids as in ``whole``."""
    keys: tuple[Sequence[str], ...] = ()
    """Tables only: the key columns' names, then every sample's key; empty if a sample has no name but its id."""
    present: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Tables only: by owner that is not absent, bool [N], True if it has a row for the sample."""
    file_order: Tensor | None = None
    """Tables only: the samples in the order of the rows of the table that names them, int64 [N]."""
    known_as: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict[str, Sequence[Sequence[str]]])
    """Result of ``served_rows`` only: each sample's key at another owner, by owner, if that is not the sample's own
    key."""

    def row(self, row: int) -> str:
        """Return the name of a sample, for its owner."""
        return f"key {' '.join(self.keys[1 + row])}" if self.keys else numbered(row)


class Preparation:
    """Transformation from raw samples to a model's inputs, fitted only to one holder's training samples.

    This base class fits nothing and changes nothing; subclasses override what differs.
    """

    histograms: Histograms | None = None
    """Counts of a table's training rows, to find drift."""

    def __init__(self, features: Features) -> None:
        self._features = features

    @property
    def features(self) -> Features:
        """Kind and shape of the prepared features, from which models are built."""
        return self._features

    @property
    def column_places(self) -> Sequence[Sequence[int]]:
        """Places in a prepared row of each raw column's values; none if rows have no columns."""
        return ()

    def apply(self, samples: Samples) -> Samples:
        """Return the model's inputs for raw samples. Raises ValueError for samples that do not fit."""
        return samples

    def freeze(self, samples: Samples) -> Samples:
        """Return raw samples whose columns that were constant in training are so here; called before ``apply``."""
        return samples

    def reference(self) -> Tensor | None:
        """Return the prepared row [W] with which the reasons of a score compare a row; None if rows have no columns."""
        return None

    def module(self) -> nn.Module | None:
        """Return ``apply`` as an exported model's first layer; None if the exported model takes prepared samples."""

    def fitted_text(self, names: Sequence[str]) -> str | None:
        """Return the fitted values as JSON, for exported models that take prepared samples; None if there are none.

        ``names``, here and below, are the columns', as in `column_places`.
        """
        return None

    def unseen_values(self, samples: Samples, names: Sequence[str]) -> str:
        """Return a line about raw values of new samples that training did not have, for their owner; "" for none."""
        return ""

    def outliers(self, samples: Samples, names: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Yield the row of each cell so far from the training rows that it is clipped, and a line for its owner."""
        yield from ()

    def state_dict(self) -> State:
        """Return the fitted state; it is saved with the party's state and never leaves the party."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore a fitted state."""

    def drawn(self, like: Samples) -> Samples:
        """Return seeded random raw samples with the shapes and types of ``like`` and plausible values."""
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
    """A holder's prepared samples, and the preparation."""

    preparation: Preparation
    train: Samples
    test: Samples
    raw: State = field(default_factory=dict[str, Any])
    """Shapes, types and names of raw samples, which new ones must have; saved with the party's state."""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, as `Preparation.column_places` counts them; numbers where a file has no names."""
        names = self.raw.get("names")
        if not names:
            return [f"column {number}" for number in range(len(self.preparation.column_places))]
        known = [*zip(names["columns"], names["kinds"], strict=True)]
        return [name for wanted in ("number", "category") for name, kind in known if kind == wanted]

    @cached_property
    def digest(self) -> str:
        """Return the digest of all features, and of the mask of missing ones."""
        further = {
            f"{split}_{number}": tensor
            for split, samples in (("train", self.train), ("test", self.test))
            for number, tensor in enumerate((*samples.more, samples.present), start=1)
            if tensor is not None
        }
        known = {"train": self.train.features, "test": self.test.features, **further}
        # Only some rows of data that need not fit into memory.
        return weights_digest({n: each.sampled() if isinstance(each, LazyRows) else each for n, each in known.items()})


class Source:
    """Base class of all sources. Sources of parties override `parties` and `split`, sources of whole samples `load`.

    ``data`` is the section `data` of the experiment; a source's own settings are `data.dataset.options`. ``seed`` is
    the experiment's and decides which training samples are drawn.
    """

    task: Literal["classification", "regression"] = "classification"
    """The experiment's task: labels are classes or amounts."""
    task_said = False
    """The experiment's settings name the task explicitly."""
    tensors = 1
    """Number of tensors of a sample, `Samples.inputs`."""

    def __init__(self, data: DataConfig, seed: int) -> None:
        self.data = data
        self.seed = seed

    @property
    def parties(self) -> tuple[str, ...]:
        """The owners' names, in the order in which the head concatenates their embeddings; known without any file.

        Raises ValueError if the source does not split over owners.
        """
        return self.data.parties

    def split(self) -> Split:
        """Load all parties' samples, the same rows in the same order. Raises ValueError, naming the field."""
        kind = self.data.dataset.kind
        raise ValueError(f"data.dataset.kind: {kind} has owners and does not split over them; its source needs split()")

    def load(self) -> Dataset:
        """Load whole samples, for clients. Raises ValueError, naming the field."""
        raise ValueError(f"data.dataset.kind: {self.data.dataset.kind} has no whole samples; use mode=vertical")

    def prepare(self, train: Samples) -> Preparation:
        """Return a preparation fitted to a holder's training samples. Raises ValueError for unusable samples."""
        return AsItIs(Features(self.data.dataset.kind, tuple(train.features.shape[1:])))

    def restore_preparation(self, state: State, like: Samples) -> Preparation:
        """Return the preparation in a fitted ``state``, of raw samples of the form of ``like``."""
        preparation = self.prepare(like)
        preparation.load_state_dict(state)
        return preparation

    def names(self, party: str) -> State:
        """Return the column names of a party's new samples, which are saved with the party."""
        return {}

    def load_names(self, party: str, names: State) -> None:
        """Restore the result of ``names``, which then needs no training data."""

    def keep_names(self, party: str, names: State) -> None:
        """Read a party's columns for training as another run has read them. Raises ValueError for other columns."""
        self.load_names(party, names)

    def check(self, samples: Samples) -> None:
        """Raise ValueError for raw samples, as read from a file, that are not of this source's kind."""
        check_finite(samples)

    def held_by(self, party: str) -> PartyData:
        """Return the samples of a party's own process. Raises ValueError, one line, for an unusable file."""
        if self.data.file is None:
            raise ValueError("data.file: is missing; name the party's file, as lvfl split-data writes it")
        return load_party_data(self.data.file, party, self.check, self.tensors)

    def held_labels(self) -> LabelData:
        """Return the labels of the server's own process. Raises ValueError, one line, for an unusable file."""
        if self.data.file is None:
            raise ValueError("data.file: is missing; name the server's labels, as lvfl split-data writes them")
        return load_label_data(self.data.file)

    def read_samples(self, given: Path | NDArray[Any], trained: Samples, classes: int) -> NewSamples:
        """Read samples to predict from a file of this source's own kind, or from an array.

        ``trained``: raw training samples of the first party. Raises ConfigError about ``Argument.DATA``.
        """
        raise ConfigError(f"--data: {self.data.dataset.kind} reads no file of samples; predict the test samples")


def open_source(config: PredictionConfig) -> Source:
    """Return the experiment's source. Raises ValueError if it cannot be used."""
    source: Source = SOURCES.make(config.data.dataset.kind, config.data, config.seed, of=Source)
    source.task, source.task_said = config.task, "task" in config.model_fields_set
    return source


def split_samples(source: Source, kept: Mapping[str, State] = MappingProxyType({})) -> Split:
    """Return the source's split, checked: its owners in their order, samples with the same ids as the labels.

    ``kept`` are states of a run by owner, whose columns and classes are kept. Raises ValueError, one line, for anything
    else, and as the source.
    """
    for name in kept.keys() & set(source.parties):
        source.keep_names(name, kept[name]["raw"]["names"])
    split = source.split()
    if SERVER in kept:
        split = replace(split, labels=in_classes(split.labels, kept[SERVER]["task"]))
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


def load_all_names(source: Source, states: Mapping[str, State]) -> None:
    """Let a source read columns as the run did that has these states, by owner, and propose nothing anew."""
    for name in states.keys() & set(source.parties):
        source.load_names(name, states[name].get("raw", {"names": {}})["names"])


def prepare_party(source: Source, data: PartyData, kept: State | None = None) -> Prepared:
    """Return a party's samples, prepared for its model; ``kept`` is its state of a run, as which it prepares them.

    Raises ValueError for samples of another form than that run's.
    """
    if kept is None:
        # A missing row holds anything at all, and must not enter means. Test rows must not either.
        preparation = source.prepare(data.train.held())
    elif (own := _raw_state(data.train, {})["shapes"]) != (theirs := kept["raw"]["shapes"]):
        raise ConfigError(f"data: a sample of {data.party} is {own}, and was {theirs} in the earlier run")
    else:
        preparation, _ = _as_fitted(source, kept, 1)
    prepared = (prepare_samples(preparation, each) for each in (data.train, data.test))
    held = Prepared(preparation, *prepared, raw=_raw_state(data.train, source.names(data.party)))
    for line in islice(far_cells(data.party, preparation, held.column_names, data.test, data.test_row), 1):
        warnings.warn(f"test rows: {line}", stacklevel=2)
    return held


def far_cells(
    party: str, preparation: Preparation, columns: Sequence[str], samples: Samples, named: Callable[[int], str]
) -> Iterator[str]:
    """Yield lines, for their owner, that name row and column of the first cells that are clipped."""
    rows = samples.held_rows()
    for row, line in islice(preparation.outliers(samples.held(), columns), MOST_NAMED):
        yield f"{party}: {named(int(rows[row]))}, {line}"


def _raw_state(samples: Samples, names: State) -> State:
    shapes = [[str(each.dtype).removeprefix("torch."), *each.shape[1:]] for each in samples.inputs]
    return {"shapes": shapes, "names": names}


def stand_in(source: Source, party: str, state: State) -> tuple[Prepared, Samples]:
    """Return random samples that replace a party's own, prepared with its fitted preparation, and raw.

    ``state`` is the party's state of a run; its preparation and ``Prepared.raw`` describe new samples.
    """
    raw: State = state["raw"]
    source.load_names(party, raw["names"])
    preparation, zeros = _as_fitted(source, state, DRAWN)
    drawn = preparation.drawn(zeros)
    prepared = prepare_samples(preparation, drawn)
    return Prepared(preparation, prepared, prepared, raw), drawn


def _as_fitted(source: Source, state: State, rows: int) -> tuple[Preparation, Samples]:
    """Return the preparation in a party's state of a run, and ``rows`` samples of its form, all 0."""
    features, *more = (torch.zeros(rows, *shape, dtype=getattr(torch, kind)) for kind, *shape in state["raw"]["shapes"])
    zeros = Samples(torch.arange(rows), features, more=tuple(more))
    return source.restore_preparation(state["preparation"], zeros), zeros


def prepare_whole(source: Source) -> Dataset:
    """Load whole samples, prepared for a model."""
    data = source.load()
    preparation = source.prepare(data.train)  # one for all clients, fitted to the training samples of all of them
    return replace(data, train=prepare_samples(preparation, data.train), test=prepare_samples(preparation, data.test))


def prepare_samples(preparation: Preparation, samples: Samples) -> Samples:
    """Return prepared samples.

    Raises ValueError as the preparation, and if it reorders samples or makes values that are not finite.
    """
    prepared = preparation.apply(preparation.freeze(samples))
    what = type(preparation).__name__
    if not prepared.ids.equal(samples.ids):  # labels, held by another owner, keep their order
        raise ValueError(f"{what}: apply gives other samples; it must keep all of them, in their order")
    if not prepared.held().is_finite():  # otherwise the loss would be NaN, and the learning rate would be blamed
        raise ValueError(f"{what}: gives values that are not finite; replace NaN and what is too large for float32")
    return prepared


class Objects(Source):
    """Data of a Python program, already split, as ``given``. Options: `owners`, the parties' names."""

    given: Split | None = None

    def split(self) -> Split:
        """Return the given data. Raises ValueError in a program that gave none."""
        if self.given is None:
            raise ConfigError(
                "data.dataset.kind: this run's data and models are objects of a Python program; "
                "call vfl.fit with the same ones and resume=True"
            )
        return self.given

    def check(self, samples: Samples) -> None:
        """Do nothing: samples are checked when a batch reads them."""
