"""Samples dealt to clients by every kind of partition, and what is shown of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from refusals import refused, refuses
from rich.console import Console
from shorthand import parse_horizontal
from torch import Tensor

from vfl.config import ConfigError
from vfl.data.samples import Owners, Samples
from vfl.horizontal.config import SamplePartitionConfig
from vfl.horizontal.data.by_label import classes, dirichlet, shards
from vfl.horizontal.data.partition import SamplePartition, partition_samples
from vfl.horizontal.data.summary import class_counts, draw_split, split_table
from vfl.horizontal.data.unlabelled import gaussian, iid, natural

COUNT = 400
KINDS = ("iid", "classes", "shards", "dirichlet", "gaussian", "natural")


@pytest.fixture
def images() -> Samples:
    return Samples(torch.arange(COUNT), torch.zeros(COUNT, 1, 1, 1), torch.arange(COUNT) % 10)


@pytest.fixture
def text() -> Samples:
    codes = torch.arange(COUNT * 4).view(COUNT, 4) % 7
    return Samples(torch.arange(COUNT), codes, codes)


@pytest.fixture
def owners() -> Owners:
    return Owners(tuple("abcdefgh"), torch.arange(COUNT) * 3 % 8)


def split(
    kind: str, samples: Samples, clients: int = 8, owners: Owners | None = None, *, seed: int = 5, **parameters: Any
) -> SamplePartition:
    settings = SamplePartitionConfig.model_validate({"kind": kind, **parameters})
    return partition_samples(settings, samples, owners, clients, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_names_its_clients_and_gives_each_its_own_rows(kind: str, images: Samples, owners: Owners):
    parameters = {"samples_per_client": 20} if kind == "gaussian" else {}
    partition = split(kind, images, 8, owners, **parameters)
    together = torch.cat(partition.rows)
    assert len(partition) == len(set(partition.names)) == 8
    assert partition.sizes == tuple(map(len, partition.rows))
    assert min(partition.sizes) >= 1
    assert len(together.unique()) == len(together) <= COUNT
    assert partition.names == (tuple("abcdefgh") if kind == "natural" else tuple(f"client_{n}" for n in range(1, 9)))


@pytest.mark.parametrize("kind", KINDS)
def test_clients_are_drawn_by_the_seed(kind: str, images: Samples, owners: Owners):
    parameters = {"samples_per_client": 20} if kind == "gaussian" else {}
    clients = 4 if kind == "natural" else 8  # eight owners would all be drawn
    first, again, other = (
        [rows.tolist() for rows in split(kind, images, clients, owners, seed=seed, **parameters).rows]
        for seed in (0, 0, 1)
    )
    assert first == again != other


ONE_CLASS = torch.zeros(1000, dtype=torch.int64)


@pytest.mark.parametrize(
    "deal", [lambda: iid(1000, 2, 0), lambda: shards(ONE_CLASS, 2, 1, 0), lambda: dirichlet(ONE_CLASS, 2, 1e6, 0)]
)
def test_a_client_has_a_random_part_of_a_class(deal: Any):
    first = deal()[0]
    assert 200 < int((first < 500).sum()) < 300  # not the first half, nor every second one
    assert 200 < int((first % 2).sum()) < 300


def test_parameters_and_their_defaults_reach_the_kinds(images: Samples):
    labels = images.labels
    assert labels is not None
    wanted: list[tuple[SamplePartition, list[Tensor]]] = [
        (split("iid", images), iid(COUNT, 8, 5)),
        (split("iid", images, samples_per_client=7), iid(COUNT, 8, 5, 7)),
        (split("gaussian", images, samples_per_client=9), gaussian(COUNT, 8, 5, 9)),
        (split("classes", images), classes(labels, 8, 2, 5)),
        (split("classes", images, classes_per_client=3, samples_per_client=9), classes(labels, 8, 3, 5, 9)),
        (split("shards", images), shards(labels, 8, 2, 5)),
        (split("shards", images, shards_per_client=3), shards(labels, 8, 3, 5)),
        (split("dirichlet", images), dirichlet(labels, 8, 0.5, 5, 1)),
        (split("dirichlet", images, dirichlet_alpha=9.0, min_samples=30), dirichlet(labels, 8, 9.0, 5, 30)),
    ]
    for partition, rows in wanted:
        assert [mine.tolist() for mine in partition.rows] == [mine.tolist() for mine in rows]


# natural


@given(
    of_row=st.lists(st.integers(0, 9), max_size=60),
    seed=st.integers(0, 2**40),
    minimum=st.integers(1, 4),
    data=st.data(),
)
def test_natural_clients_are_the_owners_with_all_their_samples(
    of_row: list[int], seed: int, minimum: int, data: st.DataObject
):
    owners = Owners(tuple("abcdefghij"), torch.tensor(of_row, dtype=torch.int64))
    eligible = [name for index, name in enumerate(owners.names) if of_row.count(index) >= minimum]
    if not eligible:
        refuses("horizontal.clients", lambda: natural(owners, 1, seed, minimum), "asked")
        return
    names, rows = natural(owners, len(eligible), seed, minimum)
    assert list(names) == eligible
    for name, mine in zip(names, rows, strict=True):
        assert mine.tolist() == [row for row, owner in enumerate(of_row) if owners.names[owner] == name]
    clients = data.draw(st.integers(1, len(eligible)))
    fewer, their_rows = natural(owners, clients, seed, minimum)
    assert len(fewer) == clients
    assert set(fewer) <= set(names)
    assert [mine.tolist() for mine in their_rows] == [rows[names.index(name)].tolist() for name in fewer]
    if clients > 1:
        assert set(natural(owners, clients - 1, seed, minimum)[0]) < set(fewer)


def test_an_owner_without_samples_is_refused_by_name_or_left_out():
    owners = Owners(("anne", "idle", "bob"), torch.tensor([0, 2, 0]))
    refuses("horizontal.partition.min_samples", lambda: natural(owners, 2, 0), "'idle'")
    assert natural(owners, 2, 0, 1)[0] == ("anne", "bob")
    assert natural(owners, 1, 0, 2)[0] == ("anne",)


def test_more_clients_than_owners_are_refused(owners: Owners):
    refuses("horizontal.clients", lambda: natural(owners, 9, 0), "asked")
    with refused("horizontal.clients", "min_samples"):
        natural(Owners(("a", "b"), torch.tensor([0, 0, 1])), 2, 0, 2)


# Bad input


def test_a_client_without_samples_is_refused_by_name():
    with refused("horizontal.partition", "'client_2'"):
        SamplePartition(("client_1", "client_2"), (torch.tensor([1]), torch.tensor([], dtype=torch.int64)))


def test_natural_needs_owners(images: Samples, owners: Owners):
    assert len(split("natural", images, 8, owners)) == 8
    refuses("horizontal.partition.kind", lambda: split("natural", images), "leaf")


@pytest.mark.parametrize("kind", ["classes", "shards", "dirichlet"])
def test_a_label_per_character_cannot_be_split_by_label(text: Samples, kind: str):
    refuses("horizontal.partition.kind", lambda: split(kind, text), kind)
    assert len(split("iid", text)) == 8


def horizontal(**partition: Any) -> dict[str, Any]:
    return {"name": "split", "mode": "horizontal", "horizontal": {"partition": partition}}


@pytest.mark.parametrize("name", ["classes_per_client", "shards_per_client", "min_samples", "samples_per_client"])
def test_parameters_below_one_are_refused(name: str):
    with pytest.raises(ConfigError, match=rf"^horizontal\.partition\.{name}: .* greater than or equal to 1 \(got 0\)"):
        parse_horizontal(horizontal(**{name: 0}))


def test_parameters_that_the_kind_does_not_use_are_named():
    config = parse_horizontal(horizontal(kind="iid", dirichlet_alpha=1.0, samples_per_client=3))
    reason = "ignored, horizontal.partition.kind is iid"
    assert [line for line in config.warnings() if "partition" in line] == [
        f"horizontal.partition.dirichlet_alpha: {reason}"
    ]


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
