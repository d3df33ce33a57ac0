"""The soak's verdict: what counts as flat."""

import os
from math import nan

import pytest
from refusals import refuses

from scripts.lab.benchmarks.soak import Usage, judge, soak, usage_of

pytestmark = pytest.mark.release

MB = 1_000_000


def usages(memory: list[int], threads: list[int] | None = None, descriptors: list[int] | None = None) -> list[Usage]:
    size = len(memory)
    columns = zip(memory, threads or [9] * size, descriptors or [14] * size, strict=True)
    return [Usage(number, "server", *row) for number, row in enumerate(columns)]


def test_a_plateau_is_flat():
    assert judge(usages([500 * MB] + [800 * MB] * 7))[0].flat  # what comes before the second quarter does not count


@pytest.mark.parametrize(
    "growing",
    [
        usages([800 * MB + 10 * MB * number for number in range(8)]),
        usages([800 * MB] * 8, threads=[9, 9, 9, 9, 10, 10, 11, 12]),
        usages([800 * MB] * 8, descriptors=[14, 14, 14, 14, 14, 14, 14, 15]),
    ],
    ids=["memory", "threads", "descriptors"],
)
def test_what_grows_is_not(growing: list[Usage]):
    assert not judge(growing)[0].flat


def test_every_process_is_judged():
    both = usages([800 * MB] * 8) + [Usage(1, "party_1", 1, 1, 1)] * 8
    assert [verdict.process for verdict in judge(both)] == ["server", "party_1"]


def test_what_a_process_holds_is_read():
    usage = usage_of(3, "this", os.getpid())
    with open("/dev/null"):  # noqa: PTH123 - only to hold one more
        assert usage_of(3, "this", os.getpid()).descriptors == usage.descriptors + 1
    assert usage.memory_bytes > 10 * MB
    assert usage.threads >= 1


def test_too_few_exchanges_to_look_at():
    refuses("--exchanges", lambda: soak(39, 2.0), 39, 40)
    refuses("--megabytes", lambda: soak(40, nan), nan)
