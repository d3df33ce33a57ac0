"""An experiment's data set, split over the parties: the same for all in one process and for files of their own."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vfl.atomic import write_together
from vfl.config import ExperimentConfig
from vfl.data.datasets import load_dataset
from vfl.data.files import (
    LabelData,
    Labels,
    PartyData,
    SharedLabels,
    write_label_data,
    write_party_data,
    write_shared_labels,
)
from vfl.data.samples import Samples
from vfl.data.vertical import grid_partition

LABELS_FILE = "labels.safetensors"
SHARED_LABELS_FILE = "shared_labels.safetensors"


@dataclass(frozen=True, eq=False)
class Split:
    """Who holds what."""

    parties: tuple[PartyData, ...]
    """In the order in which their embeddings are concatenated."""
    labels: LabelData


def split_data(config: ExperimentConfig) -> Split:
    """Load the experiment's samples and cut them into the parties' parts.

    Raises ValueError, naming the field, for data that is not there or does not fit.
    """
    data = load_dataset(
        config.data.dataset.kind,
        config.data.dataset.root,
        train_samples=config.data.train_samples,
        test_samples=config.data.test_samples,
        seed=config.seed,
        image_size=config.data.dataset.image_size,
    )
    grid = config.data.partition
    train_parts = grid_partition(data.train, grid.rows, grid.columns)
    test_parts = grid_partition(data.test, grid.rows, grid.columns)
    return Split(
        tuple(PartyData(*part) for part in zip(grid.parties, train_parts, test_parts, strict=True)),
        LabelData(data.classes, _labels_of(data.train), _labels_of(data.test)),
    )


def write_split(folder: Path, split: Split, *, shared_labels: bool, overwrite: bool) -> list[Path]:
    """Write every owner's file into the folder, and with ``shared_labels`` the parties' copy of the training labels.

    Raises ValueError for files that are there already (unless ``overwrite``), before anything is written; OSError
    as the system does, with everything as it was.
    """
    writers: dict[str, Callable[[Path], object]] = {
        party_file(data.party): partial(write_party_data, data=data) for data in split.parties
    }
    writers[LABELS_FILE] = partial(write_label_data, data=split.labels)
    if shared_labels:
        shared = SharedLabels(split.labels.classes, split.labels.train)
        writers[SHARED_LABELS_FILE] = partial(write_shared_labels, data=shared)
    write_together(folder, writers, overwrite=overwrite)
    return [folder / name for name in writers]


def party_file(party: str) -> str:
    """Return the name of a party's file."""
    return f"{party}.safetensors"


def _labels_of(samples: Samples) -> Labels:
    assert samples.labels is not None
    return Labels(samples.ids, samples.labels)
