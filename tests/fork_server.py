"""Forks processes of the commands, with what shall happen to them: each really dies, none has to import PyTorch.

Run as a program, a line of standard input is an order and a line of standard output its answer: {"start": ...} ->
process id, {"poll": process id} -> exit code, "stopped" or null; a negative code is the signal that killed it.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

ROOT = Path(__file__).parents[1]


class ForkServer:
    """The process that forks others, as the tests see it.

    Args:
        python: its interpreter.
        environment: variables that lie over those of this process.
        options: further ones of ``subprocess.Popen``.
    """

    def __init__(
        self, python: str | Path = sys.executable, environment: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        options |= {"env": os.environ | variables | dict(environment or {}), "text": True}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([str(python), __file__], stdin=pipe, stdout=pipe, **options)

    def ask(self, **order: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, argv: Sequence[str], log: Path, *, life_s: int = 120, **further: Any) -> int:
        """Start a process and return its id.

        Args:
            argv: a Python file and its arguments.
            log: file of its output; also of its errors, but where ``further`` has a file of ``errors``.
            life_s: seconds after which it is ended: nobody waits for one that hangs.
            further: ``strikes`` with the file of their ``places``, variables of its ``environment``.
        """
        files = {"log": str(log)} | {name: str(further.pop(name)) for name in ("errors", "places") if name in further}
        return self.ask(start={"argv": list(argv), "life_s": life_s, **files, **further})

    def wait(self, process: int) -> int:
        """Return the exit code of a process once it has ended."""
        while (code := self.ask(poll=process)) in (None, "stopped"):
            time.sleep(0.005)
        return code

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=30) == 0
        self.process.stdout.close()


class Strike:
    """Sends this process a signal, or keeps it busy, when a place is passed for the ``passing``-th time."""

    def __init__(self, passing: int, action: str) -> None:
        self.left = passing
        self.action = action

    def __call__(self) -> None:
        if self.due():
            self.act()

    def due(self) -> bool:
        """Count that the place is passed, and return whether it is the time."""
        self.left -= 1
        return self.left == 0

    def act(self) -> None:
        if self.action.startswith("busy "):
            until_s = time.monotonic() + float(self.action.removeprefix("busy "))
            while time.monotonic() < until_s:
                pass
        else:
            os.kill(os.getpid(), signal.Signals[self.action])


def around(owner: Any, name: str, strike: Strike, *, after: bool = False) -> None:
    """Strike whenever a function is about to be called, or has returned."""
    original = getattr(owner, name)

    def struck(*arguments: Any, **options: Any) -> Any:
        if not after:
            strike()
        result = original(*arguments, **options)
        if after:
            strike()
        return result

    setattr(owner, name, struck)


def blank(*_: Any) -> Any:
    """Return a picture [1, 1, 4]: to draw a pruning takes a third of a tiny training, and is tested by itself."""
    return np.zeros((1, 1, 4), np.uint8)


def serve() -> None:
    # Imported and nothing computed: threads would not survive a fork.
    for name in (
        "matplotlib.backends.backend_agg",
        "matplotlib.figure",
        "torch._dynamo",
        "torch.distributed",
        "vfl.data.sources.images",
        "vfl.data.sources.pooled",
        "vfl.horizontal.mode",
        "vfl.parties.uses.dialled_run",
        "vfl.parties.launch.local_launch",
        "vfl.parties.network.party.party_process",
        "vfl.parties.matching.processes",
        "vfl.parties.serving.http",
        "vfl.parties.serving.serving_party",
        "vfl.predict.mode",
        "vfl.runs.run",
    ):
        importlib.import_module(name)
    mock.patch("vfl.core.pruning_pictures.draw_widths", blank).start()
    images: Any = importlib.import_module("vfl.data.sources.images")
    rows = images._read_rows()
    images._read_rows = lambda: rows
    gc.freeze()  # a training collects garbage, and need not go through all of PyTorch for it
    for line in sys.stdin:
        order = json.loads(line)
        answer = fork(order["start"]) if "start" in order else poll(order["poll"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)  # tearing PyTorch down takes seconds


def fork(order: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(order["life_s"])
        run(order)
    return child


def poll(process: int) -> int | str | None:
    ended, status = os.waitpid(process, os.WNOHANG | os.WUNTRACED)
    if ended == 0:
        return None
    return "stopped" if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)


def run(order: dict[str, Any]) -> None:
    for descriptor, path in ((1, order["log"]), (2, order.get("errors", order["log"]))):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.fsync = lambda fd: None  # the system lives on: what is written can be read
    if order.get("strikes"):
        places = runpy.run_path(order["places"])["PLACES"]
        for place, passing, action in order["strikes"]:
            places[place](Strike(passing, action))
    os.environ.update(order.get("environment", {}))
    sys.argv = order["argv"]
    code = 1
    try:
        runpy.run_path(order["argv"][0], run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # tearing PyTorch down takes seconds


if __name__ == "__main__":
    serve()
