"""Resident memory of this process, from Linux's /proc."""

import ctypes
from pathlib import Path

import pytest

MIB = 1 << 20
needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")


def resident_bytes(field: str) -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[field].split()[0]) * 1024


def begin_peak() -> int:
    """Give freed memory back to the system, begin the peak VmHWM anew, and return what is resident."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes("VmRSS")
