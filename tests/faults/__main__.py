"""Play schedules of faults, one JSON line each: PYTHONPATH=.:tests python -m faults FIRST LAST [--shown]."""

import argparse
import faulthandler
import json
import shutil
import sys
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path

import torch
from faults.federation import prepare
from faults.schedules import play

HANGS_S = 120
"""On the clock on the wall: then the simulation itself hangs, and says where."""


def main() -> int:
    """Return 1 where a schedule did not end as it must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("last", type=int, help="the first seed that is not played")
    parser.add_argument("--shown", action="store_true", help="show what the processes said as well")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of coroutines of the dead, never awaited
    torch.set_num_threads(1)
    bad = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as temporary:
        folder = Path(temporary)
        undisturbed = prepare(folder)
        for seed in range(arguments.first, arguments.last):
            faulthandler.dump_traceback_later(HANGS_S, exit=True)
            verdict = play(seed, folder / "schedule", folder / "data", undisturbed)
            bad += bool(verdict.wrong)
            shown = {} if arguments.shown else {"said": None}
            print(json.dumps(asdict(verdict) | shown), flush=True)  # noqa: T201
            shutil.rmtree(folder / "schedule")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
