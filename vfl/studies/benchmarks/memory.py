"""Peak memory of a process."""

import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


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
