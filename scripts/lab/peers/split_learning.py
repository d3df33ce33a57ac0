"""Time exchanges of split learning in NVFlare and in ours: images at one owner, labels at the other.

    python -m scripts.lab.peers.split_learning OUT.csv [--exchanges 100] [--kinds light example] [--sides ...]

Batches of 64 random images of 3 x 16 x 16, values of 16 bits each way, plain SGD with momentum, one thread a process;
models of `split_models`. Sides: NVFlare's simulator and its services on one machine (POC), both a process a site, and
ours in one process and in two over mutual TLS, beside the bare loop. A row has the median of the exchanges after five
that do not count, and their quartiles. Run it where nothing else runs.
"""
# pyright: basic, reportMissingImports=false
# nvflare is only in the peer's environment.

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from scripts.lab.peers.environment import ROOT, add_row, enter, rows_of
from scripts.lab.peers.split_models import HIDDEN, WIDTHS

PACKAGES = ("nvflare==2.9.0", "torch==2.13.0")
THEIRS = ("simulator", "services")
WARM_UP = 5


def main() -> None:
    """Time what the rows lack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="CSV file that gets a row a kind and side")
    parser.add_argument("--exchanges", type=int, default=100, help="exchanges that are timed (default: 100)")
    parser.add_argument("--kinds", nargs="*", choices=[*WIDTHS], default=[*WIDTHS])
    parser.add_argument("--sides", nargs="*", choices=("ours", *THEIRS), default=("ours", *THEIRS))
    parser.add_argument("--theirs", nargs=2, metavar=("KIND", "SIDE"), help="time one of theirs, and print the seconds")
    given = parser.parse_args()
    if given.theirs:
        enter("nvflare", *PACKAGES)
        print(json.dumps(theirs(given.theirs[0], given.theirs[1], given.exchanges)))
        return
    for kind in given.kinds:
        for side in given.sides:
            done = {row["side"] for row in rows_of(given.out) if row["kind"] == kind}
            if side in done or (side == "ours" and "ours, processes" in done):
                continue
            found = ours(kind, given.exchanges) if side == "ours" else {side: asked(kind, side, given)}
            for name, seconds in found.items():
                low, median, high = np.percentile(1000 * np.asarray(seconds[WARM_UP:]), [25, 50, 75]).round(3).tolist()
                told = {"exchanges": len(seconds) - WARM_UP, "median_ms": median, "low_ms": low, "high_ms": high}
                add_row(given.out, {"kind": kind, "side": name, **told})


def asked(kind: str, side: str, given: Any) -> list[float]:
    """Return the seconds of NVFlare's exchanges, from a command of its own."""
    command = [sys.executable, "-m", "scripts.lab.peers.split_learning", str(given.out), "--theirs", kind, side]
    command += ["--exchanges", str(given.exchanges)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def theirs(kind: str, side: str, exchanges: int) -> list[float]:
    """Run the sites in NVFlare, and return the seconds that site 1 wrote."""
    from nvflare.collab import CollabRecipe
    from nvflare.recipe import PocEnv, SimEnv

    from scripts.lab.peers.nvflare_sites import Server, Site

    logging.disable(logging.INFO)
    sites = ["site-1", "site-2"]
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        # Sites and services import our module, and keep what they write in this folder.
        os.environ |= {"PYTHONPATH": str(ROOT), "NVFLARE_POC_WORKSPACE": f"{folder}/poc"}
        recipe = CollabRecipe("split", server=Server(), client=Site(), min_clients=2, sync_task_timeout=600)
        for name, value in {"kind": kind, "exchanges": exchanges + WARM_UP, "times": str(times)}.items():
            recipe.set_client_prop(name, value)
        if side == "simulator":
            recipe.execute(SimEnv(clients=sites, workspace_root=f"{folder}/simulator", log_config="ERROR"))
            return json.loads(times.read_text(encoding="utf-8"))
        place = PocEnv(clients=sites, num_clients=2)
        try:
            recipe.execute(place)
            until = time.monotonic() + 100
            while not times.exists() and time.monotonic() < until:
                time.sleep(0.5)
            return json.loads(times.read_text(encoding="utf-8"))
        finally:
            place.stop(clean_up=True)


def ours(kind: str, exchanges: int) -> dict[str, list[float]]:
    """Return the seconds of our exchanges, and of the bare loop, in turn."""
    from scripts.lab.benchmarks.light import in_turn
    from vfl.config import parse_config

    config = parse_config(
        {
            "name": "split",
            "threads": 1,
            "data": {"partition": {"rows": 1, "columns": 1}},
            "models": {
                "feature": {"kind": f"split_{kind}", "embedding_size": WIDTHS[kind]},
                "head": {"hidden": HIDDEN[kind]},
            },
            "training": {
                "steps_per_round": exchanges + 2 * WARM_UP,
                "batch_size": 64,
                "labels": "server",
                "optimizer": {"learning_rate": 0.001},
            },
            "wire": {"values": "float16"},
        }
    )
    names = {"bare": "bare loop", "one process": "ours, one process", "processes": "ours, processes"}
    return {names[side]: seconds for side, seconds in in_turn(config, exchanges + WARM_UP, 0).items()}


if __name__ == "__main__":
    main()
