"""Child processes of ``multiprocessing`` that end with their parent."""

import multiprocessing
import os
import threading

PARENT_LOST = 1
"""Exit code of a process whose parent has died."""


def end_with_parent() -> None:
    """End this process when its parent dies, and let only the parent react to the terminal's Ctrl-C."""
    os.setpgrp()
    threading.Thread(target=_wait, name="parent", daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(PARENT_LOST)  # sys.exit would end this thread alone
