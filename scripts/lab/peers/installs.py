"""Install each peer's package in an environment of its own and import it; write down what refuses, in its own words.

    python -m scripts.lab.peers.installs OUT.csv [--names NAME ...]

A peer that has a row is not tried again. Environments that worked stay in build/peers for the peer's own command.
"""

import argparse
import subprocess
from pathlib import Path

from scripts.lab.peers.environment import add_row, install, refusal, rows_of

PEERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "pytabkit": ("pytabkit", ("pytabkit==1.7.3", "torch==2.13.0")),
    "flwr": ("flwr", ("flwr[simulation]==1.42.0", "torch==2.13.0")),
    "nvflare": ("nvflare", ("nvflare==2.9.0", "torch==2.13.0", "torchvision==0.28.0")),
    "vertibench": ("vertibench", ("vertibench", "torch==2.13.0")),
    "spu": ("spu", ("spu",)),
    "pfl": ("pfl", ("pfl==0.6.0", "torch==2.13.0")),
    "fedjax": ("fedjax", ("fedjax==0.0.17",)),
}
"""Module to import and packages to install, by name of the environment."""


def main() -> None:
    """Try the peers that have no row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="CSV file that gets a row a peer")
    parser.add_argument("--names", nargs="*", default=[*PEERS], choices=[*PEERS], help="peers (default: all)")
    given = parser.parse_args()
    for name in given.names:
        if name not in {row["peer"] for row in rows_of(given.out)}:
            module, packages = PEERS[name]
            add_row(given.out, {"peer": name, "packages": " ".join(packages), **tried(name, module, packages)})


def tried(name: str, module: str, packages: tuple[str, ...]) -> dict[str, str]:
    """Return whether the packages install and the module imports, the version, and the refusal's own line."""
    python, refused = install(name, packages)
    if refused:
        return {"works": "no", "version": "", "refusal": refused}
    look = f"import {module}, importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([python, "-c", look], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"works": "no", "version": "", "refusal": refusal(done.stderr)}
    return {"works": "yes", "version": done.stdout.split()[-1], "refusal": ""}


if __name__ == "__main__":
    main()
