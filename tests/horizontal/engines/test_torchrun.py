"""Workers under torchrun train the bits of one process, end together, and notice when one is gone.

Run as a program this file is a server that forks the workers of a group: each is a process of its own, and none has
to import PyTorch again. See `serve` at its end.
"""

import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from vfl.runs.checkpoint import CheckpointStore

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[3]
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


class Ended(NamedTuple):
    """How a worker ended; a negative code is the signal that killed it."""

    code: int
    out: str
    err: str


class Group:
    """Runs the training command in as many workers as it is given."""

    def __init__(self, server: "subprocess.Popen[str]", folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.run_dir = folder / "run"
        self.config = folder / "experiment.yaml"
        self.config.write_text(yaml.safe_dump(EXPERIMENT))

    def __call__(self, workers: int, *argv: str, strike: tuple[int, int, str] | None = None) -> list[Ended]:
        """Run it; ``strike``: (worker, its client in the order of training, signal that it then gets)."""
        order = {
            "argv": [str(SCRIPT), str(self.config), "--run-dir", str(self.run_dir), *argv],
            "workers": workers,
            "strike": strike,
            "folder": str(self.folder),
            "port": free_port(),
        }
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        codes = json.loads(self.server.stdout.readline())
        texts = [[(self.folder / f"{name}{rank}").read_text() for name in ("out", "err")] for rank in range(len(codes))]
        return [Ended(code, *text) for code, text in zip(codes, texts, strict=True)]

    @property
    def saved_rounds(self) -> list[int]:
        return CheckpointStore(self.run_dir / "checkpoints").rounds()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def outcome(run_dir: Path) -> dict[str, Any]:
    """What must not depend on the number of workers: weights, rows, bytes; not seconds."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run_dir / "summary.json").read_text())
    del summary["wall_time_s"]
    for client in summary["parties"].values():
        del client["train_time_s"]
    return {"rows": [{tag: row[tag] for tag in row if "train_time_s" not in tag} for row in rows], "summary": summary}


@pytest.fixture(scope="module")
def server() -> Iterator["subprocess.Popen[str]"]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=30) == 0


@pytest.fixture
def group(server, tmp_path: Path) -> Group:
    return Group(server, tmp_path)


@pytest.fixture(scope="module")
def alone(server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command reaches without torchrun."""
    plain = Group(server, tmp_path_factory.mktemp("alone"))
    (ended,) = plain(0)
    assert (ended.code, ended.err) == (0, "")
    return outcome(plain.run_dir)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_bits_of_one_process(group, alone, workers):
    ended = group(workers)
    assert [(each.code, each.err) for each in ended] == [(0, "")] * workers
    assert [each.out for each in ended[1:]] == [""] * (workers - 1)
    assert f"round {ROUNDS - 1} ({ROUNDS}/{ROUNDS})" in ended[0].out
    assert outcome(group.run_dir) == alone


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
    assert outcome(group.run_dir) == alone


@pytest.mark.parametrize("worker", [0, 1])
def test_a_signal_to_any_worker_ends_all_after_the_same_round(group, alone, worker):
    ended = group(2, strike=(worker, 2, "SIGTERM"))
    assert [each.code for each in ended] == [130, 130]
    assert [each.err for each in ended] == ["", ""]
    assert ended[0].out.count("SIGTERM: ending after this round and its checkpoint") == 1
    assert "go on with" in ended[0].out
    (stopped,) = group.saved_rounds
    assert 0 < stopped < ROUNDS
    assert len((group.run_dir / "metrics.jsonl").read_text().splitlines()) == stopped
    ended = group(3, "--resume")  # with another number, too
    assert [each.code for each in ended] == [0, 0, 0]
    assert outcome(group.run_dir) == alone


def test_a_killed_worker_ends_the_others_and_the_run_goes_on_from_its_checkpoint(group, alone):
    ended = group(3, strike=(1, 4, "SIGKILL"))
    assert [each.code for each in ended] == [3, -signal.SIGKILL, 3]
    assert ended[0].err.startswith("error: torchrun: another worker is gone")
    assert ended[0].err.count("\n") == 1
    assert group.saved_rounds == [2]
    ended = group(2, "--resume")
    assert [each.code for each in ended] == [0, 0]
    assert outcome(group.run_dir) == alone


def test_a_frozen_worker_is_not_waited_for_for_ever(group):
    ended = group(2, "horizontal.worker_timeout_s=2", strike=(1, 2, "SIGSTOP"))
    assert ended[0].code == 3
    assert ended[0].err.startswith("error: torchrun: another worker is gone or hangs")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ([f"horizontal.clients_per_round={CLIENTS_PER_ROUND - 1}"], "horizontal.clients_per_round: 2 clients are too"),
        (["horizontal.engine=batched"], "horizontal.engine: "),
        (["horizontal.client_state=disk"], "horizontal.client_state: "),
        (["mode=vertical"], "mode: "),
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
    ended = group(2, strike=(1, 1, "other data"))
    assert [each.code for each in ended] == [2, 2]
    assert ended[0].err.startswith("error: torchrun: the workers disagree")
    assert group.saved_rounds == []


def test_workers_without_the_checkpoint_are_found_out(group):
    group(1, strike=(0, 7, "SIGTERM"))
    before = group.saved_rounds
    ended = group(2, "--resume", strike=(1, 1, "no checkpoint"))
    assert [each.code for each in ended] == [2, 2]
    assert ended[0].err.startswith("error: torchrun: the workers disagree")
    assert group.saved_rounds == before != []


def serve() -> None:
    # Imported and nothing computed: threads would not survive a fork.
    entry = ("vfl.parties.launch.local_launch", "vfl.horizontal.mode")
    for name in ("sklearn.datasets", "torch._dynamo", "torch.distributed", *entry):
        importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        ranks = range(order["workers"] or 1)
        children = {start(order, rank): rank for rank in ranks}
        codes = wait(children)
        sys.stdout.write(json.dumps([codes[rank] for rank in ranks]) + "\n")
        sys.stdout.flush()
    os._exit(0)  # tearing PyTorch down takes seconds


def wait(children: dict[int, int]) -> dict[int, int]:
    """Return exit codes by rank. As torchrun does, end the others by SIGTERM some time after one has failed."""
    codes: dict[int, int] = {}
    failed_s: float | None = None
    while len(codes) < len(children):
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            code = os.waitstatus_to_exitcode(status)
            codes[children[child]] = code
            # A killed or frozen worker is not seen here: the others have to notice it themselves.
            failed_s = time.monotonic() if code > 0 and failed_s is None else failed_s
        elif failed_s is not None and time.monotonic() > failed_s + 5:
            for process, rank in children.items():
                if rank not in codes:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGTERM)
                        os.kill(process, signal.SIGCONT)
            failed_s = time.monotonic()
        else:
            time.sleep(0.01)
    return codes


