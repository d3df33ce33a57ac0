"""Peak memory of processes, and its comparison."""

import resource
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from vfl.studies.benchmarks.paired import Requirement, Result

P = ParamSpec("P")
R = TypeVar("R")


class Memory(NamedTuple):
    """Peak resident memory of a process."""

    imported_bytes: int
    """After its imports, before anything was computed."""
    peak_bytes: int


def compare_memory(
    group: str, case: str, sides: Mapping[str, Callable[[], Memory]], ratio_of: tuple[str, str], most: float
) -> Result:
    """Return the peaks of both sides, each in a process of its own: a ratio of at most ``most`` is required."""
    used = {side: in_fresh_process(measure) for side, measure in sides.items()}
    above = {side: memory.peak_bytes - memory.imported_bytes for side, memory in used.items()}
    over, under = ratio_of
    return Result(
        group,
        case,
        {side: [float(memory.peak_bytes)] for side, memory in used.items()},
        ratio_of,
        unit="bytes",
        details={"ratio_above_imports": above[over] / above[under]},
        requirement=Requirement(used[over].peak_bytes / used[under].peak_bytes, "<=", most),
    )


def in_fresh_process(measure: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what a function of a module returns in a process of its own, which has imported that module alone."""
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
