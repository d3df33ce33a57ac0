"""Sets of parties that are tested as if the others were absent: `evaluation.subsets`."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from vfl.base.metrics import LOWER_IS_BETTER

MOST_PARTIES = 6
"""Most parties for which all 2^K - 1 sets are tested; above, those that lack one party, and single ones."""
AND = "+"
"""Separator of the names of a set's parties."""


def subsets_of(parties: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the sets to test, the whole one first, in the parties' order."""
    count = len(parties)
    sizes = range(count, 0, -1) if count <= MOST_PARTIES else (count, count - 1, 1)
    return [each for size in sizes for each in combinations(parties, size)]


def lost_without(values: Mapping[str, float], parties: Sequence[str], metric: str) -> dict[str, float]:
    """Return by party how much worse the metric is without it; ``values`` are by set, as in ``summary.json``.

    The difference is the party's contribution. Empty for a single party.
    """
    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0
    whole = values[AND.join(parties)]
    others = {party: AND.join(each for each in parties if each != party) for party in parties}
    return {party: sign * (whole - values[rest]) for party, rest in others.items() if rest}
