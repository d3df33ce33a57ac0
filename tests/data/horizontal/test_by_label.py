"""How samples are dealt to clients, by their labels and without them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses
from shorthand import check_rows
from torch import Tensor

from vfl.horizontal.data.by_label import DIRICHLET_TRIES, _apportion, classes, dirichlet, shards
from vfl.horizontal.data.unlabelled import GAUSSIAN_MEANS, GAUSSIAN_STD, gaussian, iid

SEEDS = st.integers(0, 2**40)
LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=200).map(torch.tensor)


def balanced(count: int, per_class: int) -> Tensor:
    """Labels 0 .. count - 1, in an order that is not theirs."""
    return torch.arange(count * per_class) * 7919 % count


def held(parts: list[Tensor], labels: Tensor) -> list[set[int]]:
    return [set(labels[rows].tolist()) for rows in parts]


# classes


@given(
    count=st.integers(1, 12),
    share=st.floats(0, 1),
    extra=st.integers(0, 30),
    more=st.integers(0, 9),
    seed=SEEDS,
)
def test_every_client_has_exactly_p_classes_and_all_samples_are_dealt(
    count: int, share: float, extra: int, more: int, seed: int
):
    per_client = max(1, int(share * count))
    clients = -(-count // per_client) + extra  # no class is left without a client
    labels = balanced(count, clients + more)
    parts = classes(labels, clients, per_client, seed)
    check_rows(parts, len(labels), all_of_them=True)
    assert [len(mine) for mine in held(parts, labels)] == [per_client] * clients
    holders = [sum(label in mine for mine in held(parts, labels)) for label in range(count)]
    assert max(holders) - min(holders) <= 1
    for label in range(count):
        shares = [int((labels[rows] == label).sum()) for rows in parts]
        assert max(shares) - min(share for share in shares if share) <= 1


@given(
    per_client=st.integers(1, 5),
    clients=st.integers(1, 20),
    more=st.integers(1, 5),
    each=st.integers(5, 12),
    seed=SEEDS,
)
@pytest.mark.filterwarnings("ignore:horizontal.partition.classes_per_client")
def test_classes_of_a_given_size_do_not_depend_on_the_number_of_clients(
    per_client: int, clients: int, more: int, each: int, seed: int
):
    labels = balanced(5, each * (clients + more))
    few, many = (classes(labels, count, per_client, seed, each) for count in (clients, clients + more))
    check_rows(many, len(labels), all_of_them=False)
    assert [len(rows) for rows in many] == [each] * (clients + more)
    assert [len(mine) for mine in held(many, labels)] == [per_client] * (clients + more)
    for rows in many:
        shares = torch.bincount(labels[rows])
        assert shares.max() - shares[shares > 0].min() <= 1
    assert all(torch.equal(a, b) for a, b in zip(few, many[:clients], strict=True))


def test_classes_are_paired_at_random():
    labels = balanced(10, 500)
    pairs = held(classes(labels, 50, 2, 0), labels)
    assert len({tuple(sorted(pair)) for pair in pairs}) > 15  # of 45 pairs; dealt in turn there would be 5


def test_classes_that_the_samples_lack_are_not_dealt():
    labels = torch.tensor([3, 3, 8, 8])
    assert sorted(held(classes(labels, 2, 1, 0), labels)[0] | held(classes(labels, 2, 1, 0), labels)[1]) == [3, 8]


def test_too_few_clients_for_all_classes_is_said():
    labels = balanced(10, 30)
    with pytest.warns(UserWarning, match=r"3 clients with 2 classes each leave 4 of 10 classes without a client"):
        parts = classes(labels, 3, 2, 0)
    assert sum(map(len, parts)) == 6 * 30


@pytest.mark.parametrize("wrong", [0, -1, 11])
def test_an_impossible_number_of_classes_is_refused(wrong: int):
    refuses("horizontal.partition.classes_per_client", lambda: classes(balanced(10, 5), 5, wrong, 0), "10", wrong)


def test_a_class_with_too_few_samples_for_its_clients_is_refused():
    refuses("horizontal.clients", lambda: classes(balanced(10, 5), 30, 2, 0), "need")
    refuses("horizontal.partition.samples_per_client", lambda: classes(balanced(10, 5), 10, 2, 0, 6), "need")
    refuses("horizontal.partition.samples_per_client", lambda: classes(balanced(10, 5), 10, 2, 0, 1), "classes")


# shards


@given(labels=LABELS, share=st.floats(0, 1), per_client=st.integers(1, 5), seed=SEEDS)
def test_shards_are_even_pieces_of_the_sorted_samples(labels: Tensor, share: float, per_client: int, seed: int):
    per_client = min(per_client, len(labels))
    clients = max(1, int(share * len(labels) / per_client))
    count = clients * per_client
    parts = shards(labels, clients, per_client, seed)
    check_rows(parts, len(labels), all_of_them=True)
    assert max(map(len, parts)) - min(map(len, parts)) <= per_client
    # A shard of s samples touches one class more than it has borders inside: all together, at most count + classes - 1.
    assert sum(map(len, held(parts, labels))) <= count + len(labels.unique()) - 1


def test_shards_on_mnists_sizes_are_mcmahans():
    labels = balanced(10, 60)
    parts = shards(labels, 100, 2, 0)
    assert {len(rows) for rows in parts} == {6}
    # 20 shards of 3 per class, with no shard on a border: one or two classes each, 3 or 6 samples of a class.
    assert {int(share) for rows in parts for share in torch.bincount(labels[rows]) if share} <= {3, 6}
    assert sum(len(mine) == 2 for mine in held(parts, labels)) > 70


def test_more_shards_than_samples_are_refused():
    refuses("horizontal.partition.shards_per_client", lambda: shards(balanced(2, 5), 6, 2, 0), "12", "10")


# dirichlet


@given(labels=LABELS, share=st.floats(0, 0.05), alpha=st.floats(0.5, 100), seed=SEEDS)
def test_dirichlet_deals_every_sample_once_and_keeps_the_minimum(labels: Tensor, share: float, alpha: float, seed: int):
    clients = max(1, int(share * len(labels)))
    minimum = 1 + len(labels) // (8 * clients)
    parts = dirichlet(labels, clients, alpha, seed, minimum)
    check_rows(parts, len(labels), all_of_them=True)
    assert len(parts) == clients
    assert min(map(len, parts)) >= minimum


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_is_drawn_over_clients_for_each_class(alpha: float):
    clients, count, per_class = 10, 200, 500
    labels = balanced(count, per_class)
    parts = dirichlet(labels, clients, alpha, 0, 1)
    shares = torch.stack([torch.bincount(labels[rows], minlength=count) for rows in parts]) / per_class
    torch.testing.assert_close(shares.sum(dim=0), torch.ones(count))
    # The variance of one entry of Dir(alpha, ..., alpha) of length n is (n - 1) / (n^2 (n alpha + 1)).
    exact = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert shares.var().item() == pytest.approx(exact, rel=0.15)


@pytest.mark.parametrize("clients", [3, 7, 49])
def test_proportions_that_do_not_sum_to_one_exactly_lose_or_invent_no_sample(clients: int):
    for rounding in (1 - 1e-15, 1.0, 1 + 1e-15):
        proportions_KM = np.full((2, clients), rounding / clients)
        proportions_KM[:, -1] = 0  # the last of those that have a share ends at the total, or beside it
        proportions_KM[:, 0] += rounding / clients
        sizes_KM = _apportion(proportions_KM, np.array([10**6, 10**15]))
        assert sizes_KM.min() >= 0
        assert sizes_KM.sum(axis=1).tolist() == [10**6, 10**15]


def test_a_huge_alpha_is_even_and_a_tiny_one_gives_a_class_to_one_client():
    labels = balanced(10, 1000)
    assert {len(rows) for rows in dirichlet(labels, 4, 1e12, 0)} <= {*range(2480, 2521)}
    assert [len(mine) for mine in held(dirichlet(labels, 1, 1e-300, 0), labels)] == [10]
    tiny = held(dirichlet(labels, 2, 1e-6, 0), labels)
    assert sum(map(len, tiny)) == 10


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_alpha_is_refused(alpha: float):
    refuses("horizontal.partition.dirichlet_alpha", lambda: dirichlet(balanced(2, 5), 2, alpha, 0), "above")


def test_a_minimum_that_cannot_be_met_is_refused_with_the_fix():
    refuses("horizontal.clients", lambda: dirichlet(balanced(2, 5), 11, 1.0, 0), "11")
    refuses("horizontal.partition.min_samples", lambda: dirichlet(balanced(2, 5), 5, 1.0, 0, 3), "15", "10")
    with refused(
        "horizontal.partition.min_samples",
        "50",
        "10",
        f"in {DIRICHLET_TRIES} draws",
        "horizontal.partition.dirichlet_alpha",
        "horizontal.clients",
    ):
        dirichlet(balanced(10, 100), 50, 0.01, 0, 10)


def sizes(parts: list[Tensor]) -> list[int]:
    return [len(rows) for rows in parts]


@given(samples=st.integers(1, 300), share=st.floats(0.01, 1), seed=SEEDS)
def test_iid_deals_every_sample_once_in_even_parts(samples: int, share: float, seed: int):
    clients = max(1, int(share * samples))
    parts = iid(samples, clients, seed)
    check_rows(parts, samples)
    assert len(parts) == clients
    assert sum(sizes(parts)) == samples
    assert max(sizes(parts)) - min(sizes(parts)) <= 1


@given(
    each=st.integers(1, 20), clients=st.integers(1, 20), extra=st.integers(0, 50), more=st.integers(1, 5), seed=SEEDS
)
def test_iid_of_a_given_size_does_not_depend_on_the_number_of_clients(
    each: int, clients: int, extra: int, more: int, seed: int
):
    samples = each * (clients + more) + extra
    few, many = (iid(samples, count, seed, each) for count in (clients, clients + more))
    check_rows(many, samples)
    assert sizes(many) == [each] * (clients + more)
    assert all(torch.equal(a, b) for a, b in zip(few, many[:clients], strict=True))


def test_iid_refuses_what_the_samples_do_not_give():
    refuses("horizontal.clients", lambda: iid(10, 11, 0), "11", "10", "data.train")
    refuses("horizontal.partition.samples_per_client", lambda: iid(10, 3, 0, 4), "12", "10")
    refuses("horizontal.partition.samples_per_client", lambda: iid(10, 1, 0, 11), "11")
    assert sizes(iid(10, 1, 0, 10)) == [10]


@given(clients=st.integers(1, 60), each=st.integers(1, 50), seed=SEEDS)
def test_gaussian_sizes_are_positive_and_rows_disjoint(clients: int, each: int, seed: int):
    samples = 4 * clients * each + clients
    parts = gaussian(samples, clients, seed, each)
    check_rows(parts, samples)
    assert len(parts) == clients
    assert min(sizes(parts)) >= 1


def test_gaussian_sizes_follow_case_3_a_fifth_of_the_clients_each():
    drawn = np.sort(sizes(gaussian(600_000, 500, 0)))
    exact = np.random.default_rng(1).normal(
        np.repeat(1024 * np.array(GAUSSIAN_MEANS), 20_000),
        np.repeat(1024 * GAUSSIAN_STD * np.array(GAUSSIAN_MEANS), 20_000),
    )
    for quantile in (0.05, 0.25, 0.5, 0.75, 0.95):
        # 500 draws: a quantile is off by about 2 % of the clients, so by the spread between neighbouring quantiles.
        low, high = np.quantile(exact, [quantile - 0.045, quantile + 0.045])
        assert low < np.quantile(drawn, quantile) < high
    assert [mean * 1024 for mean in GAUSSIAN_MEANS] == [512, 768, 1024, 1280, 1536]
    assert [mean * 1024 * GAUSSIAN_STD for mean in GAUSSIAN_MEANS] == [100, 150, 200, 250, 300]


def test_gaussian_groups_are_fifths_at_random_positions():
    # Groups 512, 768, ... are told apart where the spread is small against the steps: take the smallest and largest.
    parts = np.array(sizes(gaussian(1_200_000, 1000, 0)))
    halves = parts[:500].mean(), parts[500:].mean()
    assert abs(halves[0] - halves[1]) < 100  # in order of position they would be 500 apart
    assert abs(parts.mean() - 1024) < 30


def test_gaussian_refuses_too_few_samples():
    refuses("horizontal.partition.samples_per_client", lambda: gaussian(1000, 20, 0), "20", "1000")
