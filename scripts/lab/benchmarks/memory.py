"""Peak memory of processes, and its comparison."""

import resource
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple, ParamSpec, TypeVar

from scripts.lab.benchmarks.paired import Result, ratios, required_ratio

P = ParamSpec("P")
R = TypeVar("R")

PAIRS = 3
"""Number of processes of each side."""


class Memory(NamedTuple):
    """Peak resident memory of a process."""

    imported_bytes: int
    """Memory after its imports, before any computation."""
    peak_bytes: int


def compare_memory(
    group: str, case: str, sides: Mapping[str, Callable[[], Memory]], ratio_of: tuple[str, str], most: float
) -> Result:
    """Return the peaks of both sides, in separate processes; the median ratio must be at most ``most``.

    Peaks of equal processes differ by some percent.
    """
    used = [{side: in_fresh_process(measure) for side, measure in sides.items()} for _ in range(PAIRS)]
    raw = {side: [float(pair[side].peak_bytes) for pair in used] for side in sides}
    above = {side: [float(pair[side].peak_bytes - pair[side].imported_bytes) for pair in used] for side in sides}
    return Result(
        group,
        case,
        raw,
        ratio_of,
        unit="bytes",
        details={"ratio_above_imports": median(ratios(above, ratio_of))},
        requirement=required_ratio(raw, ratio_of, "<=", most),
    )


def in_fresh_process(measure: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return the result of a module's function in a fresh process that has imported only that module."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, *args, **kwargs).result()


def peak_bytes() -> int:
    """Return this process's peak resident memory.

    On Linux from /proc: ru_maxrss of a started process begins there at its parent's value, and would measure that.
    """
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
