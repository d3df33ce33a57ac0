"""Files of one owner's data: they come back bit for bit, and anything else is refused in one line."""

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
from vfl.data.samples import Samples
from vfl.data.sources.images import check_images
from vfl.data.split import split_data, write_split


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
    "another's": (good_party(), PARTY | {"party": "party_2"}, ("data.file", "'party_2'", "'party_1'")),
    "labels": (good_party(), {"holds": "labels"}, ("data.file", "labels")),
    "no metadata": (good_party(), None, ("data.file", "something")),
    "labels beside": (good_party() | {"train.labels": torch.tensor([1, 2, 3])}, PARTY, ("data.file", "test.features")),
    "no test": (without("test.ids"), PARTY, ("data.file", "test.features", "train.features", "train.ids")),
    "id twice": (good_party() | {"train.ids": torch.tensor([1, 1, 3])}, PARTY, ("data.file", "occurs")),
    "id in both": (good_party() | {"test.ids": torch.tensor([3])}, PARTY, ("data.file", "both")),
    "ids as floats": (good_party() | {"train.ids": torch.tensor([1.0, 2, 3])}, PARTY, ("data.file", "int64")),
    "too few": (good_party() | {"train.ids": torch.tensor([1, 2])}, PARTY, ("data.file", "rows")),
    "no images": (good_party() | {"train.features": torch.zeros(3, 4)}, PARTY, ("data.file", "float32")),
    "not finite": (good_party() | {"train.features": NAN}, PARTY, ("data.file", "train.features")),
    "other size": (good_party() | {"test.features": torch.zeros(1, 1, 2, 3)}, PARTY, ("data.file", "features")),
}


@pytest.mark.parametrize("case", BAD_PARTY)
def test_another_party_file_is_refused_in_one_line(case, tmp_path):
    tensors, metadata, reason = BAD_PARTY[case]
    path = tmp_path / "file.safetensors"
    save_file(tensors, path, metadata)
    with refused(*reason, path):
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
    "no class": (good_labels() | {"test.labels": torch.tensor([2])}, LABELS, ("data.file", "labels")),
    "negative": (good_labels() | {"train.labels": torch.tensor([-1, 0])}, LABELS, ("data.file", "labels")),
    "as bytes": (
        good_labels() | {"train.labels": torch.ones(2, dtype=torch.uint8)},
        LABELS,
        ("data.file", "int64", "[2]", "expected"),
    ),
    "too many": (
        good_labels() | {"train.labels": torch.zeros(3, dtype=torch.int64)},
        LABELS,
        ("data.file", "int64", "[2]"),
    ),
    "in both": (good_labels() | {"test.ids": torch.tensor([2])}, LABELS, ("data.file", "both")),
    "no classes": (good_labels(), {"holds": "labels"}, ("data.file", "'classes'", "JSON")),
    "classes no names": (good_labels(), LABELS | {"classes": "[1, 2]"}, ("data.file", "'classes'")),
    "the parties' copy": (good_labels(), {"holds": "shared_labels"}, ("data.file", "shared_labels")),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_another_label_file_is_refused_in_one_line(case, tmp_path):
    tensors, metadata, reason = BAD_LABELS[case]
    path = tmp_path / "file.safetensors"
    save_file(tensors, path, metadata)
    with refused(*reason, path):
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
