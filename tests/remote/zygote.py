"""Forks processes of the scripts, with what shall happen to them: each really dies, none has to import PyTorch.

A line of standard input is an order, a line of standard output its answer: {"start": ...} -> process id,
{"poll": process id} -> exit code, "stopped" or null; a negative code is the signal that killed it.
"""

import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def serve() -> None:
    # Imported and nothing computed: threads would not survive a fork.
    for name in (
        "sklearn.datasets",
        "torch._dynamo",
        "vfl.parties.uses.predict",
        "vfl.parties.network.party.party_process",
        "vfl.parties.matching.processes",
        "vfl.parties.serving.http",
        "vfl.parties.serving.serving_party",
    ):
        importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        answer = start(order["start"]) if "start" in order else poll(order["poll"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)  # tearing PyTorch down takes seconds


def start(order: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(order["life_s"])  # nobody waits for a process that hangs
        run(order)
    return child


def poll(process: int) -> int | str | None:
    ended, status = os.waitpid(process, os.WNOHANG | os.WUNTRACED)
    if ended == 0:
        return None
    return "stopped" if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)


def run(order: dict[str, Any]) -> None:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.fsync = lambda fd: None  # the system lives on: what is written can be read
    for place, passing, action in order["strikes"]:
        PLACES[place](Strike(passing, action))
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


class Strike:
    """Sends this process a signal, or keeps it busy, when a place is passed for the ``passing``-th time."""

    def __init__(self, passing: int, action: str) -> None:
        self.left = passing
        self.action = action

    def __call__(self) -> None:
        self.left -= 1
        if self.left:
            return
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


def at(module: str, path: str, *, after: bool = False) -> Callable[[Strike], None]:
    """Return what puts a strike at a function, named from its module on."""

    def put(strike: Strike) -> None:
        owner: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        around(owner, name, strike, after=after)

    return put


def at_half_a_tensor_file(strike: Strike) -> None:
    """Strike when half of a checkpoint's tensors are written."""
    import vfl.runs.atomic
    import vfl.runs.checkpoint

    write = vfl.runs.checkpoint.write_tensors

    def write_half(path: Path, *arguments: Any, **options: Any) -> Any:
        written = write(path, *arguments, **options)
        if strike.left == 1:
            os.truncate(path, path.stat().st_size // 2)
        strike()
        return written

    vfl.runs.checkpoint.write_tensors = write_half


PLACES: dict[str, Callable[[Strike], None]] = {
    # at a party
    "dials": at("vfl.parties.network.clock_and_threads", "SYSTEM.open_stream"),
    "embeds": at("vfl.core.party", "FeatureParty.embed"),
    "has sent its embedding": at("vfl.core.party", "FeatureParty.embed", after=True),
    "gets its update": at("vfl.core.party", "FeatureParty.update"),
    "iterates": at("vfl.core.label_protocol", "HeadReplica.gradient"),
    "evaluates": at("vfl.core.party", "FeatureParty.evaluate"),
    "has saved, unanswered": at("vfl.parties.network.party.training_session", "PartyWorker._save", after=True),
    "says hello": at("vfl.parties.network.party.party_process", "Hello"),
    "says its hello": at("vfl.parties.matching.processes", "Hello"),
    # at the server
    "listens": at("vfl.parties.network.server.hub", "Hub.wait_for"),
    "asks for embeddings": at("vfl.core.exchanges", "Exchanges.run"),
    "has the embeddings": at("vfl.core.label_protocol", "ShareEmbeddings.begin"),
    "trains the head": at("vfl.core.head", "HeadTrainer.step"),
    "commits": lambda strike: around(Path, "rename", strike),
    "writes its summary": at("vfl.runs.run", "write_summary"),
    # at an owner in a match
    "brings its keys": at("vfl.parties.matching.owner", "MatchingOwner._brought"),
    "multiplies": at("vfl.parties.matching.owner", "MatchingOwner._in_parts"),
    "takes its result": at("vfl.parties.matching.owner", "MatchingOwner._take"),
    "has its result, unanswered": at("vfl.parties.matching.owner", "MatchingOwner._take", after=True),
    # at its server
    "joins": at("vfl.parties.matching.server", "_join"),
    "has matched": at("vfl.parties.matching.processes", "told_to_owners"),
    # at either
    "writes a checkpoint": at_half_a_tensor_file,
}


if __name__ == "__main__":
    serve()
