"""Random choice of clients with unequal chances."""

from collections.abc import Sequence

import torch
from torch import Tensor


def sample_by_groups(
    candidates: Tensor, group_weights: Sequence[float], clients: int, count: int, draw: torch.Generator
) -> list[int]:
    """Return ``count`` of the candidates, ascending, each with a chance in proportion to its group's weight.

    All ``clients`` form equal consecutive groups, each with a weight above 0. Unlike successive draws without
    replacement, systematic sampling (Madow 1949) gives exactly these chances, so that FLARE's 0.05, 0.15, 0.2 and 0.6
    for quarters of 40 clients, 10 of them per round, are met. A chance that would exceed 1 is 1, and the others share
    the rest.
    """
    if count >= len(candidates):
        return [int(client) for client in candidates.sort().values]
    weights = torch.tensor(group_weights, dtype=torch.float64)[candidates * len(group_weights) // clients]
    order = torch.randperm(len(candidates), generator=draw)
    # The chances lie end to end on a line of length `count`; ticks at distance 1 from a random start pick those that
    # they fall into. None is longer than 1, so that none is picked twice; the order is random,
    # so that any of them may come together.
    upper = inclusion_chances(weights, count)[order].cumsum(0)
    ticks = torch.rand(1, generator=draw, dtype=torch.float64) + torch.arange(count)
    # Rounding may leave the line's end just below the last tick.
    picked = torch.searchsorted(upper, ticks, right=True).clamp(max=len(candidates) - 1)
    return [int(client) for client in candidates[order[picked]].sort().values]


def inclusion_chances(weights: Tensor, count: int) -> Tensor:
    """Return chances that sum to ``count``: proportional to the weights, but at most 1."""
    certain = torch.zeros(len(weights), dtype=torch.bool)
    while True:
        left = count - int(certain.sum())
        # Those that are certain take a place each; the others share what is left, which may lift more of them above 1.
        chances = torch.where(certain, 1.0, weights * left / weights[~certain].sum())
        if not bool((chances > 1).any()):
            return chances
        certain |= chances >= 1
