"""The vertical mode: how its experiments are built and shown, with all parties in this process."""

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from vfl.config import ConfigError, ExperimentConfig
from vfl.core.costs.decisions import past_ratios
from vfl.core.costs.summary_table import summary_table
from vfl.core.local import build_in_process
from vfl.core.pruning_pictures import ShowWidths
from vfl.runs.mode import Built, Mode, Stage
from vfl.runs.stored_run import Run
from vfl.runs.tensorboard import REACHED

MANY_PARTIES = 64
"""Number of parties from which building them takes long enough to be announced."""


def _build(config: ExperimentConfig, stage: Stage) -> Built:
    if len(config.parties) >= MANY_PARTIES:
        stage.console.print(f"building the models of {len(config.parties)} parties in this process; this takes a while")
    if config.lightweighting.controller == "deadline" and not config.simulation.given:
        stage.console.print(
            "warning: lightweighting.controller: deadline goes by the seconds of this machine, which vary, and so may "
            "the ratios; describe the parties' machines in simulation"
        )
    if config.privacy.record:
        stage.console.print(
            "warning: privacy.record: ignored, as all parties are in this process; lvfl audit needs none"
        )
    server = build_in_process(config, stage.runtime, stage.progress.on_step).server
    server.past_ratios = past_ratios(config, stage.run_dir)
    return Built(server, [ShowWidths(server, stage.tensorboard)])


def _check_workers(config: ExperimentConfig, workers: int) -> NoReturn:
    raise ConfigError("mode: torchrun shares the clients of mode horizontal; for vertical use --processes")


def _predict(run: Run, samples: object) -> NDArray[np.floating[Any]]:
    from vfl.predict.in_python import predict_in_python  # trainings do without

    return predict_in_python(run, samples)


VERTICAL = Mode(
    _build,
    summary_table,
    _check_workers,
    predict=_predict,
    shown={
        "savings/compute": "saved so far: compute {:.1%}",
        "savings/communication": "communication {:.1%}",
        "simulated_time_s/total": "clock {:.1f} s",
    },
    front_page=REACHED | {"compute saved": "savings/compute", "communication saved": "savings/communication"},
)
