"""Files of samples to predict: what was cut is read again, anything else is one line that names the file."""

from pathlib import Path

import pytest
import torch
from refusals import refused, refuses

from vfl.data.prediction_files import (
    SAMPLE_IDS,
    SAMPLE_LABELS,
    SAMPLES,
    load_sample_labels,
    load_samples,
    write_prediction_files,
)
from vfl.data.samples import Samples
from vfl.data.source import NewSamples
from vfl.data.sources.images import check_images, grid_partition
from vfl.runs.tensor_file import write_tensors

PARTIES = ("party_1", "party_2")
IMAGES = torch.arange(3 * 2 * 4 * 4, dtype=torch.uint8).reshape(3, 2, 4, 4)
IDS = torch.tensor([7, 3, 5])
BLOCK = Samples(torch.arange(2), torch.zeros(2, 2, 2, 4))
"""Training features of a party."""


@pytest.mark.parametrize("labels", [torch.tensor([0, 2, 1]), None])
def test_everybody_reads_its_part(tmp_path: Path, labels: torch.Tensor | None):
    whole = Samples(IDS, IMAGES, labels)
    parts = grid_partition(whole, 2, 1)
    paths = write_prediction_files(tmp_path / "new", PARTIES, NewSamples(whole, tuple(parts)))
    assert [path.name for path in paths] == ["party_1.safetensors", "party_2.safetensors", "labels.safetensors"]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    for path, name, part in zip(paths, PARTIES, parts, strict=False):
        read = load_samples(path, name, BLOCK, check_images)
        assert torch.equal(read.ids, IDS)
        assert torch.equal(read.features, part.features)
    ids, known = load_sample_labels(paths[-1], "abc")
    assert torch.equal(ids, IDS)
    if labels is None or known is None:
        assert (labels, known) == (None, None)
    else:
        assert torch.equal(known, labels)


def features(shape: tuple[int, ...], value: float = 0.0) -> dict[str, torch.Tensor]:
    return {"ids": torch.arange(shape[0]), "features": torch.full(shape, value)}


@pytest.mark.parametrize(
    ("holds", "party", "tensors", "expected"),
    [
        (SAMPLES, "party_2", features((3, 2, 2, 4)), ("--samples", "'party_2'", "'party_1'")),
        (SAMPLES, "party_1", features((3, 2, 4, 4)), ("--samples", "[2, 4, 4]", "[2, 2, 4]")),
        (SAMPLES, "party_1", features((3, 2, 2, 4), float("nan")), ("--samples", "finite")),
        (SAMPLES, "party_1", features((0, 2, 2, 4)), ("--samples", "sample")),
        (SAMPLES, "party_1", {"ids": IDS}, ("--samples", "tensors")),
        (SAMPLES, "party_1", features((3, 2, 2, 4)) | {"ids": torch.tensor([1, 1, 2])}, ("--samples", "occurs")),
        (SAMPLE_IDS, "party_1", {"ids": IDS}, ("--samples", "sample_ids")),
    ],
)
def test_a_partys_file_that_does_not_fit(tmp_path: Path, holds, party, tensors, expected: tuple[str, ...]):
    write_tensors(tmp_path / "file", tensors, {"holds": holds, "party": party})
    with refused(*expected):
        load_samples(tmp_path / "file", "party_1", BLOCK, check_images)


@pytest.mark.parametrize(
    ("holds", "tensors", "expected"),
    [
        (SAMPLE_LABELS, {"ids": IDS, "labels": torch.tensor([0, 3, 1])}, ("--data", "must")),
        (SAMPLE_LABELS, {"ids": IDS, "labels": torch.tensor([0, 1])}, ("--data", "int64", "[3]")),
        (SAMPLE_IDS, {"ids": torch.tensor([1, 1])}, ("--data", "occurs")),
        (SAMPLES, {"ids": IDS}, ("--data", "sample_labels", "sample_ids")),
    ],
)
def test_the_servers_file_that_does_not_fit(tmp_path: Path, holds, tensors, expected: tuple[str, ...]):
    write_tensors(tmp_path / "file", tensors, {"holds": holds})
    with refused(*expected):
        load_sample_labels(tmp_path / "file", "abc")


def test_labels_of_a_regression_are_amounts(tmp_path: Path):
    write_tensors(tmp_path / "file", {"ids": IDS, "labels": torch.tensor([0.5, -3.0, 7.0])}, {"holds": SAMPLE_LABELS})
    assert load_sample_labels(tmp_path / "file", ())[1] is not None
    refuses("--data", lambda: load_sample_labels(tmp_path / "file", "abc"), "amounts")
