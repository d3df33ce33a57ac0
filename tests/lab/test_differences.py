"""Paired differences over seeds and their intervals."""

import pytest
from scipy.stats import ttest_1samp

from scripts.lab.differences import paired

pytestmark = pytest.mark.release

FIRST = {0: 0.80, 1: 0.85, 2: 0.83, 7: 0.1}
SECOND = {0: 0.78, 1: 0.84, 2: 0.80, 9: 0.9}


def test_the_interval_is_students_over_the_seeds_that_both_have():
    difference = paired(FIRST, SECOND)
    assert difference is not None
    assert (difference.mean, difference.seeds) == (pytest.approx(2.0), 3)
    interval = ttest_1samp([2.0, 1.0, 3.0], 0).confidence_interval(0.95)
    assert difference.mean + difference.half_width == pytest.approx(interval.high)
    assert difference.text() == "+2.0 ± 2.5"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((1.0, 1.1, 0.9), "holds"), ((-1.0, -1.1, -0.9), "REVERSED"), ((2.0, 1.0, 3.0), "undecided")],
)
def test_nothing_is_decided_where_the_interval_holds_0(values, verdict):
    difference = paired(dict(enumerate(values)), dict.fromkeys(range(3), 0.0), scale=1)
    assert difference is not None
    assert difference.verdict() == verdict
    opposite = {"holds": "REVERSED", "REVERSED": "holds"}
    assert difference.verdict(-1) == opposite.get(verdict, verdict)


def test_one_seed_decides_nothing_and_no_common_seed_is_no_difference():
    difference = paired({3: 0.5}, {3: 0.25})
    assert difference is not None
    assert (difference.text(), difference.verdict()) == ("+25.0", "one seed decides nothing")
    assert paired({1: 0.5}, {2: 0.5}) is None
