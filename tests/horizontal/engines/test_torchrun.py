"""Workers under torchrun train the bits of one process, end together, and notice when one is gone."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from fork_server import ROOT, ForkServer
from tiny_training import Ended, outcome_of

from vfl.runs.checkpoint import CheckpointStore

pytestmark = pytest.mark.release

SCRIPT = ROOT / "scripts" / "train.py"
ROUNDS = 4
CLIENTS_PER_ROUND = 3
EXPERIMENT = {
    "name": "shared",
    "mode": "horizontal",
    "seed": 3,
    "threads": 1,
    "data": {"dataset": {"kind": "digits"}, "train_samples": 70, "test_samples": 40},
    "models": {"classifier": {"kind": "logistic"}},
    "training": {"rounds": ROUNDS, "batch_size": 8, "optimizer": {"learning_rate": 0.05, "momentum": 0.9}},
    # Start gradients, unequal sizes and client state: whatever a row of the table can hold.
    "horizontal": {
        "algorithm": "scaffold",
        "scaffold": {"option": 1},
        "clients": 6,
        "clients_per_round": CLIENTS_PER_ROUND,
        "local_epochs": 2,
        "engine": "sequential",
        "partition": {"kind": "dirichlet", "dirichlet_alpha": 1.0},
    },
    "checkpoint": {"every": 2},
}


OWN_TIMES = ("train_time_s/",)
"""Simulated ones must not depend on the workers either."""


class Group:
    """Runs the training command in as many workers as it is given."""

    def __init__(self, fork_server: ForkServer, folder: Path) -> None:
        self.fork_server = fork_server
        self.folder = folder
        self.run_dir = folder / "run"
        self.config = folder / "experiment.yaml"
        self.config.write_text(yaml.safe_dump(EXPERIMENT))

    def __call__(self, workers: int, *argv: str, strike: tuple[int, str, int, str] | None = None) -> list[Ended]:
        """Run it; ``strike``: (worker, place, at which passing of it, signal that it then gets); see places.py."""
        world = {"WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        processes = list[int]()
        for rank in range(workers or 1):
            for name in ("out", "err"):
                (self.folder / f"{name}{rank}").write_text("")
            process = self.fork_server.start(
                [str(SCRIPT), str(self.config), "--run-dir", str(self.run_dir), *argv],
                self.folder / f"out{rank}",
                errors=self.folder / f"err{rank}",
                environment={"RANK": str(rank), "LOCAL_RANK": str(rank)} | world if workers else {},
                places=Path(__file__).with_name("places.py"),
                strikes=[strike[1:]] if strike and strike[0] == rank else [],
            )
            processes.append(process)
        codes = self.codes_of(processes)
        texts = [[(self.folder / f"{name}{rank}").read_text() for name in ("out", "err")] for rank in range(len(codes))]
        return [Ended(code, *text) for code, text in zip(codes, texts, strict=True)]

    def codes_of(self, processes: list[int]) -> list[int]:
        """Return exit codes. As torchrun does, end the others by SIGTERM some time after one has failed."""
        codes: dict[int, int] = {}
        failed_s: float | None = None
        while len(codes) < len(processes):
            for process in processes:
                if process not in codes and isinstance(code := self.fork_server.ask(poll=process), int):
                    codes[process] = code
                    # A killed or frozen worker is not seen here: the others have to notice it themselves.
                    failed_s = time.monotonic() if code > 0 and failed_s is None else failed_s
            if failed_s is not None and time.monotonic() > failed_s + 5:
                for process in set(processes) - codes.keys():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGTERM)
                        os.kill(process, signal.SIGCONT)
                failed_s = time.monotonic()
            time.sleep(0.01)
        return [codes[process] for process in processes]

    @property
    def saved_rounds(self) -> list[int]:
        return CheckpointStore(self.run_dir / "checkpoints").rounds()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def group(fork_server: ForkServer, tmp_path: Path) -> Group:
    return Group(fork_server, tmp_path)


@pytest.fixture(scope="module")
def alone(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command reaches without torchrun."""
    plain = Group(fork_server, tmp_path_factory.mktemp("alone"))
    (ended,) = plain(0)
    assert (ended.code, ended.err) == (0, "")
    return outcome_of(plain.run_dir, OWN_TIMES)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_bits_of_one_process(group, alone, workers):
    ended = group(workers)
    assert [(each.code, each.err) for each in ended] == [(0, "")] * workers
    assert [each.out for each in ended[1:]] == [""] * (workers - 1)
    assert f"{ROUNDS} of {ROUNDS} rounds" in ended[0].out
    assert outcome_of(group.run_dir, OWN_TIMES) == alone


