"""Peak memory of a process."""

import resource
import sys
from pathlib import Path


def peak_bytes() -> int:
    """Return this process's peak resident memory.

    On Linux from /proc: ru_maxrss of a started process begins there at its parent's value, and would measure that.
    """
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
