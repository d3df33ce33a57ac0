"""Many exchanges of large messages, to see whether any process keeps memory, threads or file descriptors."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from scripts.lab.benchmarks.vertical import WARM_UP
from scripts.lab.benchmarks.workbench import Federation
from vfl.config import ExperimentConfig, parse_config

BATCH = 256
SAMPLES = 40
"""Number of measurements of the processes during the soak."""
GROWTH = 0.02
"""Tolerated relative growth of memory from the second to the last quarter, as allocators keep memory for a while."""
SPARE_THREADS = 1
"""Tolerated new threads: gRPC's pool adds one, once, when it waits for a busy machine."""


@dataclass(frozen=True)
class Usage:
    """Resources of one process after a number of exchanges."""

    exchanges: int
    process: str
    memory_bytes: int
    """Resident memory."""
    threads: int
    descriptors: int
    """Open files and sockets."""


@dataclass(frozen=True)
class Verdict:
    """A process in the soak's second quarter and in its last: mean memory, largest numbers of threads and files."""

    process: str
    memory_bytes: tuple[float, float]
    threads: tuple[int, int]
    descriptors: tuple[int, int]

    @property
    def flat(self) -> bool:
        """Return whether nothing grows."""
        before, after = self.memory_bytes
        return (
            after <= before * (1 + GROWTH)
            and self.threads[1] <= self.threads[0] + SPARE_THREADS
            and self.descriptors[1] <= self.descriptors[0]
        )


def soak(exchanges: int, megabytes: float, on_step: Callable[[int], None] = lambda done: None) -> list[Usage]:
    """Run exchanges of two parties with embeddings and gradients of ``megabytes`` each, and measure the processes.

    Raises ValueError for fewer exchanges than measurements, and for messages without bytes.
    """
    if not 0 < megabytes < inf:
        raise ValueError(f"--megabytes: must be above 0, got {megabytes:g}")
    if exchanges < SAMPLES:
        raise ValueError(f"--exchanges: {exchanges} is below {SAMPLES}, the number of looks")
    usages: list[Usage] = []
    with Federation(soak_config(megabytes, WARM_UP + exchanges)) as federation:
        federation.next_round()
        watched = {"server": os.getpid()} | {name: process.pid for name, process in federation.processes.items()}
        for done in range(1, exchanges + 1):
            federation.exchange()
            on_step(done)
            if done * SAMPLES // exchanges > (done - 1) * SAMPLES // exchanges:
                usages += [usage_of(done, name, process) for name, process in watched.items()]
    return usages


def soak_config(megabytes: float, exchanges: int) -> ExperimentConfig:
    """Return the configuration of two parties with large embeddings and small models; frames are dense float32."""
    width = max(1, round(megabytes * 1e6 / 4 / BATCH))
    return parse_config(
        {
            "name": "soak",
            "threads": 1,
            "data": {"partition": {"rows": 1, "columns": 2}},
            "models": {"feature": {"kind": "mlp", "width": 0.1, "embedding_size": width}, "head": {"hidden": [16]}},
            "training": {
                "steps_per_round": exchanges,
                "batch_size": BATCH,
                "labels": "server",
                "optimizer": {"learning_rate": 1e-6, "momentum": 0.0},  # the same few samples again and again
            },
        }
    )


def usage_of(exchanges: int, name: str, process: int) -> Usage:
    """Return a process's resources (Linux)."""
    folder = Path("/proc") / str(process)
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    memory_bytes = int(status["VmRSS"].split()[0]) * 1024
    return Usage(exchanges, name, memory_bytes, int(status["Threads"]), len(list((folder / "fd").iterdir())))


def judge(usages: Sequence[Usage]) -> list[Verdict]:
    """Compare each process's second quarter with its last."""
    verdicts: list[Verdict] = []
    for process in dict.fromkeys(usage.process for usage in usages):
        own = [usage for usage in usages if usage.process == process]
        quarter = len(own) // 4
        second, last = own[quarter : 2 * quarter], own[-quarter:]
        verdicts.append(
            Verdict(
                process,
                (mean(usage.memory_bytes for usage in second), mean(usage.memory_bytes for usage in last)),
                (max(usage.threads for usage in second), max(usage.threads for usage in last)),
                (max(usage.descriptors for usage in second), max(usage.descriptors for usage in last)),
            )
        )
    return verdicts


def as_json(usages: Sequence[Usage]) -> dict[str, Any]:
    """Return all measurements and the verdicts."""
    return {
        "usages": [asdict(usage) for usage in usages],
        "verdicts": [asdict(verdict) | {"flat": verdict.flat} for verdict in judge(usages)],
    }
