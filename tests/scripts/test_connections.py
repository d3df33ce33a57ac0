"""No command opens a connection that nobody asked for: neither ours nor that of a package, Python or not."""

import ipaddress
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from shorthand import release
from tiny_training import TINY
from two_tables import sections_of, write_tables

ROOT = Path(__file__).parents[2]
TRACED = ["-f", "-D", "--seccomp-bpf", "-yy", "-s", "0", "-e", "trace=connect,sendto,sendmsg,sendmmsg"]
CALL = re.compile(r"(?:connect|sendto|sendmsg|sendmmsg)\(\d+<(UDP|TCP)(?:v6)?:\[(?:[^\]]*->)?([^>]*)\]?>(.*)")
ADDRESS = re.compile(r'(?:inet_addr\(|inet_pton\(AF_INET6, )"([^"]+)"')
PATIENCE_S = 280.0
HOOK = """
import os, sys
def note(event, arguments, file=open(os.environ["NOTED"], "a", buffering=1)):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        print(arguments[1][0], file=file)
    elif event == "socket.getaddrinfo":
        print(arguments[0], file=file)
sys.addaudithook(note)
from vfl.__main__ import main
sys.exit(main())
"""


def own_addresses() -> set[str]:
    """This machine's address to the outside; connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:  # no network at all
            return set()
        return {probe.getsockname()[0]}


def is_here(name: str) -> bool:
    """Whether an address or a name is this machine's own."""
    if name in ("", "None", "localhost", "0.0.0.0", "::", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or str(mapped) in own_addresses()


def away_in(trace: str) -> list[str]:
    """The calls of a trace that reach for another machine."""
    found: list[str] = []
    for line in trace.splitlines():
        if (call := CALL.search(line)) and (named := ADDRESS.search(call[3])) and not is_here(named[1]):
            found.append(line)
    return found


def watched(folder: Path, *arguments: str | Path, until: str = "") -> tuple[int, str, list[str]]:
    """Run a command in its own home; return its code, its output, and what it reached for elsewhere.

    The system's calls are traced where strace is installed, Python's own everywhere. With ``until`` it is interrupted
    once it says so.
    """
    trace, noted, said = (folder / name for name in ("trace", "noted", "said"))
    environment = os.environ | {"HOME": str(folder / "home"), "NOTED": str(noted), "PYTHONUNBUFFERED": "1"}
    (folder / "home").mkdir(exist_ok=True)
    command = [sys.executable, "-c", HOOK, *map(str, arguments)]
    if traced := can_trace():
        command = ["strace", *TRACED, "-o", str(trace), *command]
    with said.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, env=environment)
        try:
            until_s = time.monotonic() + PATIENCE_S
            while process.poll() is None and time.monotonic() < until_s:
                if until and until in said.read_text():
                    process.send_signal(signal.SIGINT)
                    until = ""
                time.sleep(0.05)
        finally:
            process.kill()
            code = process.wait()
    away = [name for name in noted.read_text().split("\n") if not is_here(name)] if noted.exists() else []
    return code, said.read_text(), [*away, *(away_in(trace.read_text()) if traced else [])]


def can_trace() -> bool:
    """Whether system calls can be traced here."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "true"], check=False).returncode == 0


def test_what_reaches_for_another_machine_is_seen(tmp_path: Path):
    reach = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('198.51.100.7', 53))"
    if can_trace():
        options = [each for each in TRACED if each != "-D"]
        subprocess.run(["strace", *options, "-o", str(tmp_path / "trace"), sys.executable, "-c", reach], check=True)
        assert len(away_in((tmp_path / "trace").read_text())) == 1
    assert not is_here("198.51.100.7")
    assert not is_here("telemetry.example")
    assert is_here("::ffff:127.0.0.1")


def commands(run: Path, folder: Path) -> dict[str, Sequence[str | Path]]:
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "two", "base": "tiny.yaml", "grid": {"seed": [1]}}))
    sweep: list[str | Path] = ["sweep", folder / "sweep.yaml", "training.rounds=1", "--out", folder / "sweep"]
    quick = ["training.rounds=1", "data.partition.columns=1"]
    return {
        "train": ["train", folder / "tiny.yaml", *quick, "--run-dir", folder / "run"],
        "processes": ["train", folder / "tiny.yaml", *quick, "--processes", "--run-dir", folder / "run"],
        "predict": ["predict", run, "--out", folder / "predictions.csv"],
        "report": ["report", run, "--out", folder / "report"],
        "export": ["export", run, "--out", folder / "export"],
        "audit": ["audit", run],
        "sweep": sweep,
        "ray": [*sweep, "--on", "ray"],
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", ["train", *map(release, ("export", "processes", "predict", "report", "audit", "sweep", "ray"))]
)
def test_a_command_reaches_for_no_other_machine(name, copied: Path, tmp_path: Path):
    if (name == "export" and find_spec("onnxruntime") is None) or (name == "ray" and find_spec("ray") is None):
        pytest.skip("its packages are not installed")
    folder = tmp_path / "watched"
    folder.mkdir()
    code, said, away = watched(folder, *commands(copied, folder)[name])
    assert code == 0, said
    if name == "ray":  # its way to learn this machine's address: a datagram socket, over which nothing goes
        away = [line for line in away if not re.search(r'connect\(\d+<UDP.*"8\.8\.8\.8"', line) and line != "8.8.8.8"]
    if name == "ray" and any("169.254.169.254" in line for line in away):
        # Its dashboard process asks for the cloud it runs on before it reads RAY_USAGE_STATS_ENABLED=0.
        pytest.xfail("Ray asks the metadata service of its cloud, whatever its settings")
    assert away == []
    assert not list((folder / "home").rglob("*onnxruntime*"))


@pytest.mark.timeout(600)
@pytest.mark.release
def test_a_service_of_scores_reaches_for_no_other_machine(tmp_path: Path):
    folder = tmp_path / "watched"
    folder.mkdir()
    sections = sections_of(write_tables(folder, range(80), labelled=True)) | {"name": "served", "threads": 1}
    sections["training"] |= {"rounds": 1, "steps_per_round": 1, "batch_size": 16}
    (folder / "served.yaml").write_text(yaml.safe_dump(sections))
    run = folder / "run"
    code, said, away = watched(folder, "train", folder / "served.yaml", "--processes", "--run-dir", run)
    assert code == 0, said
    assert away == []
    _, said, away = watched(folder, "serve", run, "serving.listen=127.0.0.1:0", until="scores at")
    assert "scores at" in said
    assert away == []
