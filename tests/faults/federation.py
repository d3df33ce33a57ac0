"""The processes of a whole training, simulated in this one."""

import asyncio
import os
import random
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from faults.network import Network, Simulated
from faults.turns import Process, Thread, Turns
from remote.conftest import merged
from rich.console import Console
from tiny_training import outcome_of

from vfl.base.errors import PeerLost
from vfl.config import ExperimentConfig, parse_config
from vfl.data.split import LABELS_FILE, SHARED_LABELS_FILE, party_file, split_data, write_split
from vfl.parties.network.party import party_process
from vfl.parties.network.server import server_process
from vfl.runs.run import run_experiment

SERVER = "server"
RESTARTS_S = 1.0
"""A process that has ended by itself is started again after that."""
EXPERIMENT: dict[str, Any] = {
    "name": "faults",
    "seed": 3,
    "threads": 1,
    "data": {"train_samples": 24, "test_samples": 20, "partition": {"rows": 1, "columns": 2}},
    "models": {"feature": {"kind": "mlp", "width": 0.02, "embedding_size": 4}, "head": {"hidden": [4]}},
    "training": {"rounds": 3, "steps_per_round": 2, "batch_size": 12, "local_iterations": 2},
    "lightweighting": {"alpha": {1: 0.3}, "beta": {0: 0.3, 2: 0.6}},
    "checkpoint": {"every": 1},
    "network": {"heartbeat_s": 1, "silence_s": 5, "wait_s": 60},
}


@dataclass
class Ended:
    """How a process ended."""

    time_s: float
    name: str
    code: int | None
    """None: killed."""
    text: str


class Federation:
    """The processes of one experiment, started again whenever they end before the training does.

    Args:
        turns: whose turn it is.
        folder: of this experiment.
        data: what ``prepare`` wrote.
        settings: what its configuration has beside EXPERIMENT.
    """

    def __init__(self, turns: Turns, folder: Path, data: Path, settings: dict[str, Any]) -> None:
        self.turns = turns
        self.folder = folder
        self.network = Network(turns)
        self.machine = Simulated(turns, self.network)
        self.parties = parse_config(EXPERIMENT).parties
        self.configs = {name: configuration(data, name, settings) for name in (SERVER, *self.parties)}
        self.said = {name: StringIO() for name in self.configs}
        self.running: dict[str, Process] = {}
        self.ended: list[Ended] = []
        self.finished = False
        self.misbehaved = False
        """Somebody has been made to."""

    def run(self) -> None:
        """Train until the server has finished, and the parties have ended as well."""
        for name in self.configs:
            self.start(name)
        self.turns.block(lambda: self.finished and not self.running)

    def start(self, name: str) -> None:
        """Start a process; one whose folder was lost has it again once it was told so."""
        kept = self.folder / f"{name}.kept"
        if kept.exists() and self.ended[-1].name == name and "restore its folder" in self.ended[-1].text:
            shutil.rmtree(self.folder / name)
            kept.rename(self.folder / name)
        process = self.running[name] = Process(name)
        process.main = Thread(self.turns, process, partial(self._run, process), "main")
        process.main.start()

    def kill(self, name: str, again_s: float, *, silently: bool) -> None:
        """End a process in the middle of whatever it does, and start it again later; ``silently``: its machine too."""
        process = self.running[name]
        self.network.drop(process, silently=silently)
        process.alive = False
        self._note_end(process, None, "", again_s)

    def lose_folder(self, name: str) -> None:
        """Have a process come back with nothing."""
        self.kill(name, RESTARTS_S, silently=False)
        kept = self.folder / f"{name}.kept"
        if not kept.exists():
            (self.folder / name).rename(kept)

    def _run(self, process: Process) -> None:
        console = Console(file=self.said[process.name], width=1000)
        try:
            code, text = (self._serve if process.name == SERVER else self._take_part)(process.name, console), ""
        except (ValueError, OSError) as error:
            code, text = 2, str(error)
        except PeerLost as error:
            code, text = 3, str(error)
        except KeyboardInterrupt:
            code, text = 130, ""
        self.network.drop(process, silently=False)
        self._note_end(process, code, text, RESTARTS_S)

    def _serve(self, name: str, console: Console) -> int:
        run_dir = self.folder / name
        resume = (run_dir / "config.yaml").exists()
        config, machine = self.configs[name], self.machine
        outcome = server_process.run_server(
            config, run_dir, resume=resume, insecure=True, console=console, machine=machine
        )
        return 0 if outcome.finished else 130

    def _take_part(self, name: str, console: Console) -> int:
        config, run_dir, machine = self.configs[name], self.folder / name, self.machine
        return party_process.run_party(config, name, run_dir, insecure=True, console=console, machine=machine).exit_code

    def _note_end(self, process: Process, code: int | None, text: str, again_s: float) -> None:
        name = process.name
        self.ended.append(Ended(self.turns.now_s, name, code, text))
        del self.running[name]
        self.finished = self.finished or (name == SERVER and code == 0)
        self.turns.at(self.turns.now_s + again_s, lambda: self.finished or self.start(name))


