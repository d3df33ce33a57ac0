"""The horizontal mode: how its experiments are built and shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from vfl.base.costs import amount
from vfl.config import ConfigError
from vfl.config.components import SOURCES
from vfl.console import numbers_table, print_table
from vfl.data.source import Source, prepare_whole
from vfl.horizontal.build import assemble
from vfl.horizontal.config import HorizontalExperiment
from vfl.horizontal.data.partition import SamplePartition, partition_samples
from vfl.horizontal.data.summary import class_counts, draw_split, split_table
from vfl.runs.loop import Callback, TrainingLoop
from vfl.runs.mode import Built, Mode, Stage


def _build_algorithm(config: HorizontalExperiment, stage: Stage) -> Built:
    source: Source = SOURCES.make(config.data.dataset.kind, config.data, config.seed, of=Source)
    data, horizontal = prepare_whole(source), config.horizontal
    partition = partition_samples(horizontal.partition, data.train, data.owners, horizontal.clients, config.seed)
    trainer = assemble(config, data, partition, stage.runtime, stage.run_dir, stage.workers, stage.progress.on_step)
    assert data.train.labels is not None
    picture = stage.run_dir / "split.png"
    return Built(trainer, [ShowSplit(partition, data.train.labels, data.classes, picture, stage.console)])


@dataclass(frozen=True, eq=False)
class ShowSplit(Callback):
    """Prints every client's samples at a run's start, and draws them into the run's folder."""

    partition: SamplePartition
    """Rows of the training samples by client."""
    labels: Tensor
    """Labels of the training samples."""
    classes: Sequence[str]
    """Names of the classes that labels index."""
    path: Path
    """File of the picture."""
    console: Console

    def on_start(self, loop: TrainingLoop) -> None:
        """Show the split at the start of a run, but not of a resumed one."""
        if loop.next_round == 0:
            counts = class_counts(self.partition, self.labels, len(self.classes))
            print_table(self.console, split_table(self.partition, counts, self.classes))
            draw_split(self.partition, counts, self.classes, self.path)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Return a run's results and the costs of the clients that took part: total, median and largest."""
    clients = list(summary["parties"].values())
    table = numbers_table(
        f"test accuracy {summary['test_accuracy']:.2%} after {summary['rounds']} rounds, "
        f"{summary['wall_time_s']:.0f} s",
        ("", "all clients", "median client", "largest"),
        f"simulated time {summary['simulated_time_s']:.1f} s; {len(clients)} clients took part",
    )
    quantities = {
        "samples": ("samples", ""),
        "sent up": ("uplink_bytes", "B"),
        "sent down": ("downlink_bytes", "B"),
        "MACs": ("train_macs", ""),
        "time": ("train_time_s", "s"),
    }
    for heading, (key, unit) in quantities.items():
        values = sorted(client[key] for client in clients) or [0]
        figures = (sum(values), values[len(values) // 2], values[-1])
        table.add_row(heading, *(f"{amount(value)}{unit}" for value in figures))
    return table


def _check_workers(config: HorizontalExperiment, workers: int) -> float:
    horizontal = config.horizontal
    if workers > horizontal.clients_per_round:
        raise ConfigError(
            f"horizontal.clients_per_round: {horizontal.clients_per_round} clients are too few for {workers} workers; "
            "raise it or lower torchrun's --nproc-per-node"
        )
    if horizontal.engine == "batched":
        raise ConfigError("horizontal.engine: workers under torchrun train their clients sequentially; use auto")
    if horizontal.client_state == "disk":
        raise ConfigError("horizontal.client_state: disk is for one process; use memory, or run without torchrun")
    return horizontal.worker_timeout_s


HORIZONTAL = Mode(
    _build_algorithm,
    summary_table,
    _check_workers,
    shown={"clients/reporting": "clients {:.0f}", "simulated_time_s/total": "simulated {:.1f} s"},
)