def test_torchrun_itself_starts_them(group, alone):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(SCRIPT), str(group.config), "--run-dir", str(group.run_dir)],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("simulated time") == 1
    assert outcome_of(group.run_dir, OWN_TIMES) == alone


@pytest.mark.parametrize("worker", [0, 1])
def test_a_signal_to_any_worker_ends_all_after_the_same_round(group, alone, worker):
    ended = group(2, strike=(worker, "client", 2, "SIGTERM"))
    assert [each.code for each in ended] == [130, 130]
    assert [each.err for each in ended] == ["", ""]
    assert ended[0].out.count("SIGTERM: ending after this round and its checkpoint") == 1
    assert "go on with" in ended[0].out
    (stopped,) = group.saved_rounds
    assert 0 < stopped < ROUNDS
    assert len((group.run_dir / "metrics.jsonl").read_text().splitlines()) == stopped
    ended = group(3, "--resume")  # with another number, too
    assert [each.code for each in ended] == [0, 0, 0]
    assert outcome_of(group.run_dir, OWN_TIMES) == alone


def test_a_killed_worker_ends_the_others_and_the_run_goes_on_from_its_checkpoint(group, alone):
    ended = group(3, strike=(1, "client", 4, "SIGKILL"))
    assert [each.code for each in ended] == [3, -signal.SIGKILL, 3]
    assert ended[0].err.startswith("error: torchrun: another worker is gone")
    assert ended[0].err.count("\n") == 1
    assert group.saved_rounds == [2]
    ended = group(2, "--resume")
    assert [each.code for each in ended] == [0, 0]
    assert outcome_of(group.run_dir, OWN_TIMES) == alone


def test_a_frozen_worker_is_not_waited_for_for_ever(group):
    ended = group(2, "horizontal.worker_timeout_s=2", strike=(1, "client", 2, "SIGSTOP"))
    assert ended[0].code == 3
    assert ended[0].err.startswith("error: torchrun: another worker is gone or hangs")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ([f"horizontal.clients_per_round={CLIENTS_PER_ROUND - 1}"], "horizontal.clients_per_round: 2 clients are too"),
        (["horizontal.engine=batched"], "horizontal.engine: "),
        (["horizontal.client_state=disk"], "horizontal.client_state: "),
        (["mode=vertical"], "models.classifier, horizontal: "),
        (["horizontal.clients=soon"], "horizontal.clients: "),
    ],
)
def test_bad_input_is_one_line_of_one_worker_and_exit_code_2_of_all(group, settings, named):
    ended = group(3, *settings)
    assert [each.code for each in ended] == [2, 2, 2]
    assert ended[0].err.startswith("error: ")
    assert named in ended[0].err
    assert [each.err.count("\n") for each in ended] == [1, 0, 0]
    assert not group.run_dir.exists()


def test_workers_with_other_data_are_found_out(group):
    ended = group(2, strike=(1, "other data", 1, ""))
    assert [each.code for each in ended] == [2, 2]
    assert ended[0].err.startswith("error: torchrun: the workers disagree")
    assert group.saved_rounds == []


def test_workers_without_the_checkpoint_are_found_out(group):
    group(1, strike=(0, "client", 7, "SIGTERM"))
    before = group.saved_rounds
    ended = group(2, "--resume", strike=(1, "no checkpoint", 1, ""))
    assert [each.code for each in ended] == [2, 2]
    assert ended[0].err.startswith("error: torchrun: the workers disagree")
    assert group.saved_rounds == before != []
