"""Cost of Ray per run and of several processes of a party per exchange; see docs/scale.md.

python -m scripts.lab.scale ray | party
"""

import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import torch
import torch.multiprocessing as mp
from rich.console import Console

from vfl.core.feature_models import build_feature_model
from vfl.core.team import OneProcess, Team
from vfl.models.features import Features, ModelSpec
from vfl.runs.runtime import Runtime
from vfl.runs.torchrun_group import Workers
from vfl.sweeps.executor import AnyExecutor, Resources
from vfl.sweeps.on_ray import on_ray
from vfl.sweeps.pool import LocalProcesses
from vfl.sweeps.sweep import train_sweep
from vfl.sweeps.sweep_plan import Sweep

CONSOLE = Console(soft_wrap=True, highlight=False)
RUNS = 12
BATCH = 256
EXCHANGES = 5
TINY = {
    "name": "tiny",
    "data": {"train_samples": 48, "test_samples": 40},
    "models": {"feature": {"kind": "mlp", "width": 0.1, "embedding_size": 8}},
    "training": {"rounds": 1, "steps_per_round": 2, "batch_size": 16},
}


def computed_s() -> float:
    """Return the CPU seconds of this process and all processes that it started, including Ray's."""
    stats: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    ours = {os.getpid()}
    while more := {pid for pid, stat in stats.items() if int(stat[1]) in ours and pid not in ours}:
        ours |= more
    return sum(sum(map(int, stats[pid][11:15])) for pid in ours) / os.sysconf("SC_CLK_TCK")


def seconds_per_run(executor: AnyExecutor) -> tuple[float, float]:
    """Train two runs, so that everything is imported, then RUNS; return their seconds and CPU seconds per run."""
    with tempfile.TemporaryDirectory() as folder:
        for name, runs in (("warm", 2), ("timed", RUNS)):
            sweep = Sweep(name, TINY, tuple({"seed": seed} for seed in range(runs)), Resources(cpus=1))
            started_s, before_s = time.perf_counter(), computed_s()
            train_sweep(sweep, Path(folder) / name, executor, Console(quiet=True), keep_checkpoints=False)
            CONSOLE.print(f"  {name}: {runs} runs in {time.perf_counter() - started_s:.1f} s")
        return (time.perf_counter() - started_s) / RUNS, (computed_s() - before_s) / RUNS


def measure_ray() -> None:
    """Measure runs at two places of each executor, with one CPU per run."""
    local = seconds_per_run(LocalProcesses(2, Resources(cpus=1)))
    started_s = time.perf_counter()
    with on_ray(None, 2, Resources(cpus=1)) as executor:
        CONSOLE.print(f"Ray starts in {time.perf_counter() - started_s:.1f} s")
        ray = seconds_per_run(executor)
    for name, (seconds, computed) in (("local", local), ("Ray", ray)):
        CONSOLE.print(f"{name}: {seconds:.2f} s a run, two at once; {computed:.2f} s of CPU")


def exchange(team: OneProcess) -> str:
    """Return the median seconds of forward, backward and gradients of VGG16 on quadrants of CIFAR-10."""
    torch.manual_seed(0)
    model = build_feature_model("vgg16", ModelSpec(Features("images", (3, 16, 16)), 128))
    model.to(memory_format=torch.channels_last)
    images = torch.randn(BATCH, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    walls: list[float] = []
    computed: list[float] = []
    for _ in range(EXCHANGES + 1):
        started_s, computed_s = time.perf_counter(), time.process_time()
        model.zero_grad()
        team.embed(model, model, (images,), Runtime(torch.device("cpu"))).sum().backward()
        team.add_gradients(model, BATCH)
        walls.append(time.perf_counter() - started_s)
        computed.append(time.process_time() - computed_s)
    return f"{median(walls[1:]):.3f} s an exchange, {median(computed[1:]):.3f} s of CPU in each process"


def in_team(rank: int) -> None:
    """Take the part of one of two processes with a thread each."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533"}
    torch.set_num_threads(1)
    workers = Workers("cpu", 60.0)
    shared = exchange(Team(workers))
    half = torch.zeros(15_000_000)  # the weights of VGG16, as float32
    started_s = time.perf_counter()
    for _ in range(5):
        workers.sum(half)
    if rank == 0:
        sum_s = (time.perf_counter() - started_s) / 5
        CONSOLE.print(f"two processes: {shared}; 60 MB summed in {sum_s:.3f} s")
    workers.leave()


def measure_party() -> None:
    """Measure one process with one and two threads, and two processes with one each."""
    for threads in (1, 2):
        torch.set_num_threads(threads)
        CONSOLE.print(f"one process, {threads} threads: {exchange(OneProcess())}")
    mp.spawn(in_team, nprocs=2)  # pyright: ignore[reportPrivateImportUsage]  # as PyTorch documents it


if __name__ == "__main__":
    {"ray": measure_ray, "party": measure_party}[sys.argv[1]]()
