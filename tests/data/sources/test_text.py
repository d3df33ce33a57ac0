from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses
from shorthand import load_dataset

from vfl.data.samples import Dataset
from vfl.data.sources.pooled import TEST_ID_START
from vfl.data.sources.text import WINDOW, encode, split_roles, windows

NAMES = st.text(st.characters(categories=("Lu", "Ll", "Nd")), min_size=1, max_size=9)
LINES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Z")), min_size=1, max_size=300)


def load(root: Path | None, train: int | None = None, test: int | None = None, **options: Any) -> Dataset:
    return load_dataset("text", root, train_samples=train, test_samples=test, seed=0, **options)


def write_play(folder: Path, speeches: list[tuple[str, str]]) -> Path:
    path = folder / "play.txt"
    path.write_text("\n\n".join(f"{role}:\n{speech}" for role, speech in speeches), encoding="utf-8")
    return path


def readable(dataset: Dataset, codes: torch.Tensor) -> str:
    return "".join(dataset.classes[code] for code in codes.tolist())


def cycled(alphabet: str, length: int) -> str:
    return (alphabet * length)[:length]


@pytest.fixture
def play(tmp_path: Path) -> Path:
    """Two roles that share no letter and one that is too short for a window; 10 and 6 windows."""
    anne, bob = cycled("abcdefg", 10 * WINDOW + 1), cycled("uvwxyz", 6 * WINDOW + 1)
    return write_play(tmp_path, [("ANNE", anne[:300]), ("BOB", bob), ("CROWD", "oh!"), ("ANNE", anne[301:])])


def test_windows_do_not_overlap_and_labels_are_one_character_further(play: Path):
    dataset = load(play)
    assert dataset.train.features.shape == (8 + 5, WINDOW)
    assert dataset.test.features.shape == (2 + 1, WINDOW)
    for samples in (dataset.train, dataset.test):
        assert samples.labels is not None
        assert samples.labels.shape == samples.features.shape
        assert torch.equal(samples.labels[:, :-1], samples.features[:, 1:])
    spoken = readable(dataset, dataset.train.features[:8].flatten())
    assert spoken == (cycled("abcdefg", 300) + "\n" + cycled("abcdefg", 10 * WINDOW + 1)[301:])[: 8 * WINDOW]


def test_every_window_is_one_roles_and_the_end_of_the_role_is_for_the_test(play: Path):
    dataset = load(play)
    assert dataset.owners is not None
    assert dataset.owners.names == ("ANNE", "BOB")  # CROWD has no window, but characters
    assert dataset.classes == tuple(sorted("abcdefg\nuvwxyzoh!"))
    assert dataset.owners.of_row.tolist() == [0] * 8 + [1] * 5
    for row, owner in enumerate(dataset.owners.of_row.tolist()):
        assert set(readable(dataset, dataset.train.features[row])) <= set(("abcdefg\n", "uvwxyz")[owner])
    assert dataset.test.labels is not None
    assert readable(dataset, dataset.test.labels[1, -1:]) == "abcdefg"[(10 * WINDOW) % 7]


def test_owners_follow_the_drawn_samples(play: Path):
    everything, drawn = load(play), load(play, 6, 2)
    assert everything.owners is not None
    assert drawn.owners is not None
    assert drawn.owners.names == everything.owners.names
    assert torch.equal(drawn.owners.of_row, everything.owners.of_row[drawn.train.ids])
    assert torch.equal(drawn.train.features, everything.train.features[drawn.train.ids])
    assert torch.equal(drawn.test.features, everything.test.features[drawn.test.ids - TEST_ID_START])


def test_a_text_that_is_no_play_has_no_owners_and_is_cut_as_one(tmp_path: Path):
    path = tmp_path / "novel.txt"
    text = "He said:\nnothing.\n\n" + "\n\n".join(cycled("chapter ", 200) for _ in range(5))
    path.write_text(text)
    dataset = load(path)
    assert dataset.owners is None
    assert readable(dataset, dataset.train.features.flatten()) == text[: len(dataset.train) * WINDOW]
    assert len(dataset.train) + len(dataset.test) == (len(text) - 1) // WINDOW


@given(speeches=st.lists(st.tuples(NAMES, LINES.filter(lambda line: line.strip() != "")), min_size=1, max_size=12))
def test_a_play_put_together_comes_apart_again(speeches: list[tuple[str, str]]):
    wanted: dict[str, list[str]] = {}
    for role, speech in speeches:
        wanted.setdefault(role, []).append(speech)
    text = "\n\n".join(f"{role}:\n{speech}" for role, speech in speeches)
    assert split_roles(text) == {role: "\n".join(said) for role, said in wanted.items()}


def test_titles_and_blank_lines_with_spaces_belong_to_nobody():
    text = "ACT I\n\nROMEO: \nO me!\n \n\t\nWhat fray?\n\nBENVOLIO:\nSee.\n\n\nROMEO:\nTwo\nlines.\n"
    assert split_roles(text) == {"ROMEO": "O me!\nTwo\nlines.", "BENVOLIO": "See."}


@given(texts=st.lists(st.text(max_size=20), max_size=5))
def test_encoding_can_be_undone(texts: list[str]):
    codes, vocabulary = encode(texts)
    assert "".join(vocabulary[code] for code in codes.tolist()) == "".join(texts)
    assert vocabulary == tuple(sorted(set("".join(texts))))


@given(length=st.integers(0, 5 * WINDOW))
def test_windows_use_as_much_as_has_a_next_character(length: int):
    codes = torch.arange(length)
    x, y = windows(codes)
    assert x.shape == y.shape == (max(0, length - 1) // WINDOW, WINDOW)
    assert torch.equal(x.flatten(), codes[: x.numel()])
    assert torch.equal(y.flatten(), codes[1 : y.numel() + 1])


def test_a_byte_order_mark_and_windows_line_ends_are_no_characters(play: Path):
    unix = load(play)
    play.write_bytes(b"\xef\xbb\xbf" + play.read_bytes().replace(b"\n", b"\r\n"))
    assert load(play).classes == unix.classes
    assert torch.equal(load(play).train.features, unix.train.features)


@pytest.mark.parametrize("content", [b"", b"short", b"A:\n" + b"x" * (5 * WINDOW)])
def test_too_little_text_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "short.txt"
    path.write_bytes(content)
    refuses("data.dataset.root", lambda: load(path), "short.txt")


def test_what_is_not_a_text_file_is_refused(tmp_path: Path):
    refuses("data.dataset.root", lambda: load(None), "path")
    for path in (tmp_path, tmp_path / "nowhere"):
        with refused("data.dataset.root", "text"):
            load(path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    refuses("data.dataset.root", lambda: load(tmp_path / "binary"), "UTF-")


def test_text_says_that_it_has_no_pixels(play: Path):
    with pytest.warns(UserWarning, match=r"data\.dataset\.image_size is ignored"):
        load(play, image_size=8)
