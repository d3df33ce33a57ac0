"""Environments of the peers, each a folder ``build/peers/NAME`` of this checkout, and rows that outlive a stop.

A peer's command runs itself again inside its environment: our packages and a peer's may not fit together.
"""

import csv
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "build" / "peers"
QUIET = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def install(name: str, packages: Sequence[str], python: str = sys.executable) -> tuple[Path, str]:
    """Return the interpreter of an environment with the packages, and the lines of a refusal or ""."""
    folder = FOLDER / name
    inside, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists() and ready.read_text(encoding="utf-8").split() == list(packages):
        return inside, ""
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    done = subprocess.run([inside, *QUIET, *packages], capture_output=True, text=True, check=False)
    if done.returncode:
        return inside, refusal(done.stderr)
    ready.write_text("\n".join(packages), encoding="utf-8")
    return inside, ""


def refusal(told: str) -> str:
    """Return the lines in which pip, or a package's import, says why it refuses."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:") and "Location" not in line]
    return " / ".join(errors or lines[-1:])


def enter(name: str, *packages: str) -> None:
    """Return inside the peer's environment; outside of it run this command again in there, and end with its code."""
    if Path(sys.prefix) == FOLDER / name:
        return
    python, refused = install(name, packages)
    if refused:
        sys.exit(f"{' '.join(packages)}: {refused}")
    spec = sys.modules["__main__"].__spec__
    command = [str(python), "-m", spec.name if spec else "", *sys.argv[1:]]
    sys.exit(subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode)


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, none where it is not there yet."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row as soon as it is known, so that a stopped run loses none."""
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*row], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(row, flush=True)
