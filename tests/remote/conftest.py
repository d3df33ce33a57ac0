"""A federation of real processes for the tests: forked, watched, killed, started again, compared."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from fork_server import ROOT, ForkServer
from tiny_training import TIMES, outcome_of
from two_tables import ROWS, sections_of, write_tables

from vfl.config import ExperimentConfig, dump_config, parse_config
from vfl.parties.launch.local_launch import prepare, process_configs
from vfl.parties.network.tls.certificates import SERVER
from vfl.runs.atomic import write_atomically
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.run_folder import PROCESSES

from .service import NEW, Service

PATIENCE_S = 100.0
"""For a whole federation on a machine that does much else."""
TOGETHER = "together"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"
Strike = tuple[str, int, str]
"""At which place (see places.py), at which time of passing it, which signal."""

EXPERIMENT: dict[str, Any] = {
    "name": "federation",
    "seed": 3,
    "threads": 1,
    "data": {"train_samples": 48, "test_samples": 40, "partition": {"rows": 1, "columns": 2}},
    "models": {"feature": {"kind": "cnn", "width": 0.2, "embedding_size": 8}, "head": {"hidden": [16]}},
    "training": {
        "rounds": 3,
        "steps_per_round": 2,
        "batch_size": 16,
        "local_iterations": 2,
        "optimizer": {"learning_rate": 0.05, "momentum": 0.9},
    },
    "lightweighting": {"alpha": {1: 0.2, 2: 0.5}, "beta": {0: 0.3, 2: 0.6}, "error_feedback": True},
    "checkpoint": {"every": 1},
    # A machine that does much else must not look like a lost peer.
    "network": {"heartbeat_s": 0.3, "silence_s": 30, "wait_s": 60},
}


def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Lay settings over others, sections key by key."""
    result = dict(under)
    for key, value in over.items():
        nested = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if nested else value
    return result


