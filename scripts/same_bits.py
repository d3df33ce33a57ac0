"""Show that a change moved no bit of any training: python scripts/same_bits.py --checkout BEFORE --write FILE, then
python scripts/same_bits.py --expect FILE.

Trains thirteen short runs by a checkout's scripts/train.py (default: this one) and notes each ``model_digest``, or
compares it with those noted. Digests hold on one machine and one version of PyTorch: kernels differ between others.

Exit codes: 0 done, 1 a digest differs, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory), 130
interrupted.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from vfl.config import ConfigError
from vfl.console import DONE, OneLineParser, command
from vfl.runs.atomic import write_atomically

sys.path.insert(1, str(Path(__file__).parents[1]))  # for scripts.lab: a script's own folder is there

DIFFERENT = 1
VERTICAL = """configs/cifar10_quadrants.yaml threads=1 data.dataset.kind=digits data.train_samples=96
 data.test_samples=40
 training.batch_size=32 training.rounds=3 models.feature.width=0.25 training.optimizer.learning_rate=0.02
 'lightweighting.alpha={1: 0.3, 2: 0.5}' 'lightweighting.beta={0: 0.4, 1: 0.8}'"""
HORIZONTAL = """threads=1 data.dataset.kind=digits data.train_samples=400 data.test_samples=40 training.rounds=3
 horizontal.clients=8 horizontal.clients_per_round=4"""
COMPLETE = "horizontal.work.kind=fixed"
"""Setting that avoids partial work, which draws other epochs since tau_max was read as in the paper."""
RUNS = {
    "labels shared": VERTICAL,
    "labels at the server": f"{VERTICAL} training.labels=server",
    "error feedback": f"{VERTICAL} lightweighting.error_feedback=true",
    "float16 values": f"{VERTICAL} wire.values=float16 training.labels=server",
    "three local iterations": f"{VERTICAL} training.local_iterations=3",
    "ratios by party": f"{VERTICAL} 'lightweighting.alpha={{party_1: 0.6, party_2: {{1: 0.4}}}}'",
    "grid 1 x 2": f"{VERTICAL} data.partition.rows=1 training.head_sync=broadcast",
    "five processes": f"{VERTICAL} --processes",
    "fedavg, batched": f"configs/horizontal/fedavg.yaml {HORIZONTAL} horizontal.engine=batched",
    "fednova, sequential": f"configs/horizontal/fednova.yaml {HORIZONTAL} {COMPLETE} horizontal.engine=sequential",
    "scaffold, batched": f"configs/horizontal/scaffold.yaml {HORIZONTAL} {COMPLETE} horizontal.engine=batched",
    "feddyn, sequential": f"configs/horizontal/feddyn.yaml {HORIZONTAL} {COMPLETE} horizontal.engine=sequential",
    "flare": f"configs/horizontal/flare_mnist.yaml {HORIZONTAL} training.batch_size=20",
}
"""Arguments of train.py, by the purpose of the run."""


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--checkout", type=Path, default=Path(__file__).parents[1], help="whose code trains (this one)")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--write", type=Path, metavar="FILE", help="write the digests and the machine as JSON")
    files.add_argument("--expect", type=Path, metavar="FILE", help="compare with digests that were written")


def digest_of(command: str, checkout: Path) -> str:
    """Train in a temporary folder and return the digest of the final weights."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        arguments = [sys.executable, "scripts/train.py", *shlex.split(command), "--run-dir", str(run_dir)]
        done = subprocess.run(
            arguments,
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout.resolve())},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ConfigError(f"--checkout: {checkout}: train.py {command} failed: {done.stderr.strip()[-300:]}")
        return json.loads((run_dir / "summary.json").read_text())["model_digest"]


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: Console) -> int:
    """Train, show, and write or compare."""
    expected: dict[str, str] = json.loads(arguments.expect.read_text())["digests"] if arguments.expect else {}
    digests: dict[str, str] = {}
    for name, run in RUNS.items():
        digests[name] = digest_of(run, arguments.checkout)
        verdict = "" if not expected else "same" if digests[name] == expected.get(name) else "DIFFERENT"
        console.print(f"{name:24} {digests[name][:16]}  {verdict}")
    if arguments.write:
        from scripts.lab.benchmarks.report import describe_machine

        content: dict[str, Any] = {"machine": describe_machine(), "digests": digests}
        write_atomically(arguments.write, json.dumps(content, indent=1) + "\n")
    return DIFFERENT if expected and digests != expected else DONE


if __name__ == "__main__":
    sys.exit(main())
