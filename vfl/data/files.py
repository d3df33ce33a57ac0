"""Data files of separate processes, each one safetensors file: a party's features, the server's labels.

    file                        `holds`         tensors
    PARTY.safetensors           features        train.ids, train.features, test.ids, test.features
                                                (and train.features_1, ... where a sample has several tensors)
    labels.safetensors          labels          train.ids, train.labels, test.ids, test.labels
                                                (and train.weights, test.weights, float64 [N], where rows weigh)
    shared_labels.safetensors   shared_labels   train.ids, train.labels

ids: int64 [N], unique, the same in the same order in all files of an experiment. features: [N, ...], as the source has
them before it prepares them; images are uint8 or float32 [N, C, H, W]. labels: int64 [N], indices into the classes, or
float32 or float64 [N], amounts. Where rows are missing there is train.present or test.present beside: in a party's
file bool [N], whether it has the row; beside labels bool [N, K], for each party in the experiment's order. The file's
metadata are `holds`, with features `party`, and with labels `classes`, a JSON list of names (empty for amounts). Owners
of other data write such files themselves.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vfl.base.errors import ConfigError
from vfl.data.samples import Labels, Samples, ids_digest
from vfl.data.tables.canonical import spell
from vfl.runs.atomic import Fingerprint
from vfl.runs.checkpoint import State
from vfl.runs.tensor_file import write_tensors

PRIVATE = 0o600
FEATURES, LABELS, SHARED_LABELS = "features", "labels", "shared_labels"
PRESENT = "present"
"""Name of the tensor that marks the rows that are present; left out if none is missing."""
WEIGHTS = "weights"
"""Name of the tensor of the labels' weights; left out if all are alike."""


def numbered(row: int) -> str:
    """Return the name of a row without a key."""
    return f"row {row + 1}"


@dataclass(frozen=True, eq=False)
class PartyData:
    """One party's raw samples. Raises ValueError if an id is in both training and test samples."""

    party: str
    train: Samples
    test: Samples
    test_row: Callable[[int], str] = numbered
    """Name of a test row, for its owner."""

    def __post_init__(self) -> None:
        _check_apart(self.train.ids, self.test.ids)

    def ids_digests(self) -> dict[str, str]:
        """Return `Samples.ids_digest` of training and test samples."""
        return {"train": self.train.ids_digest(), "test": self.test.ids_digest()}


@dataclass(frozen=True, eq=False)
class SharedLabels:
    """Training labels that the parties hold with ``training.labels: shared``. Raises ValueError for invalid labels."""

    classes: tuple[str, ...]
    train: Labels

    def __post_init__(self) -> None:
        check_classes(self.classes, self.train.values)

    def ids_digests(self) -> dict[str, str]:
        """Return the digest of the training ids, as `Samples.ids_digest`."""
        return {"train": ids_digest(self.train.ids)}


@dataclass(frozen=True, eq=False)
class LabelData(SharedLabels):
    """Labels that the server holds. Raises ValueError as `SharedLabels`, and if an id is in both training and test."""

    test: Labels

    def __post_init__(self) -> None:
        super().__post_init__()
        check_classes(self.classes, self.test.values)
        _check_apart(self.train.ids, self.test.ids)

    def ids_digests(self) -> dict[str, str]:
        """Return the digests of the ids, as `Samples.ids_digest`."""
        return super().ids_digests() | {"test": ids_digest(self.test.ids)}


H = TypeVar("H", bound=SharedLabels)


def in_classes(held: H, task: State) -> H:
    """Return labels as indices of the classes in a run's ``task_state``. Raises ConfigError for another class."""
    names = tuple(cast(Sequence[str], task["names"]))
    if held.classes == names:
        return held
    places = {spell(name): place for place, name in enumerate(names)}
    if other := [name for name in held.classes if spell(name) not in places]:
        raise ConfigError(f"training.start_from: class {other[0]!r} is none of the run's: {', '.join(names)}")
    index = torch.tensor([places[spell(name)] for name in held.classes])
    labels = {split: getattr(held, split) for split in ("train", "test") if hasattr(held, split)}
    return replace(held, classes=names, **{k: replace(each, values=index[each.values]) for k, each in labels.items()})


def write_party_data(path: Path, data: PartyData) -> Fingerprint:
    """Write a party's file (0600). Raises OSError."""
    tensors = sample_tensors(data.train, "train.") | sample_tensors(data.test, "test.")
    return write_tensors(path, tensors, {"holds": FEATURES, "party": data.party}, mode=PRIVATE)


def write_label_data(path: Path, data: LabelData) -> Fingerprint:
    """Write the server's file (0600). Raises OSError."""
    tensors = _label_tensors("train", data.train) | _label_tensors("test", data.test)
    return write_tensors(path, tensors, {"holds": LABELS, "classes": json.dumps(data.classes)}, mode=PRIVATE)


def write_shared_labels(path: Path, data: SharedLabels) -> Fingerprint:
    """Write the parties' file of the training labels (0600). Raises OSError."""
    metadata = {"holds": SHARED_LABELS, "classes": json.dumps(data.classes)}
    return write_tensors(path, _label_tensors("train", data.train), metadata, mode=PRIVATE)


def load_party_data(path: Path, party: str, check: Callable[[Samples], None], tensors: int = 1) -> PartyData:
    """Read the file of ``party``; samples have ``tensors`` tensors, and ``check`` raises ValueError for a misfit.

    Raises ValueError, one line, for anything else.
    """
    names = [f"{split}.{name}" for split in ("train", "test") for name in sample_names(tensors)]
    metadata, held = read_tensors("data.file", path, {FEATURES: names})
    check_party("data.file", path, metadata, party)
    with naming("data.file", path):
        train, test = (samples_of(held, f"{split}.", check) for split in ("train", "test"))
        check_shapes("training features", train, "test features", test)
        return PartyData(party, train, test)