class Federation:
    """The processes of one experiment, by name.

    Args:
        fork_server: forks them.
        folder: of this experiment.
        sections: settings that lie over EXPERIMENT.
    """

    life_s = 120
    """Seconds after which a process is ended: nobody waits for one that hangs."""
    environment: Mapping[str, str] = MappingProxyType({})
    """Further variables of the processes that are launched next."""

    def __init__(self, fork_server: ForkServer, folder: Path, sections: dict[str, Any]) -> None:
        self.fork_server = fork_server
        self.folder = folder
        self.run_dir = folder / "run"
        self.config: ExperimentConfig = parse_config(merged(EXPERIMENT, sections))
        self.configs = process_configs(self.config, folder)
        prepare(self.config, folder, self.configs)
        self.names = (SERVER, *self.config.parties)
        self.running: dict[str, int] = {}
        self.codes: dict[str, list[int]] = {name: [] for name in self.names}

    def own_tables(self, leader: str) -> None:
        """Let every process know its own table alone, the server that of the labels, as on machines of their own."""
        for name in self.names:
            path = self.folder / f"{name}.yaml"
            values = yaml.safe_load(path.read_text())
            values["data"]["file"] = None
            holder = leader if name == SERVER else name
            tables = values["data"]["tables"]
            values["data"]["tables"] = {owner: tables[owner] if owner == holder else {} for owner in tables}
            write_atomically(path, yaml.safe_dump(values, sort_keys=False))

    def start(self, name: str, *strikes: Strike, extra: tuple[str, ...] = ()) -> None:
        """Start a process; a server that has begun before resumes."""
        config = str(self.folder / f"{name}.yaml")
        if name == SERVER:
            argv = [str(ROOT / "scripts/server.py"), config, "--run-dir", str(self.run_dir)]
            argv += ["--resume"] if (self.run_dir / "config.yaml").exists() else []
        else:
            argv = [str(ROOT / "scripts/party.py"), config, "--party", name, "--run-dir", str(self.folder / name)]
        self.launch(name, [*argv, *extra], *strikes)

    def launch(self, name: str, argv: Sequence[str], *strikes: Strike) -> None:
        """Start a process by its command."""
        struck = {"strikes": strikes, "places": Path(__file__).with_name("places.py")}
        log, environment = self.folder / f"{name}.log", dict(self.environment)
        self.running[name] = self.fork_server.start(argv, log, life_s=self.life_s, environment=environment, **struck)

    def start_together(self, *options: str) -> None:
        """Start ``train.py --processes``, which starts new processes of its own, under the name TOGETHER."""
        config = self.folder / "experiment.yaml"
        config.write_text(dump_config(self.config))
        argv = [str(ROOT / "scripts/train.py"), str(config), "--processes", "--run-dir", str(self.run_dir), *options]
        self.codes.setdefault(TOGETHER, [])
        self.running[TOGETHER] = self.fork_server.start(argv, self.folder / f"{TOGETHER}.log", life_s=self.life_s)

    def poll(self, name: str) -> int | str | None:
        """Return a process's exit code, noted once; "stopped" once it is; None while it runs."""
        state = self.fork_server.ask(poll=self.running[name])
        if isinstance(state, int):
            del self.running[name]
            self.codes[name].append(state)
        return state

    def signal(self, name: str, number: int) -> None:
        os.kill(self.running[name], number)

    def wait(self, name: str) -> int:
        """Return the exit code of a process."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            state = self.poll(name)
            if isinstance(state, int):
                return state
            time.sleep(0.02)
        raise AssertionError(f"{name} does not end:\n{self.logs()}")

    def finish(self) -> None:
        """Wait until all have ended."""
        for name in self.names:
            if name in self.running:
                self.wait(name)

    def wait_until_stopped(self, name: str) -> None:
        """Wait until a process has been stopped by SIGSTOP."""
        until_s = time.monotonic() + PATIENCE_S
        while self.poll(name) != "stopped":
            assert name in self.running, self.logs()
            assert time.monotonic() < until_s, self.logs()
            time.sleep(0.02)

    def wait_for_line(self, name: str, text: str, times: int = 1) -> None:
        """Wait until a process has said something, so many times in all its lives."""
        until_s = time.monotonic() + PATIENCE_S
        while self.log(name).count(text) < times:
            assert time.monotonic() < until_s, f"{name} does not say {text!r}:\n{self.logs()}"
            assert name not in self.running or not isinstance(self.poll(name), int), self.logs()
            time.sleep(0.02)

    def run(self, strikes: dict[str, list[Strike]] | None = None) -> None:
        """Run all processes to their ends; whoever is killed is started again, unharmed this time."""
        for name in self.names:
            self.start(name, *(strikes or {}).get(name, []))
        until_s = time.monotonic() + PATIENCE_S
        while self.running:
            assert time.monotonic() < until_s, self.logs()
            for name in list(self.running):
                if self.poll(name) == -signal.SIGKILL:
                    self.start(name)
            time.sleep(0.02)

    def check_ended(self) -> None:
        """Assert that every process has ended well, in its only life."""
        assert self.codes == {name: [0] for name in self.names}, self.logs()

    def log(self, name: str) -> str:
        """Return what a process has said, without times, and without the level where it is ``info``."""
        path = self.folder / f"{name}.log"
        return re.sub(rf"(?m)^{TIME} (info: )?", "", path.read_text()) if path.exists() else ""

    def logs(self) -> str:
        return "\n".join(f"--- {name} {self.codes[name]}\n{self.log(name)}" for name in self.names)

    def outcome(self) -> dict[str, Any]:
        """What must not depend on the processes nor on what happened to them."""
        return outcome_of(self.run_dir)

    def check_own_rows(self) -> None:
        """Assert that every party's own rows have the server's numbers, each round once, and rising totals."""
        rows = self.outcome()["rows"]
        for name in self.names[1:]:
            own = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
            assert [row["round"] for row in own] == [row["round"] for row in rows]
            for mine, servers in zip(own, rows, strict=True):
                shared = {tag for tag in mine.keys() & servers.keys() if not tag.startswith(TIMES)}
                assert {
                    f"{tag}/{name}" for tag in ("alpha", "beta", "uplink_bytes", "downlink_bytes", "omega")
                } <= shared
                assert {tag: mine[tag] for tag in shared} == {tag: servers[tag] for tag in shared}
            embeddings = [row["given/embeddings"] for row in own]
            assert all(before < after for before, after in pairwise(embeddings))
            assert list((self.folder / name).glob("events.*"))

    def saved_rounds(self, name: str) -> list[int]:
        return CheckpointStore((self.run_dir if name == SERVER else self.folder / name) / "checkpoints").rounds()

    def close(self) -> None:
        """Kill what a failed test left."""
        for name in list(self.running):
            self.signal(name, signal.SIGKILL)
            self.signal(name, signal.SIGCONT)
            self.wait(name)


Federate = Callable[..., Federation]


@pytest.fixture
def federate(fork_server: ForkServer, tmp_path: Path) -> Iterator[Federate]:
    """Make federations of this test, from sections that lie over EXPERIMENT."""
    made: list[Federation] = []

    def make(**sections: Any) -> Federation:
        made.append(Federation(fork_server, tmp_path / str(len(made)), sections))
        return made[-1]

    yield make
    for federation in made:
        federation.close()


@pytest.fixture(scope="module")
def trained_with(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federate]:
    """Return the federation of some sections that has trained, in the folders that ``train.py --processes`` makes.

    Each trains once.
    """
    known: dict[str, Federation] = {}

    def trained(**sections: Any) -> Federation:
        key = json.dumps(sections, sort_keys=True)
        if key not in known:
            run_dir = tmp_path_factory.mktemp("trained") / "run"
            federation = known[key] = Federation(fork_server, run_dir / PROCESSES, sections)
            federation.run_dir = run_dir
            federation.run()
            federation.check_ended()
        return known[key]

    yield trained
    for federation in known.values():
        federation.close()


@pytest.fixture(scope="session")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Return what training in one process reaches, given sections that lie over EXPERIMENT; computed once each."""
    known: dict[str, dict[str, Any]] = {}

    def train(**sections: Any) -> dict[str, Any]:
        values = merged(EXPERIMENT, sections)
        key = json.dumps(values, sort_keys=True)
        if key not in known:
            folder = tmp_path_factory.mktemp("in_process")
            (folder / "experiment.yaml").write_text(yaml.safe_dump(values))
            known[key] = train_in_process(parse_config(values), folder / "run")
        return known[key]

    return train


