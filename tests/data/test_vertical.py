"""Samples of one owner: blocks of images, standardised, and ids that tell nothing of the labels."""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refused, refuses
from shorthand import standardise
from torch import Tensor

from vfl.data.files import LabelData, PartyData
from vfl.data.samples import Labels, Samples, check_aligned
from vfl.data.source import AsItIs, Split, prepare_samples
from vfl.data.sources.images import grid_partition
from vfl.data.split import conceal_ids, split_data


def make_samples(features: Tensor) -> Samples:
    count = len(features)
    return Samples(torch.arange(count).flip(0) + 100, features, torch.arange(count) % 3)


def random_features(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)


def reassemble(parts: list[Samples], rows: int, columns: int) -> Tensor:
    bands = [
        torch.cat([part.features for part in parts[row * columns : (row + 1) * columns]], 3) for row in range(rows)
    ]
    return torch.cat(bands, dim=2)


# Samples


TEXT = torch.zeros(2, 4, dtype=torch.int64)
IMAGES = torch.zeros(2, 1, 2, 2)
IDS = torch.tensor([1, 2])


@pytest.mark.parametrize(
    ("ids", "features", "labels", "complaint"),
    [
        (torch.tensor([1, 1]), IMAGES, None, ("samples.ids", "occurs")),
        (torch.tensor([1.0, 2.0]), IMAGES, None, ("samples.ids", "int64", "expected")),
        (torch.tensor([[1], [2]]), IMAGES, None, ("samples.ids", "int64")),
        (IDS, torch.zeros(3, 1, 2, 2), None, ("samples.features", "rows")),
        (IDS, torch.zeros(2), None, ("samples.features", "expected")),
        (IDS, IMAGES, torch.tensor([0]), ("samples.labels", "int64", "[2]", "expected")),
        (IDS, IMAGES, torch.tensor([0.0, 1.0]).half(), ("samples.labels", "int64", "expected")),
        (IDS, TEXT, torch.zeros(2, 3, dtype=torch.int64), ("samples.labels", "int64", "[2]")),
        (IDS, TEXT, torch.zeros(2, 4), ("samples.labels", "int64")),
    ],
)
def test_samples_refuse_what_does_not_fit(ids: Tensor, features: Tensor, labels: Any, complaint: tuple[str, ...]):
    with refused(*complaint):
        Samples(ids, features, labels)


def test_text_is_neither_cut_into_blocks_nor_standardised():
    text = Samples(torch.tensor([7, 8]), TEXT)
    refuses("data.partition", lambda: grid_partition(text, 1, 1), "data.dataset.kind")
    refuses("standardise", lambda: standardise(text, text), "images")


def test_ids_digest_is_that_of_the_ordered_ids_alone():
    samples = make_samples(random_features(4, 1, 2, 2))
    written = struct.pack("<4q", 103, 102, 101, 100)
    assert samples.ids_digest() == hashlib.sha256(written).hexdigest()
    assert samples.take(torch.tensor([1, 0, 2, 3])).ids_digest() != samples.ids_digest()
    assert Samples(samples.ids, torch.zeros(4, 3, 1, 1)).ids_digest() == samples.ids_digest()


# grid_partition


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    block=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    count=st.integers(0, 4),
    channels=st.integers(1, 3),
)
def test_parts_put_together_are_the_images(rows: int, columns: int, block: tuple[int, int], count: int, channels: int):
    samples = make_samples(random_features(count, channels, rows * block[0], columns * block[1]))
    parts = grid_partition(samples, rows, columns)
    assert len(parts) == rows * columns
    assert all(part.features.shape == (count, channels, *block) for part in parts)
    assert torch.equal(reassemble(parts, rows, columns), samples.features)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 2), (1, 4), (4, 1)])
def test_a_part_has_the_ids_no_labels_and_memory_of_its_own(rows: int, columns: int):
    samples = make_samples(random_features(3, 2, 4, 4))
    parts = grid_partition(samples, rows, columns)
    check_aligned({"whole": samples.ids_digest()} | {str(i): part.ids_digest() for i, part in enumerate(parts)})
    storages = {part.features.untyped_storage().data_ptr() for part in parts}
    assert len(storages | {samples.features.untyped_storage().data_ptr()}) == len(parts) + 1
    for part in parts:
        assert part.labels is None
        assert part.features.is_contiguous()
        assert part.features.untyped_storage().nbytes() == part.features.numel()
        assert part.ids.data_ptr() != samples.ids.data_ptr()


