"""Files of one owner's data, to train with or to predict: bit for bit, and anything else is one line."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses
from safetensors import safe_open
from safetensors.torch import save_file
from shorthand import links_of, load_dataset, standardise

from vfl.base.modules import weights_digest
from vfl.data.files import (
    LabelData,
    Labels,
    PartyData,
    SharedLabels,
    load_label_data,
    load_party_data,
    load_shared_labels,
    write_label_data,
    write_party_data,
    write_shared_labels,
)
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
from vfl.data.split import split_data, write_split
from vfl.runs.tensor_file import write_tensors


def random_samples(count: int, first_id: int, dtype: torch.dtype, shape=(1, 3, 2)) -> Samples:
    ids = torch.randperm(count) + first_id
    features = torch.randn(count, *shape) if dtype.is_floating_point else torch.randint(0, 256, (count, *shape))
    return Samples(ids, features.to(dtype))


def equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left, right)


@given(
    counts=st.tuples(st.integers(1, 5), st.integers(0, 3)),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
    party=st.text("abc_é-", min_size=1, max_size=5),
)
def test_a_partys_file_comes_back_bit_for_bit(counts, dtype, party, tmp_path_factory):
    path = tmp_path_factory.mktemp("party") / "file.safetensors"
    data = PartyData(party, random_samples(counts[0], -5, dtype), random_samples(counts[1], 1_000_000_000, dtype))
    write_party_data(path, data)
    loaded = load_party_data(path, party, check_images)
    for before, after in ((data.train, loaded.train), (data.test, loaded.test)):
        assert equal(before.ids, after.ids)
        assert equal(before.features, after.features)
        assert after.labels is None
    assert loaded.ids_digests() == data.ids_digests()


def test_labels_come_back_bit_for_bit(tmp_path):
    train, test = Labels(torch.tensor([4, 2, 9]), torch.tensor([0, 1, 2])), Labels(torch.tensor([1]), torch.tensor([2]))
    data = LabelData(("cat", "dog", "vache à lait"), train, test)
    write_label_data(tmp_path / "labels", data)
    write_shared_labels(tmp_path / "shared", SharedLabels(data.classes, train))
    loaded, shared = load_label_data(tmp_path / "labels"), load_shared_labels(tmp_path / "shared")
    assert loaded.classes == shared.classes == data.classes
    assert equal(loaded.train.ids, train.ids)
    assert equal(loaded.train.values, train.values)
    assert equal(loaded.test.ids, test.ids)
    assert equal(loaded.test.values, test.values)
    assert equal(shared.train.values, train.values)
    assert data.ids_digests() == loaded.ids_digests()
    assert shared.ids_digests() == {"train": loaded.ids_digests()["train"]}


@pytest.mark.parametrize("labels", ["shared", "server"])
def test_files_hold_what_the_parties_of_one_process_hold(labels, configure, build, tmp_path):
    config = configure(training={"labels": labels})
    paths = write_split(tmp_path, split_data(config), shared_labels=labels == "shared", overwrite=False)
    server = build(training={"labels": labels})
    label_data = load_label_data(tmp_path / "labels.safetensors")
    assert equal(label_data.train.values, server.exchanges.labels_N)
    assert equal(label_data.test.values, server.joint.samples.values)
    for link in links_of(server):
        party = link.party
        data = load_party_data(tmp_path / f"{party.name}.safetensors", party.name, check_images)
        train, test = standardise(data.train, data.test)
        assert equal(train.features, party.train.features)
        assert equal(test.features, party.test.features)
        assert equal(train.ids, party.train.ids)
        assert data.ids_digests() == label_data.ids_digests()
    assert ("shared_labels.safetensors" in {path.name for path in paths}) == (labels == "shared")
    if labels == "shared":
        shared = load_shared_labels(tmp_path / "shared_labels.safetensors")
        assert equal(shared.train.values, links_of(server)[0].party.protocol.labels_N)


def test_every_party_gets_its_own_block_in_row_major_order(configure):
    config = configure(data={"partition": {"rows": 2, "columns": 1}})
    data = load_dataset("digits", None, train_samples=48, test_samples=40, seed=config.seed)
    top, bottom = split_data(config).parties
    assert (top.party, bottom.party) == ("party_1", "party_2")
    for whole, parts in ((data.train, (top.train, bottom.train)), (data.test, (top.test, bottom.test))):
        assert equal(parts[0].features, whole.features[:, :, :16])
        assert equal(parts[1].features, whole.features[:, :, 16:])
        assert equal(parts[0].ids, whole.ids)


def test_a_file_holds_nothing_of_another_owner(configure, tmp_path):
    config = configure(training={"labels": "server"})
    split = split_data(config)
    for path in write_split(tmp_path, split, shared_labels=False, overwrite=False):
        with safe_open(path, framework="pt") as file:
            holds = set(file.keys())
        kind = "labels" if path.name == "labels.safetensors" else "features"
        assert holds == {f"{part}.{what}" for part in ("train", "test") for what in ("ids", kind)}
        assert path.stat().st_mode & 0o777 == 0o600
    digests = {weights_digest({"features": data.train.features}) for data in split.parties}
    assert len(digests) == len(split.parties)
    assert not {path.name for path in tmp_path.iterdir()} & {"shared_labels.safetensors"}


def good_party() -> dict[str, torch.Tensor]:
    return {
        "train.ids": torch.tensor([1, 2, 3]),
        "train.features": torch.zeros(3, 1, 2, 2),
        "test.ids": torch.tensor([4]),
        "test.features": torch.zeros(1, 1, 2, 2),
    }


def without(name: str):
    return {key: value for key, value in good_party().items() if key != name}


NAN = torch.full((3, 1, 2, 2), float("nan"))
PARTY = {"holds": "features", "party": "party_1"}
BAD_PARTY = {
    "another's": (good_party(), PARTY | {"party": "party_2"}, ("'party_2'", "'party_1'")),
    "labels": (good_party(), {"holds": "labels"}, ("labels",)),
    "no metadata": (good_party(), None, ("something",)),
    "labels beside": (good_party() | {"train.labels": torch.tensor([1, 2, 3])}, PARTY, ("test.features",)),
    "no test": (without("test.ids"), PARTY, ("test.features", "train.features", "train.ids")),
    "id twice": (good_party() | {"train.ids": torch.tensor([1, 1, 3])}, PARTY, ("occurs",)),
    "id in both": (good_party() | {"test.ids": torch.tensor([3])}, PARTY, ("both",)),
    "ids as floats": (good_party() | {"train.ids": torch.tensor([1.0, 2, 3])}, PARTY, ("int64",)),
    "too few": (good_party() | {"train.ids": torch.tensor([1, 2])}, PARTY, ("rows",)),
    "no images": (good_party() | {"train.features": torch.zeros(3, 4)}, PARTY, ("float32",)),
    "not finite": (good_party() | {"train.features": NAN}, PARTY, ("train.features",)),
    "other size": (good_party() | {"test.features": torch.zeros(1, 1, 2, 3)}, PARTY, ("features",)),
}


@pytest.mark.parametrize("case", BAD_PARTY)
def test_another_party_file_is_refused_in_one_line(case, tmp_path):
    tensors, metadata, reason = BAD_PARTY[case]
    path = tmp_path / "file.safetensors"
    save_file(tensors, path, metadata)
    with refused("data.file", *reason, path):
        load_party_data(path, "party_1", check_images)


def good_labels() -> dict[str, torch.Tensor]:
    return {
        "train.ids": torch.tensor([1, 2]),
        "train.labels": torch.tensor([0, 1]),
        "test.ids": torch.tensor([3]),
        "test.labels": torch.tensor([1]),
    }


LABELS = {"holds": "labels", "classes": '["a", "b"]'}
BAD_LABELS = {
    "no class": (good_labels() | {"test.labels": torch.tensor([2])}, LABELS, ("labels",)),
    "negative": (good_labels() | {"train.labels": torch.tensor([-1, 0])}, LABELS, ("labels",)),
    "as bytes": (good_labels() | {"train.labels": torch.ones(2, dtype=torch.uint8)}, LABELS, ("int64", "expected")),
    "too many": (good_labels() | {"train.labels": torch.zeros(3, dtype=torch.int64)}, LABELS, ("int64", "[2]")),
    "in both": (good_labels() | {"test.ids": torch.tensor([2])}, LABELS, ("both",)),
    "no classes": (good_labels(), {"holds": "labels"}, ("'classes'", "JSON")),
    "classes no names": (good_labels(), LABELS | {"classes": "[1, 2]"}, ("'classes'",)),
    "the parties' copy": (good_labels(), {"holds": "shared_labels"}, ("shared_labels",)),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_another_label_file_is_refused_in_one_line(case, tmp_path):
    tensors, metadata, reason = BAD_LABELS[case]
    path = tmp_path / "file.safetensors"
    save_file(tensors, path, metadata)
    with refused("data.file", *reason, path):
        load_label_data(path)


def test_the_parties_copy_of_the_labels_is_no_more_than_that(tmp_path):
    path = tmp_path / "file.safetensors"
    save_file(good_labels(), path, LABELS)
    refuses("data.labels_file", lambda: load_shared_labels(path), "shared_labels")
    save_file(good_labels(), path, LABELS | {"holds": "shared_labels"})
    refuses("data.labels_file", lambda: load_shared_labels(path), "test.ids", "train.ids")


def load_one_party(path: Path) -> PartyData:
    return load_party_data(path, "party_1", check_images)


@pytest.mark.parametrize("load", [load_label_data, load_shared_labels, load_one_party])
@pytest.mark.parametrize("damage", ["absent", "folder", "empty", "noise", "truncated"])
def test_no_file_or_a_damaged_one_is_one_line(load, damage, tmp_path):
    path: Path = tmp_path / "file.safetensors"
    save_file(good_party(), path, PARTY)
    content = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "absent":
        path.write_bytes({"empty": b"", "noise": bytes(range(200)), "truncated": content[:-1]}[damage])
    with pytest.raises(ValueError, match=rf"^data\.(labels_)?file: {re.escape(str(path))} (cannot be|is no) [^\n]*$"):
        load(path)


def test_files_that_are_there_are_kept(configure, tmp_path):
    split = split_data(configure())
    (tmp_path / "party_3.safetensors").write_text("mine")
    refuses("", lambda: write_split(tmp_path, split, shared_labels=True, overwrite=False), "party_3.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["party_3.safetensors"]
    write_split(tmp_path, split, shared_labels=True, overwrite=True)
    assert len(load_party_data(tmp_path / "party_3.safetensors", "party_3", check_images).train) == len(
        split.labels.train.ids
    )


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
