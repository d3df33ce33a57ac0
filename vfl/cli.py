"""What the scripts share: errors of one line, exit codes, and a console whose reader may go away."""

import argparse
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from rich.console import Console

from vfl.vertical.link import PeerLost

DONE = 0
BAD_INPUT = 2
LOST = 3
INTERRUPTED = 130


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Leave with exit code 2."""
        self.exit(BAD_INPUT, f"error: {message}; see {self.prog} --help\n")


class ShowConsole(Console):
    """A console for text as it is (no markup, one line stays one line); training goes on when its reader goes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(soft_wrap=True, markup=False, emoji=False, highlight=False, **options)

    def on_broken_pipe(self) -> None:
        """Be quiet from now on: a closed ``| head`` must not end a training without its checkpoint."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(run: Callable[[], int], warn: Callable[[str], None]) -> int:
    """Run a script's work and return its exit code: every expected error becomes one line on stderr.

    ``warn`` shows a warning. SIGTERM is taken as Ctrl-C is, also while nothing handles it more gently.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def show_warning(message: Warning | str, *_where: object) -> None:
        warn(f"warning: {message}")

    warnings.showwarning = show_warning
    threading.excepthook = _thread_failed
    try:
        return run()
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    except PeerLost as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return LOST
    except KeyboardInterrupt:
        print("interrupted; what was saved stays", file=sys.stderr)
        return INTERRUPTED


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    # A full disk in TensorBoard's writing thread comes up in the main thread again, as one line.
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)
