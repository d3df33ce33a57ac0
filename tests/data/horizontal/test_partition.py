from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses
from shorthand import parse_horizontal
from torch import Tensor

from vfl.config import ConfigError
from vfl.data.samples import Owners, Samples
from vfl.horizontal.config import SamplePartitionConfig
from vfl.horizontal.data.by_label import classes, dirichlet, shards
from vfl.horizontal.data.partition import SamplePartition, partition_samples
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
    kind: str, samples: Samples, clients: int = 8, owners: Owners | None = None, **parameters: Any
) -> SamplePartition:
    settings = SamplePartitionConfig.model_validate({"kind": kind, **parameters})
    return partition_samples(settings, samples, owners, clients, 5)


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


def test_natural_draws_owners_by_the_seed(owners: Owners):
    draws = {natural(owners, 4, seed)[0] for seed in range(10)}
    assert len(draws) > 5
    assert natural(owners, 4, 3)[0] == natural(owners, 4, 3)[0]


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


def test_an_unknown_kind_is_refused_with_the_nearest_one():
    with refused("horizontal.partition.kind", "'dirichlets'", "'dirichlet'"):
        parse_horizontal(horizontal(kind="dirichlets"))


def test_parameters_that_the_kind_does_not_use_are_named():
    config = parse_horizontal(horizontal(kind="iid", dirichlet_alpha=1.0, samples_per_client=3))
    reason = "ignored, horizontal.partition.kind is iid"
    assert [line for line in config.warnings() if "partition" in line] == [
        f"horizontal.partition.dirichlet_alpha: {reason}"
    ]
