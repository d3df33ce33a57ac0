"""Ends of a process, which SIGINT and SIGTERM ask for and its parent's death forces; its signs of life for systemd.

``python -m vfl.runs.signals MODULE ARGUMENT...`` runs a module in a process that ends with the one that starts it,
however that ends. Its standard input is the reading end of a pipe, whose other end only the starting process holds: the
system closes it when that process is killed. Nothing is written to it.
"""

import multiprocessing
import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

PARENT_LOST = 1
"""Exit code of a process whose parent has died."""
ENDING_S = 20.0
"""Seconds to end the round and save it, or to end after the server; after that the last checkpoint must do."""


@contextmanager
def stop_on_signal(request_stop: Callable[[str], None]) -> Generator[None]:
    """Turn the first SIGINT or SIGTERM into ``request_stop(name)``, a second one into KeyboardInterrupt.

    Outside the main thread, where Python allows no handlers, signals stay the program's own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: object) -> None:
        for each in previous:
            signal.signal(each, signal.default_int_handler)
        request_stop(signal.Signals(number).name)

    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """End this process, which multiprocessing has started, when its parent dies; only the parent reacts to Ctrl-C."""
    os.setpgrp()
    threading.Thread(target=_wait, name="parent", daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(PARENT_LOST)  # sys.exit would end only this thread


def end_with_pipe() -> None:
    """Wait until standard input is closed, then end this process by SIGTERM, and at once if that takes too long."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    from vfl.console import LOST  # not above: a match's worker imports next to nothing

    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ENDING_S)
    os._exit(LOST)


ALIVE = b"READY=1\nWATCHDOG=1"
"""Says that the process serves, and is not stuck."""


def tell_manager() -> None:
    """Tell the service manager that this process is alive, if there is one that listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
            sender.setblocking(False)  # a manager whose queue is full must not hold up scores
            sender.sendto(ALIVE, b"\0" + address[1:].encode() if address.startswith("@") else address)


if __name__ == "__main__":
    threading.Thread(target=end_with_pipe, name="lifeline", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
