import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from shorthand import check_rows
from torch import Tensor

from vfl.horizontal.data.unlabelled import GAUSSIAN_MEANS, GAUSSIAN_STD, gaussian, iid

SEEDS = st.integers(0, 2**40)


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


def test_iid_is_a_random_deal_by_the_seed():
    first, again, other = iid(1000, 2, 0)[0], iid(1000, 2, 0)[0], iid(1000, 2, 1)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 200 < int((first < 500).sum()) < 300  # not the first half, nor every second one
    assert 200 < int((first % 2).sum()) < 300


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
