from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from rich.console import Console
from torch import Tensor

from vfl.horizontal.data.by_label import classes
from vfl.horizontal.data.partition import SamplePartition
from vfl.horizontal.data.summary import class_counts, draw_split, split_table

NAMES = tuple("abcdefghijkl")


def named(rows: list[Tensor]) -> SamplePartition:
    return SamplePartition(tuple(f"client_{number}" for number in range(1, len(rows) + 1)), tuple(rows))


def printed(partition: SamplePartition, counts: Tensor, names: tuple[str, ...]) -> list[list[str]]:
    """The table's lines as words."""
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(split_table(partition, counts, names))
    return [line.split() for line in capture.get().splitlines()]


@pytest.fixture
def small() -> tuple[SamplePartition, Tensor]:
    labels = torch.tensor([0, 1, 1, 2, 2, 2, 0])
    partition = named([torch.tensor([0, 1]), torch.tensor([2, 3, 4, 5])])
    return partition, class_counts(partition, labels, 4)


def test_counts_are_those_of_each_clients_labels(small: tuple[SamplePartition, Tensor]):
    assert small[1].tolist() == [[1, 1, 0, 0], [0, 1, 3, 0]]


def test_of_text_characters_are_counted():
    partition = named([torch.tensor([1]), torch.tensor([0, 2])])
    labels = torch.tensor([[0, 0, 1], [2, 2, 2], [0, 1, 1]])
    assert class_counts(partition, labels, 3).tolist() == [[0, 0, 3], [3, 3, 0]]


def test_the_table_of_few_clients_and_classes_shows_every_count(small: tuple[SamplePartition, Tensor]):
    lines = printed(*small, NAMES[:4])
    assert ["client", "samples", "a", "b", "c", "d"] in lines
    assert ["client_1", "2", "1", "1", "·", "·"] in lines
    assert ["client_2", "4", "·", "1", "3", "·"] in lines
    words = " ".join(word for line in lines for word in line)
    assert "2 clients, 6 samples, each 2 to 4 (median 2) samples and 2 classes client samples" in words


def test_of_many_classes_the_most_frequent_are_named():
    labels = torch.tensor([4, 4, 4, 11, 11, 0, 7, 0, 0, 0])
    partition = named([torch.arange(10)])
    names = ("[b]", *NAMES[1:11], "\n")  # markup is text, and a line end is seen
    lines = printed(partition, class_counts(partition, labels, 12), names)
    assert ["client_1", "10", "4", "'[b]':", "4,", "e:", "3,", r"'\n':", "2"] in [
        [word.replace("[b]:", "'[b]':") for word in line] for line in lines
    ]


def test_the_table_of_a_thousand_clients_goes_from_the_smallest_to_the_largest():
    sizes = torch.arange(1000) * 7919 % 1000 + 1
    partition = named(list(torch.arange(int(sizes.sum())).split(sizes.tolist())))
    lines = printed(partition, class_counts(partition, torch.zeros(int(sizes.sum()), dtype=torch.int64), 2), ("a", "b"))
    shown = [int(line[1]) for line in lines if line and line[0].startswith("client_")]
    assert shown[0] == 1
    assert shown[-1] == 1000
    assert shown == sorted(shown)
    assert len(shown) == 11
    words = " ".join(word for line in lines for word in line)
    assert words.endswith("11 of 1000 clients, from the smallest to the largest")


@pytest.mark.parametrize(("clients", "count"), [(1, 1), (10, 10), (40, 12), (1000, 10), (1000, 62)])
def test_the_plot_is_written_for_any_number_of_clients_and_classes(tmp_path: Path, clients: int, count: int):
    labels = torch.arange(4 * clients * count) % count
    partition = named(classes(labels, clients, min(2, count), 0) if clients >= count else [torch.arange(len(labels))])
    names = tuple(f"$class {index}" for index in range(count))
    draw_split(partition, class_counts(partition, labels, count), names, tmp_path / "split.png")
    image = imread(tmp_path / "split.png")
    assert image.shape == (720, 1350, 4)


def colored_area(path: Path, rgb: tuple[float, float, float]) -> int:
    return int((np.abs(imread(path)[..., :3] - rgb) < 0.02).all(axis=-1).sum())


def test_the_area_of_a_colour_is_the_share_of_its_class(tmp_path: Path):
    # tab10's first three; the legend's patches are the same for all.
    blue, orange, green = (0.122, 0.467, 0.706), (1.0, 0.498, 0.055), (0.173, 0.627, 0.173)
    partition = named([torch.arange(100), torch.arange(100, 150)])
    labels = torch.tensor([0] * 60 + [1] * 40 + [1] * 20 + [2] * 30)
    draw_split(partition, class_counts(partition, labels, 3), ("a", "b", "c"), tmp_path / "split.png")
    areas = [colored_area(tmp_path / "split.png", color) for color in (blue, orange, green)]
    assert areas[0] == pytest.approx(areas[1], rel=0.02)
    assert areas[2] == pytest.approx(areas[0] / 2, rel=0.03)
