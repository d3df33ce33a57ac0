"""One opener of a finished run: ``with where.open_run(run, wanted) as opened``, wherever the run's parties are.

``opened.ask(use)`` returns what a use, a function of the joint model, makes of it. A use is no block of code, as it may
start over: behind streams a party may be lost, and come back. In this process the opener is `HERE`; `Dialled`
(``parties/uses/dialled_run.py``) waits for parties that dial.
"""

import warnings
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

import torch
from numpy.typing import NDArray

from vfl.base.errors import Argument, Choice, ConfigError, PeerLost, WhenAbsent, nearest_name
from vfl.config.prediction import PredictionConfig
from vfl.config.tables import label_owner
from vfl.core.finished_party import PartyHere
from vfl.core.joint_model import JointModel
from vfl.core.local import LocalFederation
from vfl.core.parties import PartyProxy
from vfl.core.tasks import task_state
from vfl.data.samples import Labels, Samples
from vfl.data.source import SERVER, NewSamples, far_cells, load_all_names, open_source, prepare_samples, split_samples
from vfl.data.tables.cells import TablePlace
from vfl.data.tables.new_rows import read_new_rows, tables_of
from vfl.predict.trained_run import open_federation
from vfl.runs.stored_run import Run

T = TypeVar("T")
Subset = Literal["test", "validation"]

PREDICT_WITHOUT = Choice(
    Argument.WHEN_ABSENT, ("placeholder", "zeros", "mean", "own"), "would predict without", "give its table"
)
"""Remedy for an owner without a row."""


@dataclass(frozen=True)
class SamplesWanted:
    """The samples that a finished run is asked for, and the parties without which; by default its own, with all."""

    data: Path | NDArray[Any] | None = None
    """Other samples, as `Source.read_samples` reads it."""
    tables: Mapping[str, TablePlace] = field(default_factory=dict[str, TablePlace])
    """Tables of new rows by owner."""
    split: Subset | None = None
    """Which of the run's own samples; None: those that it evaluated."""
    absent: Collection[str] = ()
    when_absent: WhenAbsent = "refuse"
    """What replaces the embeddings of parties that are absent, or have no row."""


class OpenedRun(Protocol):
    """A finished run whose joint model can be wanted."""

    def ask(self, use: Callable[[JointModel], T]) -> T:
        """Return ``use`` of the joint model; it may be called again, with another one, if a party is lost meanwhile."""
        ...


class Place(Protocol):
    """Where the parties of a finished run are."""

    def open_run(self, run: Run, wanted: SamplesWanted) -> AbstractContextManager[OpenedRun]:
        """Open the run for some samples.

        Raises ValueError for a run or samples that cannot be used, PeerLost as ``check_absent``.
        """
        ...


@dataclass(frozen=True, eq=False)
class RunHere:
    """A finished run with all parties in this process."""

    joint: JointModel

    def ask(self, use: Callable[[JointModel], T]) -> T:
        """Return ``use`` of the joint model."""
        return use(self.joint)


class ThisProcess:
    """All parties' models are in the run's folder, and are rebuilt in this process."""

    @contextmanager
    def open_run(self, run: Run, wanted: SamplesWanted) -> Generator[RunHere]:
        """Open the run for a split of its samples, those of a file, or new rows of owners' tables.

        Parties in ``absent`` are not asked; their mean embedding is computed as the server would have stored it. Raises
        as ``open_federation``, ``check_absent`` and ``Source.read_samples``.
        """
        # Mean embeddings are of the training rows, and those are not in the run.
        own = wanted.data is None and not wanted.tables
        trained = open_federation(run, with_data=wanted.when_absent == "mean" or own)
        config = run.prediction
        check_absent(wanted.absent, config.parties, wanted.when_absent)
        if wanted.tables:
            yield RunHere(take_rows(trained, wanted))
            return
        joint = trained.joint
        if wanted.data is not None:
            joint = take_samples(
                trained, trained.source.read_samples(wanted.data, trained.raw[0], len(joint.task.names))
            )
        elif check_split(config, wanted.split) != config.data.evaluated:
            joint = _take_test(trained)
        yield RunHere(replace(joint, away=wanted.absent))


HERE = ThisProcess()


