"""Processes on this machine: their keys and configurations, start, supervision and end."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from vfl.config import ExperimentConfig, dump_config, parse_config
from vfl.console import BAD_INPUT, TRY_LATER, YIELDING
from vfl.parties.network.tls.certificates import SERVER, CertificateSubject
from vfl.parties.network.tls.files import CA, CERTIFICATE, KEY
from vfl.parties.network.tls.folders import issue, make_authority
from vfl.runs.atomic import write_atomically
from vfl.runs.run_folder import private_files
from vfl.runs.signals import ENDING_S, stop_on_signal

CRASHED = 1
"""Python's exit code after a traceback."""
SHARING = {"OMP_WAIT_POLICY": "passive"}
"""Environment of processes on shared cores. Each has as many threads as all parties in one process would, for the same
bits. Waiting threads of PyTorch would otherwise keep their cores busy, which the other processes need."""
KEY_DAYS = 365
POLL_S = 0.1


def party_commands(command: str, folder: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the command line of each party's process."""
    options = {name: ["--party", name, "--run-dir", str(folder / name)] for name in names}
    return {name: [command, str(folder / f"{name}.yaml"), *options[name]] for name in names}


def networked(config: ExperimentConfig, folder: Path, owners: Sequence[str] = ()) -> dict[str, ExperimentConfig]:
    """Return the configuration with each process's identity and a free address, by process name.

    The processes are the server's and those of ``owners``, by default the parties'.
    """
    address = f"127.0.0.1:{free_port()}"
    configs: dict[str, ExperimentConfig] = {}
    for name in (SERVER, *(owners or config.parties)):
        values = config.model_dump() | {"models": config.models.with_whole_paths().model_dump()}
        keys = folder / "keys" / name
        values["network"] |= {
            "server": address,
            "listen": address,
            "metrics": config.network.metrics if name == SERVER else None,  # one port is one process's
            "tls": {"ca": keys / CA, "certificate": keys / CERTIFICATE, "key": keys / KEY},
        }
        configs[name] = parse_config(values)
    return configs


def make_keys(config: ExperimentConfig, folder: Path, names: Collection[str]) -> None:
    """Create an authority and all processes' certificates, unless an earlier start has."""
    if not (folder / f"{SERVER}.yaml").exists():  # written last
        make_authority(folder / "keys", config.name, KEY_DAYS + 1, overwrite=True)
        issue(folder / "keys", [CertificateSubject(name) for name in names], KEY_DAYS, overwrite=True)


def write_configs(folder: Path, configs: dict[str, ExperimentConfig]) -> None:
    """Write every process's configuration, the server's last."""
    for name, own in reversed(configs.items()):
        write_atomically(folder / f"{name}.yaml", dump_config(own))


@dataclass(eq=False)
class Supervisor:
    """Starts the processes, in sessions of their own so that Ctrl-C reaches them only from here.

    They hold one end of a pipe and this process the other: when it is killed, they end as well (``lifeline``).
    """

    serve: Sequence[str]
    """The server's command line."""
    parties: dict[str, list[str]]
    """Each party's command line."""
    folder: Path
    """Folder of the parties' logs."""
    console: Console

    def __post_init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.lifeline, self._held = os.pipe()

    @private_files()
    def run(self) -> int:
        """Run all to the server's end and return its exit code; no process is left."""
        try:
            with stop_on_signal(self._stop):
                server = self.running[SERVER] = _start(self.serve, self.lifeline, log=None)
                for name in self.parties:
                    self._start_party(name)
                while (code := server.poll()) is None:
                    if failed := self._failed_party():
                        self._stop()
                        return failed
                    time.sleep(POLL_S)
                return code
        finally:
            self._end_all()
            os.close(self.lifeline)
            os.close(self._held)

    def _start_party(self, name: str) -> None:
        self.running[name] = _start(self.parties[name], self.lifeline, log=self.folder / f"{name}.log")

    def _failed_party(self) -> int:
        """Restart parties that were killed; return the exit code of one that gave up, 0 for none."""
        for name in self.parties:
            code = self.running[name].poll()
            if code is None:
                continue
            if code in (CRASHED, BAD_INPUT, TRY_LATER):
                lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines() or [""]
                self.console.print(f"{name} ended: {lines[-1]}")
                return code
            if code < 0:
                self.console.print(f"{name} was killed by {signal.Signals(-code).name}; starting it again")
                self._start_party(name)
        return 0

    def _stop(self, signal_name: str = "") -> None:
        if self.running[SERVER].poll() is None:
            self.running[SERVER].terminate()  # it lets the parties go after the round's checkpoint

    def _end_all(self) -> None:
        """Let every process end by itself for a while, then end it."""
        until_s = time.monotonic() + ENDING_S
        for ask in (None, subprocess.Popen[bytes].terminate, subprocess.Popen[bytes].kill):
            for process in self.running.values():
                if ask is not None and process.poll() is None:
                    ask(process)
            for process in self.running.values():
                try:
                    process.wait(max(0.0, until_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue
            until_s += ENDING_S


def _start(command: Sequence[str], lifeline: int, log: Path | None) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "vfl.runs.signals", "vfl", *command]
    # The environment comes last: what a user says of waiting threads holds, but not what this command chose for itself.
    environment = SHARING | {key: value for key, value in os.environ.items() if (key, value) != YIELDING}
    start = partial(subprocess.Popen[bytes], command, stdin=lifeline, start_new_session=True, env=environment)
    if log is None:
        return start()
    with log.open("ab") as file:
        return start(stdout=file, stderr=subprocess.STDOUT)


def free_port() -> int:
    """Return a port of this machine on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
