"""Trainings on the nodes of a Ray cluster, which must see the same folders.

Ray places the runs and notices what dies. On its node a run is trained as on this machine, in a process of its own
(``pool.py``) that ends with Ray's, so that kills and resumes are the same. Ray retries nothing by itself: a run whose
node has died is started again, elsewhere, from its checkpoint; one that fails or whose process dies has failed.
"""

import logging
import os
import platform
import secrets
import signal
import socket
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vfl.base.errors import ConfigError, one_line
from vfl.runs.run_folder import wait_until_free
from vfl.runs.signals import stop_on_signal
from vfl.sweeps.executor import Event, Executor, Lost, Progress, QueuedRun, Resources, RunEnded
from vfl.sweeps.pool import LocalProcesses

MOST_LOST = 3
"""Number of nodes that may die under one run; with more, the run may well be the cause."""
CONNECT_S = 5.0
CHECK_S = 120.0
"""Seconds within which every node must have answered."""
POLL_S = 0.5
OBJECT_STORE = 80 * 2**20
"""Bytes of Ray's object store, about the least that Ray accepts; only events travel."""


@dataclass(frozen=True)
class Origin:
    """Folder and software that a node must share with the process that starts runs there."""

    folder: Path
    mark: str
    """Name of an empty file in the folder, by which a node recognises it."""
    working_folder: Path
    """Folder to which relative paths refer."""
    versions: dict[str, str]

    def check(self) -> None:
        """Change to the working folder. Raises ConfigError, naming this machine, if folder or software differ."""
        node = f"--on ray: node {platform.node()}"
        for name, here in versions().items():
            if here != self.versions[name]:
                raise ConfigError(f"{node} has {name} {here}, this process {self.versions[name]}; install the same")
        for folder in (self.folder, self.working_folder):
            if not folder.is_dir():
                raise ConfigError(f"{node} does not see {folder}; use a folder that all nodes share")
        os.chdir(self.working_folder)
        # Two machines may each have a folder of that path: only in the shared one is the file just made.
        if not (self.folder / self.mark).exists():
            raise ConfigError(f"{node} has another {self.folder}; use a folder that all nodes share")


def versions() -> dict[str, str]:
    """Return the versions of the software that a run's bits depend on; Ray itself compares its own and Python's."""
    return {name: version(name) for name in ("lvfl", "torch")}


@dataclass(frozen=True, eq=False)
class RayRun:
    """A training on some node."""

    run: QueuedRun
    run_dir: Path
    events: Any
    """Ray's references to pairs (id of the node, Event), as they come."""


