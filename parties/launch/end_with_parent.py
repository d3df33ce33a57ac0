"""A wrapper that runs a module in a process that ends with its starting process, however that ends.

``python -m vfl.parties.launch.end_with_parent MODULE ARGUMENT...``, with the reading end of a pipe as standard input,
whose other end only the starting process holds: the system closes it when that process is killed. Nothing is written
to it.
"""

import os
import runpy
import signal
import sys
import threading
import time

from vfl.console import LOST

ENDING_S = 20.0
"""Seconds to end the round and save it, or to end after the server; after that the last checkpoint must do."""


def end_with_parent() -> None:
    """Wait until standard input is closed, then end this process by SIGTERM, and at once if that takes too long."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ENDING_S)
    os._exit(LOST)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, name="lifeline", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