def load_label_data(path: Path) -> LabelData:
    """Read the server's file. Raises ValueError, one line, for anything else."""
    metadata, tensors = read_tensors("data.file", path, {LABELS: (*_label_names("train"), *_label_names("test"))})
    with naming("data.file", path):
        train, test = _labels("train", tensors), _labels("test", tensors)
        return LabelData(_classes(metadata), train, test)


def load_shared_labels(path: Path) -> SharedLabels:
    """Read the parties' file of the training labels. Raises ValueError, one line, for anything else."""
    metadata, tensors = read_tensors("data.labels_file", path, {SHARED_LABELS: _label_names("train")})
    with naming("data.labels_file", path):
        return SharedLabels(_classes(metadata), _labels("train", tensors))


@contextmanager
def naming(field: str, path: Path) -> Generator[None]:
    """Prefix the message of a ValueError with the field and its file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{field}: {path}: {error}") from None


def sample_names(tensors: int) -> list[str]:
    """Return the names under which samples of ``tensors`` tensors are stored."""
    return ["ids", "features", *(f"features_{number}" for number in range(1, tensors)), PRESENT]


def sample_tensors(samples: Samples, prefix: str = "") -> dict[str, Tensor]:
    """Return ids and features of samples by the names under which they are stored."""
    names = [prefix + name for name in sample_names(len(samples.inputs))]
    return _named(names, (samples.ids, *samples.inputs, samples.present))


def samples_of(held: Mapping[str, Tensor], prefix: str, check: Callable[[Samples], None]) -> Samples:
    """Return the samples stored under names with a prefix. Raises ValueError, naming it, if they do not fit."""
    own = {name: tensor for name, tensor in held.items() if name.startswith(prefix)}
    present = own.pop(prefix + PRESENT, None)
    ids, features, *more = own.values()  # in the order of `sample_names`, which `read_tensors` keeps
    try:
        samples = Samples(ids, features, more=tuple(more), present=present)
        check(samples)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from None
    return samples


def check_shapes(what: str, samples: Samples, other_what: str, others: Samples) -> None:
    """Raise ValueError if two holdings' samples have different shapes."""
    shapes = [[list(tensor.shape[1:]) for tensor in each.inputs] for each in (samples, others)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"{what} are {shapes[0]} and {other_what} {shapes[1]}")


def read_tensors(
    field: str, path: Path, kinds: Mapping[str, Sequence[str]]
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return metadata and tensors, on the CPU and independent of the file.

    ``kinds`` maps each accepted kind of file to the exact names of its tensors, to which those of present rows may be
    added. Raises ValueError, naming ``field``.
    """
    try:
        with cast(Any, safe_open(path, framework="pt")) as file:  # the library's is untyped
            metadata: dict[str, str] = file.metadata() or {}
            holds = metadata.get("holds", "something else")
            if holds not in kinds:
                raise ValueError(f"{field}: {path} holds {holds}, not {' or '.join(kinds)}")
            names = kinds[holds]
            held: set[str] = set(file.keys())
            due = [name for name in names if name in held or not name.endswith((PRESENT, WEIGHTS))]
            if held != set(due):
                raise ValueError(
                    f"{field}: {path} has the tensors {', '.join(sorted(held))} instead of {', '.join(due)}"
                )
            return metadata, {name: file.get_tensor(name).clone() for name in due}
    except OSError as error:
        raise ValueError(f"{field}: {path} cannot be read ({error.strerror or error})") from None
    except SafetensorError as error:
        raise ValueError(f"{field}: {path} is no safetensors file, or damaged ({error})") from None


def check_party(field: str, path: Path, metadata: Mapping[str, str], party: str) -> None:
    """Raise ValueError if the file holds another party's features."""
    if metadata.get("party") != party:
        raise ValueError(f"{field}: {path} holds the features of {metadata.get('party')!r}, not of {party!r}")


def _classes(metadata: Mapping[str, str]) -> tuple[str, ...]:
    try:
        names = json.loads(metadata.get("classes", ""))
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in cast(list[object], names)):
        raise ValueError("its metadata 'classes' must be a JSON list of names")
    return tuple(cast(list[str], names))


def _label_names(split: str) -> tuple[str, str, str, str]:
    return f"{split}.ids", f"{split}.labels", f"{split}.{PRESENT}", f"{split}.{WEIGHTS}"


def _label_tensors(split: str, labels: Labels) -> dict[str, Tensor]:
    return _named(_label_names(split), (labels.ids, labels.values, labels.present, labels.weights))


def _named(names: Sequence[str], tensors: Sequence[Tensor | None]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in zip(names, tensors, strict=True) if tensor is not None}


def _labels(split: str, tensors: Mapping[str, Tensor]) -> Labels:
    ids, values, present, weights = _label_names(split)
    return Labels(tensors[ids], tensors[values], tensors.get(present), weights=tensors.get(weights))


def check_classes(classes: Sequence[str], labels: Tensor) -> None:
    """Raise ValueError for labels [N] that are not indices of the classes or, without classes, not amounts."""
    if labels.is_floating_point() == bool(classes):
        raise ValueError("labels: class indices need names of classes, amounts have none")
    if classes and not bool(((labels >= 0) & (labels < len(classes))).all()):
        raise ValueError(f"labels must be 0 to {len(classes) - 1}, the indices of the classes")


def _check_apart(train: Tensor, test: Tensor) -> None:
    if bool(torch.isin(train, test).any()):
        raise ValueError("ids: a sample is in both training and test; take it out of one")
