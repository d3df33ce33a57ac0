"""Match keys of two owners, half of them common, in SecretFlow's PSI (package spu) and in ours: processor time.

    python -m scripts.lab.peers.psi OUT.csv [--keys 1000000] [--sides ours ECDH RR22 KKRT]

Both read the same tables, each owner in a process of its own, ours beside a server; theirs over plain local sockets,
ours over mutual TLS. Processor time is that of all processes, user and system, from start to end; 100 keys are matched
first, so that the time to start can be taken off. It may be measured on a busy machine; seconds may not. A protocol of
theirs that fails gives a row with its words. The page has ECDH with 20,000 keys, all others with 200,000.
"""
# pyright: basic, reportMissingImports=false
# spu is only in the peer's environment.

import argparse
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.lab.matching.million import write_tables
from scripts.lab.peers.environment import ROOT, add_row, install, refusal, rows_of

PACKAGES = ("spu==0.9.5",)
START = 100
"""Keys whose time is that of starting and ending."""


def main() -> None:
    """Match what the rows lack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="CSV file that gets a row a side and number of keys")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of each owner (default: a million)")
    parser.add_argument("--sides", nargs="*", default=("ours", "ECDH", "RR22", "KKRT"))
    parser.add_argument("--theirs", nargs=2, metavar=("PROTOCOL", "FOLDER"), help="match the tables there, and end")
    given = parser.parse_args()
    if given.theirs:
        match_in_spu(given.theirs[0], Path(given.theirs[1]), given.keys)
        return
    for keys in (START, given.keys):
        for side in given.sides:
            if (side, str(keys)) not in {(row["side"], row["keys"]) for row in rows_of(given.out)}:
                add_row(given.out, {"side": side, "keys": keys, **matched(side, keys, given.out)})


def matched(side: str, keys: int, out: Path) -> dict[str, float | str]:
    """Return the processor seconds of a match with all its processes, or the refusal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = write_tables(folder, keys, 2)
        if side == "ours":
            command = [sys.executable, "-m", "vfl", "align", str(config), "--processes", "--run-dir", f"{name}/run"]
        else:
            python, refused = install("spu", PACKAGES)
            if refused:
                return {"cpu_s": "", "wall_s": "", "refusal": refused}
            command = [str(python), "-m", "scripts.lab.peers.psi", str(out), "--keys", str(keys)]
            command += ["--theirs", side, name]
        return run(command, folder / "told")


def run(command: Sequence[str], told: Path) -> dict[str, float | str]:
    """Run a command to its end; return what it and its descendants took, or what it said in refusing."""
    began = time.monotonic()
    with told.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        _pid, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        said = refusal(told.read_text(encoding="utf-8", errors="replace")) or f"exit code {process.returncode}"
        return {"cpu_s": "", "wall_s": "", "refusal": said}
    return {
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "wall_s": round(time.monotonic() - began, 1),
        "refusal": "",
    }


def match_in_spu(protocol: str, folder: Path, keys: int) -> None:
    """Match in two processes, which is how owners would. Raises SystemExit if one fails."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    owners = [multiprocessing.Process(target=owner, args=(rank, protocol, folder, ports, keys)) for rank in range(2)]
    for each in owners:
        each.start()
    for each in owners:
        each.join()
    sys.exit(max(abs(each.exitcode or 0) for each in owners))


def owner(rank: int, protocol: str, folder: Path, ports: Sequence[int], keys: int) -> None:
    """Match this owner's table with the other's; both learn which of their keys are common."""
    from spu import libspu, psi

    place = libspu.link.Desc()
    place.id = "peers"
    for each, port in enumerate(ports):
        place.add_party(f"owner_{each}", f"127.0.0.1:{port}")
    chosen = psi.PsiProtocolConfig(
        protocol=psi.parse_protocol(f"PROTOCOL_{protocol}"),
        receiver_rank=0,
        broadcast_result=True,
        ecdh_params=psi.EcdhParams(curve=psi.parse_curve_type("CURVE_25519")),
    )
    given = psi.InputParams(path=str(folder / f"o{rank}.csv"), selected_keys=["id"], keys_unique=True)
    config = psi.PsiExecuteConfig(
        protocol_conf=chosen, input_params=given, output_params=psi.OutputParams(path=str(folder / f"found{rank}.csv"))
    )
    report = psi.psi_execute(config, libspu.link.create_brpc(place, rank))
    assert report.intersection_count == keys // 2, f"{report.intersection_count} common keys of {keys // 2}"


if __name__ == "__main__":
    main()
