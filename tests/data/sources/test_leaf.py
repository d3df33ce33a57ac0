import json
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused, refuses
from shorthand import load_dataset

from vfl.data.samples import Dataset

Users = dict[str, tuple[list[Any], list[Any]]]


def load(root: Path | None, train: int | None = None, test: int | None = None, **options: Any) -> Dataset:
    return load_dataset("leaf", root, train_samples=train, test_samples=test, seed=0, **options)


def write(path: Path, users: Users) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(x) for x, _ in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))


def image(grey: int, side: int = 28) -> list[float]:
    """An image whose first pixel is `grey` of 255 and whose others are white."""
    return [round(grey / 255, 4), *[1.0] * (side * side - 1)]


@pytest.fixture
def femnist(tmp_path: Path) -> Path:
    """Users a and b in one file, c in a second; test samples of a and c."""
    write(tmp_path / "train/all_data_0.json", {"a": ([image(1), image(2)], [0, 61]), "b": ([image(3)], [10])})
    write(tmp_path / "train/all_data_1.json", {"c": ([image(4), image(5), image(6)], [36, 36, 9])})
    write(tmp_path / "test/all_data_0.json", {"a": ([image(7)], [1]), "c": ([image(8)], [2])})
    return tmp_path


@pytest.fixture
def shakespeare(tmp_path: Path) -> Path:
    write(tmp_path / "train/a.json", {"PLAY_ROMEO": (["abc", "bca"], ["a", "\n"]), "PLAY_JULIET": (["cab"], ["b"])})
    write(tmp_path / "test/a.json", {"PLAY_ROMEO": (["aza"], ["!"])})
    return tmp_path


def test_femnist_images_labels_and_users_keep_their_order(femnist: Path):
    dataset = load(femnist)
    assert dataset.train.features.shape == (6, 1, 28, 28)
    assert dataset.train.features.dtype == torch.uint8
    assert dataset.train.features[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert bool((dataset.train.features.flatten(1)[:, 1:] == 255).all())
    assert dataset.test.features[:, 0, 0, 0].tolist() == [7, 8]
    assert dataset.train.labels is not None
    assert dataset.train.labels.tolist() == [0, 61, 10, 36, 36, 9]
    assert [dataset.classes[label] for label in (0, 10, 36, 61)] == ["0", "A", "a", "z"]
    assert len(dataset.classes) == 62
    assert dataset.owners is not None
    assert dataset.owners.names == ("a", "b", "c")
    assert dataset.owners.of_row.tolist() == [0, 0, 1, 2, 2, 2]


def test_owners_follow_the_drawn_samples_and_images_are_resized(femnist: Path):
    drawn = load(femnist, 4, 1, image_size=14)
    assert drawn.train.features.shape == (4, 1, 14, 14)
    assert drawn.owners is not None
    assert drawn.owners.of_row.tolist() == [[0, 0, 1, 2, 2, 2][row] for row in drawn.train.ids.tolist()]


def test_a_user_without_samples_stays_an_owner(femnist: Path):
    write(femnist / "train/all_data_2.json", {"idle": ([], [])})
    dataset = load(femnist)
    assert dataset.owners is not None
    assert dataset.owners.names == ("a", "b", "c", "idle")
    assert len(dataset.train) == 6


def test_a_user_in_two_files_is_one_owner(femnist: Path):
    write(femnist / "train/all_data_2.json", {"b": ([image(9)], [3])})
    dataset = load(femnist)
    assert dataset.owners is not None
    assert dataset.owners.names == ("a", "b", "c")
    assert dataset.owners.of_row.tolist() == [0, 0, 1, 2, 2, 2, 1]


def test_shakespeare_has_characters_and_the_next_one(shakespeare: Path):
    dataset = load(shakespeare)
    assert dataset.classes == ("\n", "!", "a", "b", "c", "z")
    assert dataset.train.features.tolist() == [[2, 3, 4], [3, 4, 2], [4, 2, 3]]
    assert dataset.train.labels is not None
    assert dataset.train.labels.tolist() == [2, 0, 3]
    assert dataset.test.features.tolist() == [[2, 5, 2]]
    assert dataset.test.labels is not None
    assert dataset.test.labels.tolist() == [1]
    assert dataset.owners is not None
    assert dataset.owners.names == ("PLAY_ROMEO", "PLAY_JULIET")
    assert dataset.owners.of_row.tolist() == [0, 0, 1]


def test_text_says_that_it_has_no_pixels(shakespeare: Path):
    with pytest.warns(UserWarning, match=r"data\.dataset\.image_size is ignored"):
        load(shakespeare, image_size=8)


def test_leaf_needs_a_root_and_files_below_it(tmp_path: Path, femnist: Path):
    refuses("data.dataset.root", lambda: load(None), "leaf")
    (femnist / "test/all_data_0.json").unlink()
    refuses("data.dataset.root", lambda: load(femnist), "test/*.json", "preprocess.sh")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", ("data.dataset.root", "cannot")),
        ("[]", ("data.dataset.root", "user_data", "users")),
        ('{"users": ["a"], "user_data": {}}', ("data.dataset.root", "'a'", "lists")),
        ('{"users": [3], "user_data": {}}', ("data.dataset.root", "lists")),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1.0]], "y": []}}}', ("data.dataset.root", "labels")),
        ('{"users": ["a"], "user_data": {"a": {"x": [[0.5, 0.5]], "y": [0]}}}', ("data.dataset.root", "squares")),
        ('{"users": ["a"], "user_data": {"a": {"x": [[2.0]], "y": [0]}}}', ("data.dataset.root", "grey")),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1], [1, 1]], "y": [0, 0]}}}', ("data.dataset.root", "grey")),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1.0]], "y": [62]}}}', ("data.dataset.root", "61")),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1.0]], "y": [true]}}}', ("data.dataset.root", "hold")),
        ('{"users": ["a"], "user_data": {"a": {"x": ["1.jpg"], "y": [0]}}}', ("data.dataset.root", "character")),
        ('{"users": ["a"], "user_data": {"a": {"x": ["a", 1], "y": ["b", "c"]}}}', ("data.dataset.root", "strings")),
        ('{"users": ["a"], "user_data": {"a": {"x": [""], "y": ["b"]}}}', ("data.dataset.root", "empty")),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1.0]], "y": [0]}}}', ("data.dataset.root", "sizes")),
        ('{"users": ["a"], "user_data": {"a": {"x": ["ab"], "y": ["c"]}}}', ("data.dataset.root", "text")),
    ],
)
def test_a_file_that_is_not_leafs_is_refused_by_name(femnist: Path, content: str, complaint: tuple[str, ...]):
    (femnist / "train/bad.json").write_text(content, encoding="latin-1")
    with refused(*complaint) as raised:
        load(femnist)
    message = str(raised.value)
    assert "\n" not in message
    assert str(femnist / "train") in message


def test_text_in_one_split_and_images_in_the_other_are_refused(femnist: Path):
    write(femnist / "test/all_data_0.json", {"a": (["abc"], ["d"])})
    refuses("data.dataset.root", lambda: load(femnist), "text")


def test_sequences_of_several_lengths_are_refused(shakespeare: Path):
    write(shakespeare / "test/b.json", {"PLAY_JULIET": (["abcd"], ["a"])})
    refuses("data.dataset.root", lambda: load(shakespeare), "sequences")
