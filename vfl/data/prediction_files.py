"""Files of samples to predict, one per process: safetensors, as those of ``vfl.data.files``.

    file                       `holds`             tensors
    PARTY.safetensors          samples             ids, features (`party` in the metadata)
    labels.safetensors         sample_labels       ids, labels; the server's, where labels are known
    labels.safetensors         sample_ids          ids; the server's, where they are not

Types, shapes and order as there; features have the shape of the training's, and are not prepared.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from vfl.data.files import (
    PRIVATE,
    check_classes,
    check_party,
    check_shapes,
    naming,
    read_tensors,
    sample_names,
    sample_tensors,
    samples_of,
)
from vfl.data.samples import Samples, check_ids, check_labels
from vfl.data.source import NewSamples
from vfl.data.split import LABELS_FILE, party_file
from vfl.runs.atomic import write_together
from vfl.runs.tensor_file import write_tensors

SAMPLES, SAMPLE_LABELS, SAMPLE_IDS = "samples", "sample_labels", "sample_ids"


def write_prediction_files(folder: Path, parties: Sequence[str], samples: NewSamples) -> list[Path]:
    """Write the files of all parties and of the server (0600), replacing earlier ones. Raises OSError."""
    writers: dict[str, Callable[[Path], object]] = {
        party_file(name): partial(
            write_tensors, tensors=sample_tensors(part), metadata={"holds": SAMPLES, "party": name}, mode=PRIVATE
        )
        for name, part in zip(parties, samples.parts, strict=True)
    }
    writers[LABELS_FILE] = partial(_write_labels, samples=samples.whole)
    return write_together(folder, writers, overwrite=True)


def load_samples(path: Path, party: str, train: Samples, check: Callable[[Samples], None]) -> Samples:
    """Read the samples that ``party`` is to predict. Raises ValueError, one line, for anything else.

    They must pass ``check`` and have the shapes of its raw training samples.
    """
    metadata, tensors = read_tensors("--samples", path, {SAMPLES: sample_names(len(train.inputs))})
    check_party("--samples", path, metadata, party)
    with naming("--samples", path):
        samples = samples_of(tensors, "", check)
        check_shapes("features", samples, "the training's", train)
    if len(samples) == 0:
        raise ValueError(f"--samples: {path} holds no sample")
    return samples


def load_sample_labels(path: Path, classes: Sequence[str]) -> tuple[Tensor, Tensor | None]:
    """Read the server's file: ids [N], and labels [N] or None. Raises ValueError, one line, for anything else."""
    _, tensors = read_tensors("--data", path, {SAMPLE_LABELS: ("ids", "labels"), SAMPLE_IDS: ("ids",)})
    ids, labels = tensors["ids"], tensors.get("labels")
    with naming("--data", path):
        check_ids(ids)
        if labels is not None:
            check_labels("labels", labels, len(ids))
            check_classes(classes, labels)
    return ids, labels


def _write_labels(path: Path, samples: Samples) -> object:
    tensors, holds = {"ids": samples.ids}, SAMPLE_IDS
    if samples.labels is not None:
        tensors, holds = tensors | {"labels": samples.labels}, SAMPLE_LABELS
    return write_tensors(path, tensors, {"holds": holds}, mode=PRIVATE)
