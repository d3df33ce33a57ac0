"""An experiment's data set, split over the parties: the same for all in one process and for files of their own."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from vfl.atomic import write_together
from vfl.config import ExperimentConfig
from vfl.data.files import SharedLabels, write_label_data, write_party_data, write_shared_labels
from vfl.data.source import Split, open_source

LABELS_FILE = "labels.safetensors"
SHARED_LABELS_FILE = "shared_labels.safetensors"


def split_data(config: ExperimentConfig) -> Split:
    """Load the experiment's samples and split them over its owners.

    Raises ValueError, naming the field, for data that is not there or does not fit.
    """
    return open_source(config).split()


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
