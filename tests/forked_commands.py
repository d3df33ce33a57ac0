"""Runs commands one after another, each forked from this process, so that PyTorch is imported once.

Standard input: [{"arguments": [...], "kill_at": path or null}, ...]; a command is killed as soon as the path exists.
Standard output: [{"code": exit code, negative for a signal, "output": text}, ...].
"""

import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any


def run(arguments: list[str], kill_at: str | None) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            signal.alarm(120)  # nobody waits for a command that hangs
            code = 1
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                sys.argv = ["lvfl", *arguments]
                code = importlib.import_module("vfl.__main__").main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if kill_at is not None:
            while not any(Path(kill_at).glob("*")):
                time.sleep(0.005)
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return {"code": code, "output": output.read()}


if __name__ == "__main__":
    # Imported and nothing computed: threads would not survive a fork.
    for name in (
        "torch",
        "torchvision",
        "torch_pruning",
        "vfl.predict.mode",
        "vfl.horizontal.mode",
        "vfl.predict.predict",
    ):
        importlib.import_module(name)
    orders = json.load(sys.stdin)
    sys.stdout.write(json.dumps([run(order["arguments"], order["kill_at"]) for order in orders]))
