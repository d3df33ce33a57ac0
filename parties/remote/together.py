"""All processes of an experiment on this machine, for a first try: keys, files, processes, and a clean end.

RUN_DIR/                  the server's, as of any run
    processes/
        keys/             an authority of this run alone, and a certificate for every process
        data/             what each process holds
        PROCESS.yaml      each process's own configuration: what one would give it on a machine of its own
        PARTY/            a party's folder: its checkpoints
        PARTY.log         what a party said
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from parties.predict import WhenAbsent, check_absent
from parties.remote.joining import check_mode
from parties.remote.tls.certificates import Owner
from parties.remote.tls.files import CA, CERTIFICATE, KEY
from parties.remote.tls.folders import issue, make_authority
from parties.trained import PROCESSES, load_run
from vfl.atomic import write_atomically
from vfl.cli import BAD_INPUT
from vfl.config import ConfigError, ExperimentConfig, dump_config, parse_config
from vfl.data.files import load_label_data
from vfl.data.prediction_files import write_prediction_files
from vfl.data.source import open_source
from vfl.data.split import LABELS_FILE, SHARED_LABELS_FILE, party_file, split_data, write_split
from vfl.data.tables.config import TableConfig
from vfl.loop import stop_on_signal
from vfl.run_folder import check_run, private_files

SERVER = "server"
CRASHED = 1
"""Python's exit code after a traceback."""
KEY_DAYS = 365
POLL_S = 0.1
FAREWELL_S = 20.0
"""How long parties may take to end after the server has; then they are stopped."""


def run_together(config: ExperimentConfig, run_dir: Path, *, resume: bool, console: Console) -> int:
    """Start the server and all parties, wait for their end, and return the server's exit code.

    A party that is killed is started again. Raises ValueError for data or a folder that cannot be used.
    """
    check_mode(config)
    folder = run_dir / PROCESSES
    configs = process_configs(config, folder)
    check_run(run_dir, configs[SERVER], resume=resume)
    prepare(config, folder, configs)
    serve = ["server", str(folder / f"{SERVER}.yaml"), "--run-dir", str(run_dir)]
    serve += ["--resume"] if resume else []
    parties = {name: party_command(folder, name) for name in config.parties}
    return Supervisor(serve, parties, folder, console).run()


def predict_together(
    run_dir: Path,
    data: Path | None,
    absent: Collection[str],
    when_absent: WhenAbsent,
    out: Path,
    console: Console,
    tables: Mapping[str, Path] | None = None,
) -> int:
    """Start a run's processes again, but for those of ``absent`` parties, have them predict, and return the exit code.

    ``data`` are new samples (``Source.read_samples``), None for the test set; ``tables`` new rows by owner, whose keys
    are the same; an owner without one is absent. Raises ValueError for a run or data that
    cannot be used, PeerLost as ``check_absent``.
    """
    config = load_run(run_dir).config
    folder = run_dir / PROCESSES
    if not (folder / f"{SERVER}.yaml").exists():
        raise ConfigError(f"--processes: {run_dir} was not trained by train.py --processes; leave the option out")
    names = config.parties
    tables = tables or {}
    absent = [*absent, *(name for name in names if tables and name not in (*tables, *absent))]
    check_absent(absent, names, when_absent)
    leader = next((name for name, table in config.data.tables.items() if table.label is not None), names[0])
    if tables and leader not in tables:
        raise ConfigError(f"--table: {leader}'s is missing; it names the samples")
    configs = process_configs(config, folder)
    prepare(config, folder, configs)
    serve = ["predict", str(run_dir), "--serve", str(folder / f"{SERVER}.yaml"), "--out", str(out)]
    serve += [option for name in absent for option in ("--absent", name)] + ["--when-absent", when_absent]
    parties = {name: party_command(folder, name) for name in names if name not in absent}
    if tables:
        serve += ["--table", str(tables[leader])]
        for name, command in parties.items():
            command += ["--samples", str(tables[name])]
    if data is not None:
        source = open_source(configs[names[0]])
        classes = len(load_label_data(folder / "data" / LABELS_FILE).classes)
        samples = folder / "samples"
        write_prediction_files(samples, names, source.read_samples(data, source.held_by(names[0]).train, classes))
        serve += ["--data", str(samples / LABELS_FILE)]
        for name, command in parties.items():
            command += ["--samples", str(samples / party_file(name))]
    return Supervisor(serve, parties, folder, console).run()


def party_command(folder: Path, name: str) -> list[str]:
    """Return the command of a party's process."""
    config, own = str(folder / f"{name}.yaml"), str(folder / name)
    return ["party", config, "--party", name, "--run-dir", own]


