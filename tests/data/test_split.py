"""What ids and order of the samples tell about their labels, to a party that has no labels: nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from vfl.data.files import LabelData, PartyData
from vfl.data.samples import Labels, Samples
from vfl.data.source import Split
from vfl.data.split import conceal_ids, split_data

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
