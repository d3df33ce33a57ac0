"""An experiment's data set, split over the parties; the same for one process and for files of separate processes."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import torch

from vfl.config import ExperimentConfig
from vfl.data.files import (
    LabelData,
    PartyData,
    SharedLabels,
    write_label_data,
    write_party_data,
    write_shared_labels,
)
from vfl.data.samples import Labels, Samples
from vfl.data.source import Split, open_source, split_samples
from vfl.runs.atomic import write_together
from vfl.runs.checkpoint import State

H = TypeVar("H", Samples, Labels)

LABELS_FILE = "labels.safetensors"
SHARED_LABELS_FILE = "shared_labels.safetensors"


def split_data(config: ExperimentConfig, kept: Mapping[str, State] = MappingProxyType({})) -> Split:
    """Load the experiment's samples and split them over its owners; ``kept`` as in ``split_samples``.

    Raises ValueError, naming the field, for data that is missing or does not fit.
    """
    return split_samples(open_source(config), kept)


def conceal_ids(split: Split, secret: bytes) -> Split:
    """Give all samples new ids, drawn from the secret, and sort them by these ids.

    Positions in a data set reveal labels: a folder of images is listed class by class. Without the secret (32 bytes)
    the new ids and order reveal nothing; with it the same split results again.
    """
    parties = tuple(
        PartyData(part.party, _renumbered(part.train, secret), _renumbered(part.test, secret)) for part in split.parties
    )
    train, test = _renumbered(split.labels.train, secret), _renumbered(split.labels.test, secret)
    return Split(parties, LabelData(split.labels.classes, train, test))


def write_split(folder: Path, split: Split, *, shared_labels: bool, overwrite: bool) -> list[Path]:
    """Write every owner's file into the folder, and with ``shared_labels`` the parties' copy of the training labels.

    Raises ValueError for files that exist (unless ``overwrite``), before anything is written; OSError with everything
    as it was.
    """
    writers: dict[str, Callable[[Path], object]] = {
        party_file(data.party): partial(write_party_data, data=data) for data in split.parties
    }
    writers[LABELS_FILE] = partial(write_label_data, data=split.labels)
    if shared_labels:
        shared = SharedLabels(split.labels.classes, split.labels.train)
        writers[SHARED_LABELS_FILE] = partial(write_shared_labels, data=shared)
    return write_together(folder, writers, overwrite=overwrite)


def party_file(party: str) -> str:
    """Return the name of a party's file."""
    return f"{party}.safetensors"


def _renumbered(held: H, secret: bytes) -> H:
    """Return rows under new ids, 63 bits of a keyed hash of the old ones, in ascending order of them."""
    # Everybody's rows go through this with one secret: equal old ids stay equal, and so do the orders of all holders.
    digests = [hashlib.blake2b(str(old).encode(), key=secret, digest_size=8).digest() for old in map(int, held.ids)]
    new_ids = torch.tensor([int.from_bytes(digest) >> 1 for digest in digests], dtype=torch.int64)
    order = new_ids.argsort()
    return replace(held.take(order), ids=new_ids[order])
