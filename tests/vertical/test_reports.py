"""What a party may report of a round."""

from contextlib import nullcontext
from typing import Any

import pytest

from vfl.core.costs.ledger import Workload
from vfl.core.costs.reports import check_report
from vfl.messages.control import RoundReport, RoundStart
from vfl.messages.messages import MessageError

WORK, SAMPLES = Workload(exchanges=3, local_iterations=2), (4, 4, 4)
FORWARDS = sum(SAMPLES) * WORK.passes_per_exchange
DENSE, PRUNED = 1000, 300
ASSIGNED = RoundStart(alpha=0.5, beta=0.3)


def report(**changes: Any) -> RoundReport:
    """What a party says that was pruned at the round's beginning."""
    forward = SAMPLES[0] * DENSE  # before it was pruned
    values: dict[str, Any] = {
        "alpha": 0.5,
        "beta": 0.3,
        "macs_per_sample": PRUNED,
        "parameters": 10,
        "train_macs": FORWARDS * PRUNED + forward,
        "unpruned_train_macs": FORWARDS * DENSE,
        "train_time_s": "2.000000e+00",
        "omega": 1.0,
        "psi": 0.5,
    }
    return RoundReport(**values | changes)


def test_what_adds_up_is_believed():
    check_report(report(), ASSIGNED, None, WORK, SAMPLES, 2.0)
    later = report(train_macs=FORWARDS * PRUNED)
    check_report(later, ASSIGNED, report(), WORK, SAMPLES, 2.0)
    fallen = RoundStart(alpha=0.2, beta=0.3)  # a schedule may fall, channels stay away
    check_report(later, fallen, report(), WORK, SAMPLES, 2.0)
    away = report(macs_per_sample=0, parameters=0)  # until now
    check_report(report(), ASSIGNED, away, WORK, SAMPLES, 2.0)


LIES: dict[str, dict[str, Any]] = {
    "alpha": {"alpha": 0.49},
    "alpha 0.9": {"alpha": 0.9},
    "beta": {"beta": 0.29},
    "head_drift": {"head_drift": 0.0},
    "unpruned_train_macs": {"unpruned_train_macs": FORWARDS * DENSE + 1},
    "macs_per_sample": {"macs_per_sample": DENSE + 1},
    "train_macs": {"train_macs": FORWARDS * PRUNED + 1},
    f"train_macs {FORWARDS * PRUNED - 4}": {"train_macs": FORWARDS * PRUNED - 4},
    f"train_macs {FORWARDS * DENSE}": {"train_macs": FORWARDS * DENSE},
    "train_time_s": {"train_time_s": "2.100000e+00"},
}


@pytest.mark.parametrize("told", LIES)
def test_what_cannot_be_true_is_not(told: str):
    with pytest.raises(MessageError, match=f"^Report: {told}"):
        check_report(report(**LIES[told]), ASSIGNED, None, WORK, SAMPLES, 2.0)


def test_without_pruning_costs_are_exact():
    dense = {"alpha": 0.0, "train_macs": FORWARDS * DENSE}
    start = RoundStart(alpha=0.0, beta=0.3)
    check_report(report(**dense, macs_per_sample=DENSE), start, None, WORK, SAMPLES, 2.0)
    with pytest.raises(MessageError, match="macs_per_sample 999 of 1000 at alpha 0"):
        check_report(report(**dense, macs_per_sample=DENSE - 1), start, None, WORK, SAMPLES, 2.0)


@pytest.mark.parametrize("key", ["macs_per_sample", "parameters"])
@pytest.mark.parametrize(("alpha", "more", "fewer"), [(0.4, True, False), (0.5, False, False), (0.6, False, True)])
def test_a_model_is_as_large_at_a_ratio_as_it_was(alpha: float, more: bool, fewer: bool, key: str):
    before = report()
    for by, may in ((4, more), (0, True), (-4, fewer)):
        changed = {key: getattr(before, key) + by}
        macs = changed.get("macs_per_sample", PRUNED)
        now = report(alpha=alpha, train_macs=FORWARDS * macs, **changed)
        refused = nullcontext() if may else pytest.raises(MessageError, match=f"^Report: {key} .* after ")
        with refused:
            check_report(now, RoundStart(alpha=alpha, beta=0.3), before, WORK, SAMPLES, 2.0)


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({}, None),
        ({"resolution": None}, "resolution 1 where 0.5 was assigned"),
        ({"resolution": 0.4}, "resolution 0.4 where 0.5 was assigned"),
        ({"macs_per_sample": 39}, None),  # a claim: the server does not know the shapes of a model's maps
        ({"macs_per_sample": DENSE + 1}, "macs_per_sample 1001 of 1000 at alpha 0"),
        ({"parameters": 9}, "parameters 9 at alpha 0 after 10"),
    ],
)
def test_smaller_images_cost_no_more_than_whole_ones(told: dict[str, Any], line: str | None):
    before = report(alpha=0.0, macs_per_sample=DENSE, train_macs=FORWARDS * DENSE)
    told = {"alpha": 0.0, "resolution": 0.5, "macs_per_sample": 250} | told
    small = report(train_macs=FORWARDS * told["macs_per_sample"], **told)
    refused = pytest.raises(MessageError, match=f"^Report: {line}") if line else nullcontext()
    with refused:
        check_report(small, RoundStart(alpha=0.0, beta=0.3, resolution=0.5), before, WORK, SAMPLES, 2.0)