@pytest.mark.parametrize(("rows", "columns"), [(3, 2), (2, 4), (12, 1)])
def test_a_grid_that_does_not_divide_the_image_is_refused_with_those_that_do(rows: int, columns: int):
    with refused("data.partition", "columns 1"):
        grid_partition(make_samples(random_features(1, 1, 4, 6)), rows, columns)


# standardise


def test_test_features_are_scaled_by_the_training_statistics():
    raw_train, raw_test = random_features(50, 2, 4, 4), random_features(20, 2, 4, 4, seed=1) // 2
    train, test = standardise(make_samples(raw_train), make_samples(raw_test))
    exact = raw_train.double()
    mean, std = exact.mean((0, 2, 3), keepdim=True), exact.std((0, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(test.features, ((raw_test - mean) / std).float())
    torch.testing.assert_close(train.features, ((raw_train - mean) / std).float())


def test_standardise_keeps_ids_and_labels_and_leaves_its_input_alone():
    samples = make_samples(random_features(6, 1, 2, 2).float())
    raw = samples.features.clone()
    train, test = standardise(samples, samples)
    assert train.ids_digest() == test.ids_digest() == samples.ids_digest()
    assert train.labels is samples.labels
    assert torch.equal(samples.features, raw)


def test_a_constant_channel_is_centred_and_stays_finite():
    train = make_samples(torch.full((4, 1, 2, 2), 7, dtype=torch.uint8))
    test = make_samples(torch.full((4, 1, 2, 2), 9, dtype=torch.uint8))
    scaled_train, scaled_test = standardise(train, test)
    assert scaled_train.features.unique().tolist() == [0.0]
    assert scaled_test.features.unique().tolist() == [2.0]


@pytest.mark.parametrize(("train_shape", "test_shape"), [((0, 1, 2, 2), (3, 1, 2, 2)), ((3, 3, 2, 2), (3, 1, 2, 2))])
def test_standardise_refuses_nothing_to_measure_and_other_channels(
    train_shape: tuple[int, ...], test_shape: tuple[int, ...]
):
    with refused("standardise", "images"):
        standardise(make_samples(random_features(*train_shape)), make_samples(random_features(*test_shape)))


# check_aligned


def test_parties_that_differ_are_named():
    refuses("the parties are not aligned", lambda: check_aligned({"a": "1", "b": "2", "c": "1"}), "differ")
    refuses("the parties are not aligned", lambda: check_aligned({"a": "1", "b": "2", "c": "3"}), "differ")


class Reversed(AsItIs):
    def apply(self, samples: Samples) -> Samples:
        return samples.take(torch.arange(len(samples)).flip(0))


class Centred(AsItIs):
    def apply(self, samples: Samples) -> Samples:
        return replace(samples, features=samples.features / samples.features.abs().amax(0))


def test_a_preparation_that_moves_samples_is_refused():
    samples = Samples(torch.arange(3), torch.rand(3, 2))
    features: Any = None
    assert prepare_samples(AsItIs(features), samples) is samples
    refuses("Reversed", lambda: prepare_samples(Reversed(features), samples), "apply")


def test_a_preparation_that_gives_no_numbers_is_refused_but_not_for_rows_that_the_holder_has_not():
    features: Any = None
    samples = Samples(torch.arange(3), torch.tensor([[1.0], [2.0], [float("nan")]]))
    absent = replace(samples, present=torch.tensor([True, True, False]))
    assert prepare_samples(AsItIs(features), absent) is absent
    with refused("Centred", "replace"):
        prepare_samples(Centred(features), replace(samples, features=torch.zeros(3, 2)))


CLASSES, PER_CLASS = 10, 40
SECRET = bytes(range(32))


def at_its_worst() -> Split:
    """What any source could give: one class after another, and ids that count them."""
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    ids = torch.arange(len(labels))
    train, test = (Samples(part, torch.zeros(len(labels), 1, 2, 2)) for part in (ids, ids + len(ids)))
    held = LabelData(tuple("0123456789"), Labels(train.ids, labels), Labels(test.ids, labels))
    return Split((PartyData("party_1", train, test),), held)


def write_images(root: Path) -> None:
    for part in ("train", "test"):
        for name in range(CLASSES):
            (root / part / str(name)).mkdir(parents=True)
            for number in range(PER_CLASS):
                Image.new("RGB", (4, 4)).save(root / part / str(name) / f"{number}.png")


@pytest.fixture(params=["image_folder", "digits", "any other at its worst"])
def plain(request, configure, tmp_path: Path) -> Split:
    """What a source gives, before ids and order are drawn."""
    if request.param == "any other at its worst":
        return at_its_worst()
    if request.param == "image_folder":
        write_images(tmp_path)
    root = tmp_path if request.param == "image_folder" else None
    data = {"dataset": {"kind": request.param, "root": root}, "train_samples": None, "test_samples": None}
    return split_data(configure(data=data, training={"batch_size": 16}))


def right(guesses_N: Tensor, labels: Labels) -> float:
    return float((guesses_N == labels.values).double().mean())


def by_rank(ids_N: Tensor, labels: Labels) -> float:
    """Guess that classes, of known sizes, follow one another in the order of the ids."""
    guesses_N = torch.empty_like(labels.values)
    guesses_N[ids_N.argsort()] = labels.values.sort().values
    return right(guesses_N, labels)


def by_neighbour(ids_N: Tensor, labels: Labels) -> float:
    """Guess the label of the sample with the next id, were it known."""
    order = ids_N.argsort()
    guesses_N = torch.empty_like(labels.values)
    guesses_N[order] = labels.values[order].roll(1)
    return right(guesses_N, labels)


GUESSES: dict[str, Callable[[Labels], float]] = {
    "ids": lambda labels: by_rank(labels.ids, labels),
    "order": lambda labels: by_rank(torch.arange(len(labels.ids)), labels),
    "the next id": lambda labels: by_neighbour(labels.ids, labels),
    "the next row": lambda labels: by_neighbour(torch.arange(len(labels.ids)), labels),
    "an id modulo the classes": lambda labels: right(labels.ids % CLASSES, labels),
}


def test_ids_and_order_tell_nothing_of_the_labels(plain: Split):
    split = conceal_ids(plain, SECRET)
    for labels in (split.labels.train, split.labels.test):
        chance = float((labels.values.bincount() / len(labels.values)).square().sum())
        limit = chance + 4 * (chance * (1 - chance) / len(labels.values)) ** 0.5
        assert {how: guess(labels) for how, guess in GUESSES.items() if guess(labels) > limit} == {}


def test_the_guesses_would_find_what_positions_tell(configure, tmp_path: Path):
    write_images(tmp_path)
    data = {"dataset": {"kind": "image_folder", "root": tmp_path}, "train_samples": None, "test_samples": None}
    labels = split_data(configure(data=data, training={"batch_size": 16})).labels
    for how in ("ids", "order", "the next id", "the next row"):
        assert min(GUESSES[how](labels.train), GUESSES[how](labels.test)) > 0.9


def test_every_owner_has_its_own_rows_in_the_same_new_order(configure):
    plain = split_data(configure())
    split = conceal_ids(plain, SECRET)
    digests = [part.ids_digests() for part in split.parties]
    assert digests == [split.labels.ids_digests()] * len(digests)
    assert digests[0] != plain.labels.ids_digests()
    for before, after in zip(plain.parties, split.parties, strict=True):
        pairs = zip(before.train.features, plain.labels.train.values, strict=True)
        assert sorted((features.sum().item(), label.item()) for features, label in pairs) == sorted(
            (features.sum().item(), label.item())
            for features, label in zip(after.train.features, split.labels.train.values, strict=True)
        )
    assert conceal_ids(plain, SECRET).labels.ids_digests() == digests[0]
    assert conceal_ids(plain, bytes(32)).labels.ids_digests() != digests[0]