def train_in_process(config: ExperimentConfig, run_dir: Path) -> dict[str, Any]:
    from rich.console import Console

    from vfl.runs.run import run_experiment

    run_experiment(config, run_dir, resume=False, console=Console(quiet=True))
    return outcome_of(run_dir)


@pytest.fixture(scope="module")
def train(trained_with, tmp_path_factory: pytest.TempPathFactory):
    """Make the run of the processes of two owners, with tables of rows to be scored, and the run of one process."""
    from rich.console import Console

    from vfl.runs.run import run_experiment

    def make(write, sections):
        folder = tmp_path_factory.mktemp("tables")
        for name in ("old", "new"):
            (folder / name).mkdir()
        old, new = write(folder / "old", range(ROWS), labelled=True), write(folder / "new", NEW, labelled=False)
        federation = trained_with(**sections(old) | {"serving": {"timeout_ms": 5000}})
        run_experiment(federation.config, folder / "whole", resume=False, console=Console(quiet=True))
        return federation, new, folder / "whole"

    return make


@pytest.fixture(scope="module")
def trained(train):
    return train(write_tables, sections_of)


@pytest.fixture
def service(trained, tmp_path: Path) -> Iterator[Service]:
    federation, tables, whole = trained
    copies = {owner: tmp_path / f"{owner}.csv" for owner in tables}
    for owner, path in copies.items():
        path.write_bytes(tables[owner].read_bytes())
    yield Service(federation, copies, whole)
    federation.close()