class OnRay(Executor[RayRun]):
    """Trains as many runs at once as the nodes have room for, at most ``jobs`` if given.

    ``ray`` is the module, connected to a cluster.
    """

    origin: Origin | None = None

    def __init__(self, ray: Any, jobs: int | None, resources: Resources) -> None:
        self.ray, self.jobs, self.resources = ray, jobs, resources
        self._train = ray.remote(num_returns="streaming", max_retries=0)(train_on_node)
        self._losses = Counter[str]()
        self._names = dict[str, str]()

    def threads(self, wanted: int | None) -> int:
        """Return the CPUs of a run."""
        return self.resources.cpus or wanted or 1

    def slots(self, run: QueuedRun) -> int:
        """Count the slots on the nodes that are alive."""
        needs = {name: need for name, need in self._needs(run).items() if need}
        rooms = [
            min(int(node["Resources"].get(name, 0) // need) for name, need in needs.items()) for node in self._nodes()
        ]
        if not any(rooms):
            demand = ", ".join(f"{need:g} {name}" for name, need in needs.items())
            raise ConfigError(f"resources: no node has room for a run, which asks for {demand}; ask for less")
        return min(sum(rooms), self.jobs or sum(rooms))

    def check(self, runs_dir: Path) -> None:
        """Raise ConfigError unless every node has the same folder and software."""
        self.origin = Origin(runs_dir.resolve(), f".shared-{secrets.token_hex(8)}", Path.cwd(), versions())
        (runs_dir / self.origin.mark).touch()
        look = self.ray.remote(num_cpus=0, max_retries=0)(Origin.check)
        there = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        looks = {  # of no CPU, so that a busy node answers as well
            look.options(scheduling_strategy=there(node["NodeID"], soft=False)).remote(self.origin): _node_name(node)
            for node in self._nodes()
        }
        done, silent = self.ray.wait(list(looks), num_returns=len(looks), timeout=CHECK_S)
        try:
            self.ray.get(done)
            if silent:
                raise ConfigError(f"--on ray: node {looks[silent[0]]} did not answer within {CHECK_S:.0f} s")
        except (self.ray.exceptions.RayError, ConfigError) as error:
            self.unmark()
            raise ConfigError(_first_line(error)) from None

    def start(self, run: QueuedRun, runs_dir: Path) -> RayRun:
        """Submit a run to Ray, which has room for it."""
        needs = self._needs(run)
        task = self._train.options(
            name=run.folder, num_cpus=needs["CPU"], num_gpus=needs["GPU"], memory=needs["memory"] or None
        )
        assert self.origin is not None, "check comes first"
        return RayRun(run, runs_dir / run.folder, task.remote(run, runs_dir.resolve(), self.origin))

    def wait(self, handles: Sequence[RayRun]) -> Sequence[RayRun]:
        """Wait for an event or a death."""
        ready = self.ray.wait([handle.events for handle in handles], num_returns=1, timeout=POLL_S)[0]
        return [handle for handle in handles if handle.events in ready]

    def receive(self, handle: RayRun, *, interrupted: bool) -> Event:
        """Return a run's next event, or how it died. Raises ConfigError for a node that cannot train at all."""
        exceptions = self.ray.exceptions
        try:
            node, event = self.ray.get(next(handle.events))
        except (exceptions.RayError, StopIteration) as error:
            if interrupted:  # Ray passes on nothing more, not always with an error; the process is about to save
                wait_until_free(handle.run_dir)
                return RunEnded(finished=False)
            why = "its events ended before it did" if isinstance(error, StopIteration) else _first_line(error)
            if isinstance(error, ConfigError):  # Ray gives its error the class of what was raised on the node as well
                raise ConfigError(why) from None
            if isinstance(error, exceptions.NodeDiedError) and self._losses[handle.run.folder] < MOST_LOST:
                self._losses[handle.run.folder] += 1
                return Lost()
            return RunEnded(finished=False, error=f"lost on Ray: {why}")
        return replace(event, node=self._name_of(node)) if isinstance(event, Progress) else event

    def interrupt(self, handle: RayRun) -> None:
        """Let Ray raise SIGINT in the process that watches the training."""
        self.ray.cancel(handle.events)

    def kill(self, handle: RayRun) -> None:
        """Do nothing: Ray ends the runs of a process that leaves the cluster.

        ``cancel(force=True)`` would be at once, but Ray aborts this process if the run has ended in that moment.
        """

    def unmark(self) -> None:
        """Remove the file by which nodes recognise the shared folder."""
        if self.origin is not None:
            (self.origin.folder / self.origin.mark).unlink(missing_ok=True)

    def _needs(self, run: QueuedRun) -> dict[str, float]:
        """Return a run's resources in Ray's terms; memory in bytes."""
        resources = self.resources
        gpus = float(run.config.device.startswith("cuda")) if resources.gpus is None else resources.gpus
        return {"CPU": run.config.threads or 1, "GPU": gpus, "memory": int((resources.memory_gb or 0) * 1e9)}

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _name_of(self, node_id: str) -> str:
        if node_id not in self._names:
            self._names = {node["NodeID"]: _node_name(node) for node in self.ray.nodes()}
        return self._names[node_id]


def train_on_node(run: QueuedRun, runs_dir: Path, origin: Origin) -> Iterator[tuple[str, Event]]:
    """Train one run on the node that Ray has chosen, in a process of its own, and yield its events.

    Ray's cancellation comes as SIGINT: the training then ends its round and saves before this process is free again.
    """
    origin.check()
    vars(sys.modules["__main__"]).pop("__file__", None)  # Ray's, which every process forked from here would import
    node = import_module("ray").get_runtime_context().get_node_id()
    local = LocalProcesses()
    handle = local.start(run, runs_dir)
    signals: list[str] = []

    def interrupt(signal_name: str) -> None:
        signals.append(signal_name)
        local.interrupt(handle)

    with stop_on_signal(interrupt):
        try:
            ended = False
            while not ended:
                event = local.receive(handle, interrupted=bool(signals))
                ended = isinstance(event, RunEnded)
                yield node, event
        finally:
            if handle.process.is_alive() and not signals:  # Ray takes no further events: nobody else would end it
                interrupt("")
            handle.process.join()


@contextmanager
def on_ray(address: str | None, jobs: int | None, resources: Resources) -> Generator[OnRay]:
    """Connect to the cluster at HOST:PORT, or start one on this machine; leave or stop it at the end.

    Raises ConfigError, one line, if Ray is not installed, nothing answers as Ray, or versions differ.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read when it is imported
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a Ray of our own: its runs are as urgent as local ones
    handler = signal.getsignal(signal.SIGTERM)  # ray.init replaces it
    try:
        ray = import_module("ray")
    except ImportError:
        raise ConfigError("--on ray: needs Ray; install it with: pip install 'lvfl[ray]'") from None
    _connect_to_ray(ray, address)
    signal.signal(signal.SIGTERM, handler)
    executor = OnRay(ray, jobs, resources)
    try:
        yield executor
    finally:
        executor.unmark()
        ray.shutdown()


def _connect_to_ray(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    try:
        if address is None:
            ray.init("local", include_dashboard=False, object_store_memory=OBJECT_STORE, **quiet)
            return
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), CONNECT_S).close()  # Ray would try for minutes
        ray.init(address, **quiet)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        ray.shutdown()
        target = f"ray={address}: give HOST:PORT of a cluster that this machine belongs to" if address else "ray"
        raise ConfigError(f"--on {target} ({_first_line(error)})") from None


def _first_line(error: BaseException) -> str:
    """Return an error, or the one on a node that caused it, in one line."""
    return one_line(getattr(error, "cause", None) or error)


def _node_name(node: dict[str, Any]) -> str:
    """Return the name that a node was given when it was started, else its machine's name."""
    return node["NodeManagerHostname"] if node["NodeName"] == node["NodeManagerAddress"] else node["NodeName"]
