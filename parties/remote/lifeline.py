"""A module in a process that ends when the one that started it has, however that ended.

``python -m parties.remote.lifeline MODULE ARGUMENT...``, with the reading end of a pipe as standard input, whose other
end only the starting process holds: the system closes it when that process is killed. Nothing is written to it.
"""

import os
import runpy
import signal
import sys
import threading
import time

from vfl.cli import LOST

FAREWELL_S = 20.0
"""Time to end the round and save it; then the last checkpoint must do."""


def end_with_parent() -> None:
    """Wait until standard input is closed, then end this process as SIGTERM does, and at once if that takes long."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(FAREWELL_S)
    os._exit(LOST)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, name="lifeline", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
