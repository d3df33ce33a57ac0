"""A real cluster of Ray on this machine: where runs go when nodes, runs and the command itself die."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from shorthand import wait_until

from vfl.base.errors import ConfigError
from vfl.config import parse_config
from vfl.sweeps import on_ray as engine
from vfl.sweeps.executor import AnyExecutor, Event, Lost, Progress, QueuedRun, Resources, RunEnded
from vfl.sweeps.on_ray import OnRay, RayRun, on_ray
from vfl.sweeps.pool import LocalProcesses
from vfl.sweeps.sweep import train_sweep
from vfl.sweeps.sweep_plan import SweepRun, load_sweep

pytestmark = [pytest.mark.timeout(1200), pytest.mark.release]
LEAN = {"num_cpus": 1, "object_store_memory": engine.OBJECT_STORE, "include_dashboard": False}
ROOT = Path(__file__).parents[2]
ROUNDS = 150
BASE = {
    "name": "tiny",
    "seed": 3,
    "data": {"train_samples": 48, "test_samples": 40, "partition": {"rows": 1, "columns": 2}},
    "models": {"feature": {"kind": "mlp", "width": 0.1, "embedding_size": 8}, "head": {"hidden": []}},
    "training": {"rounds": ROUNDS, "steps_per_round": 2, "batch_size": 16, "optimizer": {"learning_rate": 0.05}},
    "evaluation": {"every": 50},
    "checkpoint": {"every": 10},
}
FAILING = "learning_rate1e+30"
GRID = {
    "list": [
        {"lightweighting.alpha": 0.0},
        {"lightweighting.alpha": 0.5, "lightweighting.beta": 0.5},
        {"training.optimizer.learning_rate": 1e30},
    ]
}


def write(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
    sweep = folder / "sweep.yaml"
    sweep.write_text(yaml.safe_dump({"name": "s", "base": "base.yaml", "resources": {"cpus": 1}} | content))
    return sweep


def train(sweep: Path, executor: AnyExecutor) -> str:
    """Train a sweep beside its file; return what was said."""
    with (sweep.parent / "said").open("a") as file:
        console = Console(file=file, width=500)
        train_sweep(load_sweep(sweep), sweep.parent / "out", executor, console, keep_checkpoints=False)
    return (sweep.parent / "said").read_text()


def table(sweep: Path) -> bytes:
    return (sweep.parent / "out" / "sweep.csv").read_bytes()


def add_node(cluster: Any, name: str) -> Any:
    """Add a node; once more if Ray's own process never came up within its fixed 30 seconds, which was seen once."""
    try:
        return cluster.add_node(node_name=name, **LEAN)
    except Exception as error:  # Ray raises nothing narrower
        if "timed out during startup" not in str(error):
            raise
        return cluster.add_node(node_name=name, **LEAN)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each, "near" and "far"."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    cluster = import_module("ray.cluster_utils").Cluster()
    add_node(cluster, "near")
    cluster.far = add_node(cluster, "far")
    yield cluster
    cluster.shutdown()


@pytest.fixture
def ray(cluster: Any) -> Iterator[OnRay]:
    with on_ray(cluster.address, None, Resources(cpus=1)) as executor:
        yield executor


def watched(executor: OnRay, on_event: Callable[[SweepRun, Event], None]) -> list[tuple[str, Event]]:
    """Call ``on_event`` for every event of the executor; return the list in which all are noted."""
    events: list[tuple[str, Event]] = []
    train = executor.train

    def watching(runs: Any, runs_dir: Path, tell: Callable[[Any, Event], None]) -> str | None:
        def note(run: SweepRun, event: Event) -> None:
            events.append((run.folder, event))
            tell(run, event)
            on_event(run, event)

        return train(runs, runs_dir, note)

    executor.train = watching  # pyright: ignore[reportAttributeAccessIssue]  # of this object alone
    return events


def rounds_of(sweep: Path, run: str) -> list[int]:
    rows = (sweep.parent / "out" / "runs" / run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row)["round"] for row in rows]


def test_bad_input_is_one_line_and_nothing_is_left(
    ray: OnRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Any
):
    sweep = load_sweep(write(tmp_path, GRID))

    def refused(executor: AnyExecutor) -> str:
        with pytest.raises(ConfigError) as error:
            train_sweep(sweep, tmp_path / "out", executor, Console(quiet=True), keep_checkpoints=False)
        assert not (tmp_path / "out").exists()
        return str(error.value)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "versions", lambda: {"lvfl": "0.0.1", "torch": "2"})
        assert "this process 0.0.1; install the same" in refused(ray)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "touch", lambda _: no_space())
        assert refused(ray) == f"--out: {tmp_path / 'out'} cannot be written (No space left on device)"
    ray.resources = Resources(cpus=64)
    sweep = load_sweep(write(tmp_path, {"settings": {"threads": 64}, **GRID}))
    assert refused(ray) == "resources: no node has room for a run, which asks for 64 CPU; ask for less"


@pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode != 0,
    reason="no mount namespaces here: no node that sees other folders",
)
def test_a_folder_that_a_node_does_not_see_is_found_before_anything_is_trained(
    cluster: Any, ray: OnRay, tmp_path: Path
):
    sweep = load_sweep(write(tmp_path, GRID))
    blind = subprocess.Popen(
        [
            *("unshare", "-rm", "sh", "-c"),
            f"mount -t tmpfs none {tmp_path} && exec {sys.executable} -m ray.scripts.scripts start --block "
            f"--address={cluster.address} --num-cpus=1 --object-store-memory={engine.OBJECT_STORE} --node-name=blind",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(ray._nodes()) == 3)
        with pytest.raises(ConfigError, match=f"does not see {tmp_path / 'out' / 'runs'}; use a folder that all"):
            train_sweep(sweep, tmp_path / "out", ray, Console(quiet=True), keep_checkpoints=False)
        assert not (tmp_path / "out").exists()
    finally:
        os.killpg(blind.pid, signal.SIGTERM)
        blind.wait()
    wait_until(lambda: len(ray._nodes()) == 2)


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_sweep_loses_its_command_is_interrupted_and_loses_a_node_and_gives_the_table_of_local_runs(
    cluster: Any, tmp_path: Path
):
    here, there = write(tmp_path / "here", GRID), write(tmp_path / "there", GRID)
    first = "alpha0"
    rows = there.parent / "out" / "runs" / first / "metrics.jsonl"
    train(here, LocalProcesses(2))

    command = [sys.executable, "-m", "vfl", "sweep", str(there), "--on", f"ray={cluster.address}"]
    killed = subprocess.Popen([*command, "--out", str(there.parent / "out")], cwd=ROOT, stdout=subprocess.DEVNULL)
    wait_until(lambda: rows.exists() and len(rows.read_text().splitlines()) > 15)
    killed.kill()
    killed.wait()

    def interrupt(run: SweepRun, event: Event) -> None:
        if isinstance(event, Progress) and run.folder == first and event.rounds > 30:
            signal.raise_signal(signal.SIGTERM)

    with on_ray(cluster.address, None, Resources(cpus=1)) as ray:  # at once: its runs may still be dying
        events = watched(ray, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(there, ray)
    assert min(event.rounds for run, event in events if run == first and isinstance(event, Progress)) >= 10
    assert {type(event) for _, event in events} == {Progress, RunEnded}
    assert rounds_of(there, first) == list(range(len(rounds_of(there, first))))

    dead: list[str] = []

    def kill_node(run: SweepRun, event: Event) -> None:
        if isinstance(event, Progress) and event.node == "far" and 40 < event.rounds < ROUNDS - 50 and not dead:
            dead.append(run.folder)
            cluster.remove_node(cluster.far, allow_graceful=False)

    with on_ray(cluster.address, None, Resources(cpus=1)) as ray:
        events = watched(ray, kill_node)
        said = train(there, ray)
    lost = events.index((dead[0], Lost()))
    resumed = next(event for run, event in events[lost + 1 :] if run == dead[0])
    assert isinstance(resumed, Progress)
    assert (resumed.node, resumed.rounds >= 40) == ("near", True)
    assert f"{dead[0]}: its node died" in said
    assert rounds_of(there, dead[0]) == list(range(ROUNDS))
    assert table(there) == table(here)
    assert [type(event) for run, event in events if run == FAILING].count(RunEnded) == 1
    assert "vfl.base.errors.Diverged: " in said
    assert "not finite" in (there.parent / "out" / "runs" / FAILING / "train.log").read_text()


def test_events_that_end_without_a_last_one_are_an_interruption_or_a_loss(ray: OnRay, tmp_path: Path):
    run = QueuedRun("run", parse_config(BASE))
    silent = RayRun(run, tmp_path / "run", iter(()))
    assert ray.receive(silent, interrupted=True) == RunEnded(finished=False)
    lost = ray.receive(silent, interrupted=False)
    assert lost == RunEnded(finished=False, error="lost on Ray: its events ended before it did")


@pytest.mark.parametrize("address", ["nowhere", "localhost:{closed}", "localhost:port"])
def test_an_address_without_ray_is_one_line(address: str):
    with socket.create_server(("localhost", 0)) as server:
        closed = server.getsockname()[1]
    with (
        pytest.raises(ConfigError, match=r"--on ray=.*: give HOST:PORT of a cluster"),
        on_ray(address.format(closed=closed), None, Resources()),
    ):
        raise AssertionError("connected")


def test_a_cluster_of_another_ray_is_one_line(cluster: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ray.__version__", "0.0.1")
    mismatch = r"^--on ray=.*\(Version mismatch.* Ray: 0\.0\.1 [^\n]*$"
    with pytest.raises(ConfigError, match=mismatch), on_ray(cluster.address, None, Resources()):
        raise AssertionError("connected")


def test_without_ray_there_is_one_line_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'lvfl\[ray\]'"), on_ray(None, None, Resources()):
        raise AssertionError("connected")