def match_together(config: ExperimentConfig, run_dir: Path, console: Console) -> int:
    """Start a match's server and all owners, wait for their end, and return the server's exit code.

    Each owner's process is told of its own table alone. Raises ValueError for a folder that cannot be used.
    """
    folder = run_dir / PROCESSES
    configs = {name: _of_owner(own, name) for name, own in networked(config, folder).items()}
    with private_files():
        make_keys(config, folder, configs)
        write_configs(folder, configs)
    serve = ["align", str(folder / f"{SERVER}.yaml"), "--run-dir", str(run_dir)]
    owners = {name: ["align", *party_command(folder, name)[1:]] for name in config.parties}
    return Supervisor(serve, owners, folder, console).run()


def _of_owner(config: ExperimentConfig, name: str) -> ExperimentConfig:
    tables = {owner: table if owner == name else TableConfig() for owner, table in config.data.tables.items()}
    return config.model_copy(update={"data": config.data.model_copy(update={"tables": tables})})


def process_configs(config: ExperimentConfig, folder: Path) -> dict[str, ExperimentConfig]:
    """Return every process's own configuration, by name."""
    configs: dict[str, ExperimentConfig] = {}
    for name, own in networked(config, folder).items():
        values = own.model_dump()
        data = folder / "data"
        values["data"]["file"] = data / (LABELS_FILE if name == SERVER else party_file(name))
        if name != SERVER and config.training.labels == "shared":
            values["data"]["labels_file"] = data / SHARED_LABELS_FILE
        configs[name] = parse_config(values)
    return configs


def networked(config: ExperimentConfig, folder: Path) -> dict[str, ExperimentConfig]:
    """Return the configuration with each process's identity and a free address, by name."""
    address = f"127.0.0.1:{free_port()}"
    configs: dict[str, ExperimentConfig] = {}
    for name in (SERVER, *config.parties):
        values = config.model_dump()
        keys = folder / "keys" / name
        values["network"] |= {
            "server": address,
            "listen": address,
            "tls": {"ca": keys / CA, "certificate": keys / CERTIFICATE, "key": keys / KEY},
        }
        configs[name] = parse_config(values)
    return configs


@private_files()
def prepare(config: ExperimentConfig, folder: Path, configs: dict[str, ExperimentConfig]) -> None:
    """Write data, keys and configurations, unless an earlier start of the run has; addresses are always new."""
    if not (folder / f"{SERVER}.yaml").exists():  # written last: what an interrupted start left is made again
        shared = config.training.labels == "shared"
        write_split(folder / "data", split_data(config), shared_labels=shared, overwrite=True)
    make_keys(config, folder, configs)
    write_configs(folder, configs)


def make_keys(config: ExperimentConfig, folder: Path, names: Collection[str]) -> None:
    """Make an authority and everybody's certificate, unless an earlier start has."""
    if not (folder / f"{SERVER}.yaml").exists():  # written last
        make_authority(folder / "keys", config.name, KEY_DAYS + 1, overwrite=True)
        issue(folder / "keys", [Owner(name) for name in names], KEY_DAYS, overwrite=True)


def write_configs(folder: Path, configs: dict[str, ExperimentConfig]) -> None:
    """Write every process's configuration, the server's last."""
    for name, own in reversed(configs.items()):
        write_atomically(folder / f"{name}.yaml", dump_config(own))


class Supervisor:
    """Starts the processes, in sessions of their own so that Ctrl-C reaches them through here only.

    They hold one end of a pipe and this process the other: when it is killed, they end as well (``lifeline``).
    """

    def __init__(self, serve: Sequence[str], parties: dict[str, list[str]], folder: Path, console: Console) -> None:
        self.serve = serve
        self.parties = parties
        self.folder = folder
        self.console = console
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
                        self._signal(SERVER)
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
        """Start parties again that were killed; return the exit code of one that gave up, 0 for none."""
        for name in self.parties:
            code = self.running[name].poll()
            if code is None:
                continue
            if code in (CRASHED, BAD_INPUT):
                lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines() or [""]
                self.console.print(f"{name} ended: {lines[-1]}")
                return code
            if code < 0:
                self.console.print(f"{name} was killed by {signal.Signals(-code).name}; starting it again")
                self._start_party(name)
        return 0

    def _stop(self, signal_name: str) -> None:
        self._signal(SERVER)  # which lets the parties go after the round's checkpoint

    def _signal(self, name: str) -> None:
        if self.running[name].poll() is None:
            self.running[name].terminate()

    def _end_all(self) -> None:
        """Give every process time to end by itself, then end it."""
        until_s = time.monotonic() + FAREWELL_S
        for ask in (None, subprocess.Popen[bytes].terminate, subprocess.Popen[bytes].kill):
            for process in self.running.values():
                if ask is not None and process.poll() is None:
                    ask(process)
            for process in self.running.values():
                try:
                    process.wait(max(0.0, until_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue
            until_s += FAREWELL_S


def _start(command: Sequence[str], lifeline: int, log: Path | None) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "parties.remote.lifeline", "lvfl", *command]
    if log is None:
        return subprocess.Popen(command, stdin=lifeline, start_new_session=True)
    with log.open("ab") as file:
        return subprocess.Popen(command, stdin=lifeline, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)


def free_port() -> int:
    """Return a port of this machine on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