def take_rows(trained: LocalFederation, wanted: SamplesWanted) -> JointModel:
    """Give the parties new rows; the embedding of an owner that is absent or has no row is replaced."""
    tables, names = wanted.tables, trained.joint.names
    away = [name for name in names if name not in tables or name in wanted.absent]
    check_absent(away, names, wanted.when_absent)
    config = trained.joint.config
    if any(config.data.tables[owner].keys for owner in config.owners if owner not in names):
        samples_table(config, tables)  # nobody else knows which rows of the others belong together
    here = {name: table for name, table in tables.items() if name not in away}
    samples = read_new_rows(tables_of(trained.source), here)
    if wanted.when_absent == "refuse":
        check_complete(samples)
    for party, part in zip(trained.parties, samples.parts, strict=True):
        if party.name in away:
            continue
        if line := party.preparation.unseen_values(part, party.column_names):
            warnings.warn(f"{party.name}: {line}", stacklevel=2)
        for line in far_cells(party.name, party.preparation, party.column_names, part, samples.row):
            warnings.warn(line, stacklevel=2)
    return replace(take_samples(trained, samples, away), away=away, file_order=samples.file_order)


def take_samples(trained: LocalFederation, samples: NewSamples, away: Collection[str] = ()) -> JointModel:
    """Give every party but those in ``away`` its part of other samples in place of its test samples.

    They are prepared as its training samples were. Returns the joint model for these samples.
    """
    joint, asked = trained.joint, list[PartyProxy]()
    for party, part in zip(trained.parties, samples.parts, strict=True):
        prepared = None if party.name in away else prepare_samples(party.preparation, part)
        asked.append(PartyHere(party, prepared))
    whole, present_NK = samples.whole, None
    if samples.present:
        nowhere_N = torch.zeros(len(whole), dtype=torch.bool)
        present_NK = torch.stack([samples.present.get(party.name, nowhere_N) for party in trained.parties], dim=1)
    labels_N = torch.zeros(len(whole), dtype=torch.int64) if whole.labels is None else whole.labels
    return replace(
        joint,
        parties=asked,
        samples=Labels(whole.ids, labels_N, present_NK, samples.keys),
        new=True,
        labelled=whole.labels is not None,
    )


def _take_test(trained: LocalFederation) -> JointModel:
    """Give every party its test samples in place of the validation samples that the run evaluated."""
    config = trained.joint.config
    data = config.data.model_copy(update={"validation_share": 0.0})
    kept = {party.name: {"raw": party.data.raw} for party in trained.parties}
    kept |= {SERVER: {"task": task_state(trained.joint.task)}}
    source = open_source(config.model_copy(update={"data": data}))
    load_all_names(source, kept)
    split = split_samples(source, kept)
    test, parts = split.labels.test, tuple(part.test for part in split.parties)
    joint = take_samples(trained, NewSamples(Samples(test.ids, parts[0].features, test.values), parts))
    return replace(joint, samples=test)


def check_split(config: PredictionConfig, split: Subset | None) -> Subset:
    """Return the samples to predict. Raises ConfigError for validation samples of a run without any."""
    if split == "validation" and config.data.evaluated == "test":
        raise ConfigError("--split: the run has no validation samples, data.validation_share is 0; choose test")
    return split or config.data.evaluated


def check_word(word: object) -> None:
    """Raise ConfigError for a word that does not say what replaces an absent party."""
    if word not in (known := get_args(WhenAbsent)):
        raise ConfigError(f"--when-absent: {word!r} is none of {', '.join(known)}")


def check_absent(absent: Collection[str], names: Sequence[str], when_absent: WhenAbsent) -> None:
    """Raise ConfigError for an unknown party or word, PeerLost for an absent party without a replacement."""
    check_word(when_absent)
    for name in absent:
        if name not in names:
            raise ConfigError(f"--absent: no party is called {name!r}{nearest_name(name, names)}")
    if absent and when_absent == "refuse":
        who = f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} absent"
        raise PeerLost(who, PREDICT_WITHOUT)
    if len(absent) == len(names):
        raise ConfigError("--absent: no party is left to predict with; name fewer")


def check_complete(samples: NewSamples) -> None:
    """Raise ConfigError if an owner has no row for some samples and no replacement: nobody is lost, a file lacks it."""
    for name, held_N in samples.present.items():
        if not bool(held_N.all()):
            first = " ".join(samples.keys[1 + int(held_N.int().argmin())])
            why = f"{name} has no row for {int((~held_N).sum())} of {len(held_N)} keys (first {first})"
            raise ConfigError(why, PREDICT_WITHOUT)


def leader_of(config: PredictionConfig) -> str:
    """Return the owner who names new samples: the label owner, or the first party."""
    return label_owner(config.data.tables) or config.parties[0]


def samples_table(config: PredictionConfig, tables: Mapping[str, TablePlace]) -> TablePlace:
    """Return the table that names new samples, the label owner's. Raises ConfigError if it is missing."""
    leader = leader_of(config)
    if leader not in tables:
        raise ConfigError(f"--table: {leader}'s is missing; it names the samples")
    return tables[leader]
