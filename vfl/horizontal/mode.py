"""Horizontal experiments, as the room that runs them sees them."""

from vfl.config import ConfigError, ExperimentConfig
from vfl.experiments.mode import Built, Mode, Stage
from vfl.horizontal.build import build_horizontal
from vfl.horizontal.table import summary_table


def _build(config: ExperimentConfig, stage: Stage) -> Built:
    trainer, show_split = build_horizontal(
        config, stage.runtime, stage.run_dir, stage.console, stage.progress.on_step, stage.workers
    )
    return Built(trainer, [show_split])


def _check_workers(config: ExperimentConfig, workers: int) -> None:
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


HORIZONTAL = Mode(
    _build,
    summary_table,
    _check_workers,
    shown={"clients/reporting": "clients {:.0f}", "simulated_time_s/total": "simulated {:.1f} s"},
)