def configuration(data: Path, name: str, settings: dict[str, Any]) -> ExperimentConfig:
    """Return a process's own configuration."""
    file = {"file": data / (LABELS_FILE if name == SERVER else party_file(name))}
    file |= {} if name == SERVER else {"labels_file": data / SHARED_LABELS_FILE}
    return parse_config(merged(EXPERIMENT, merged({"data": file}, settings)))


def prepare(folder: Path) -> list[dict[str, Any]]:
    """Write what the processes hold, and return what training in one process comes to, by staleness."""
    write_split(folder / "data", split_data(parse_config(EXPERIMENT)), shared_labels=True, overwrite=True)
    outcomes: list[dict[str, Any]] = []
    for staleness in (0, 1):
        config, run_dir = parse_config(merged(EXPERIMENT, ahead(staleness))), folder / f"undisturbed_{staleness}"
        run_experiment(config, run_dir, resume=False, console=Console(quiet=True))
        outcomes.append(outcome_of(run_dir))
    return outcomes


def ahead(staleness: int) -> dict[str, Any]:
    """Return the settings of a training with staleness."""
    return {"training": {"staleness": staleness}}


@cache
def known_config(text: str) -> ExperimentConfig:
    """Read a configuration that many schedules have in common."""
    return parse_config(yaml.safe_load(text))


def _in_order(all_tasks: Callable[..., set[Any]]) -> Callable[..., list[Any]]:
    """Return tasks as they were begun: a set's order is that of addresses, another one each time."""
    return lambda loop: sorted(all_tasks(loop), key=lambda task: int(task.get_name().removeprefix("Task-")))


@contextmanager
def simulating(turns: Turns) -> Generator[None]:
    """Let processes have signal handlers of their own and be stopped at every file that they write; end them all."""
    before, umask = random.getstate(), os.umask(0o077)
    random.seed(turns.random.random())

    def handlers() -> dict[int, Any]:
        return turns.current.process.handlers

    with (
        mock.patch.object(signal, "signal", lambda number, handler: handlers().update({number: handler})),
        mock.patch.object(signal, "getsignal", lambda number: handlers().get(number, signal.default_int_handler)),
        mock.patch.object(time, "monotonic", side_effect=lambda: turns.now_s),
        mock.patch.object(time, "perf_counter", side_effect=lambda: turns.now_s),
        mock.patch.object(secrets, "token_hex", side_effect=lambda size: turns.random.randbytes(size).hex()),
        mock.patch.object(asyncio, "all_tasks", side_effect=_in_order(asyncio.all_tasks)),
        mock.patch.object(os, "fsync", side_effect=lambda _file: turns.pause()),
        mock.patch("vfl.parties.network.server.connection.REPLY_LIMIT_S", 20.0),
        # It would look at the real network, where somebody may listen.
        mock.patch("vfl.parties.network.party.dialer.explain", return_value=None),
        # Not under test here, and most of the time.
        mock.patch("vfl.runs.tensorboard.SummaryWriter"),
        mock.patch("vfl.core.pruning_pictures.draw_widths"),
        mock.patch("vfl.runs.run_folder.load_stored_config", lambda path: known_config(path.read_text())),
    ):
        try:
            yield
        finally:
            turns.end()
            random.setstate(before)
            os.umask(umask)