def start(order: dict[str, Any], rank: int) -> int:
    child = os.fork()
    if child == 0:
        run(order, rank)
    return child


def run(order: dict[str, Any], rank: int) -> None:
    signal.alarm(120)  # nobody waits for a process that hangs
    for descriptor, name in ((1, "out"), (2, "err")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(Path(order["folder"]) / f"{name}{rank}", flags), descriptor)
    if order["workers"]:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": order["workers"], "MASTER_PORT": order["port"]}
        os.environ.update({name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"})
    if order["strike"] and order["strike"][0] == rank:
        strike(*order["strike"][1:])
    sys.argv = order["argv"]
    code = 1
    try:
        runpy.run_path(order["argv"][0], run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def strike(passing: int, action: str) -> None:
    """Let something happen to this worker, a signal when it is about to train its ``passing``-th client."""
    import vfl.horizontal.mode
    import vfl.runs.run
    from vfl.horizontal.engines.sequential import SequentialEngine

    if action == "other data":
        load = vfl.horizontal.mode.prepare_whole

        def load_other(source: Any) -> Any:
            data = load(source)
            data.train.features[0, 0, 0, 0] += 1
            return data

        vfl.horizontal.mode.prepare_whole = load_other  # pyright: ignore[reportPrivateImportUsage]
        return
    if action == "no checkpoint":
        vfl.runs.run.ReadOnlyStore.load_latest = lambda self: None  # pyright: ignore[reportAttributeAccessIssue]
        return
    train = SequentialEngine._train  # pyright: ignore[reportPrivateUsage]
    passed = 0

    def struck(self: SequentialEngine, task: Any) -> Any:
        nonlocal passed
        passed += 1
        if passed == passing:
            os.kill(os.getpid(), signal.Signals[action])
        return train(self, task)

    SequentialEngine._train = struck  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]


if __name__ == "__main__":
    serve()
