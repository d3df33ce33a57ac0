"""Choosing clients with unequal chances."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vfl.horizontal.algorithm import inclusion_chances, sample_by_groups

PAPER = (0.05, 0.15, 0.2, 0.6)


@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=6),
    st.integers(6, 40),
    st.integers(1, 40),
    st.integers(0, 2**31),
)
def test_as_many_different_candidates_as_asked(weights: list[float], clients: int, count: int, seed: int):
    draw = torch.Generator().manual_seed(seed)
    candidates = torch.randperm(clients, generator=draw)[: clients - 3].sort().values
    chosen = sample_by_groups(candidates, weights, clients, count, draw)
    assert len(chosen) == min(count, clients - 3)
    assert sorted(set(chosen)) == chosen
    assert set(chosen) <= set(candidates.tolist())


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=30), st.data())
def test_chances_sum_to_the_number_and_are_in_proportion_below_one(weights: list[float], data: st.DataObject):
    count = data.draw(st.integers(1, len(weights) - 1))
    chances = inclusion_chances(torch.tensor(weights, dtype=torch.float64), count)
    assert float(chances.sum()) == pytest.approx(count)
    assert bool(((chances > 0) & (chances <= 1 + 1e-12)).all())
    free = chances < 1 - 1e-12
    ratios = chances[free] / torch.tensor(weights, dtype=torch.float64)[free]
    assert torch.allclose(ratios, ratios[:1].expand_as(ratios))


def test_the_papers_quarters_are_chosen_with_the_papers_probabilities():
    draws = 1500
    counts = torch.zeros(40)
    for number in range(draws):
        draw = torch.Generator().manual_seed(number)
        counts[sample_by_groups(torch.arange(40), PAPER, 40, 10, draw)] += 1
    shares = (counts / draws).view(4, 10)
    # Five standard errors of a probability: sqrt(0.25 / 1500) = 0.013.
    assert torch.allclose(shares, torch.tensor(PAPER)[:, None].expand(4, 10), atol=0.065)
