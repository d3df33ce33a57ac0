"""Training of an estimator's tables, and before it of how long: as long as suits samples that are held back.

A few hundred exchanges suit tables in which each owner's columns tell something by themselves; more learn those by
heart, but are needed where the owners' columns interact (docs/results/tables/README.md#small-tables). Neither the rows
nor the columns say which it is, so a classifier of few rows tries both with one model.

Shapes: N rows.
"""
# pyright: reportUnknownMemberType=false
# numpy's signatures are partly unannotated.

import math
import tempfile
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from vfl.api.frames import (
    LABEL,
    LabelledTables,
    by_code,
    check_given,
    draw_tested,
    forget_run,
    hold_owners,
    lacking,
)
from vfl.base.errors import ConfigError, PeerLost
from vfl.base.metrics import worse_than_constant
from vfl.config import ExperimentConfig
from vfl.config.tables import STEPS_PER_ROUND, exchanges_to_try, trial_settings
from vfl.core.build import GivenModules
from vfl.core.head import OwnLoss
from vfl.core.local import InProcess, build_in_process
from vfl.data.tables.fitting import fitting_experiment
from vfl.predict.start_from import start_of
from vfl.runs.mode import Built, Stage
from vfl.runs.run import run_experiment
from vfl.runs.stored_run import Run

DROPPED = "keys are in the tables of all owners; dropped"
"""Words of a training about rows without a counterpart."""
HELD_BACK = 0.2
"""Share of the samples on which a trial is tested."""
LEAD = 1.02
"""Factor of the lowest loss within which more exchanges are chosen: members gain more by them than a trial's model."""


class Training(NamedTuple):
    """What an estimator's arguments say of a training."""

    task: Literal["classification", "regression"]
    classes: tuple[str, ...]
    """Names by label; none of amounts."""
    alpha: Any
    beta: Any
    rounds: int
    loss: OwnLoss | str | Mapping[str, Any] | None
    seed: int


class Places(NamedTuple):
    """Folders of the owners' tables and of the run, and where progress is shown."""

    tables: Path
    run: Path
    console: Console


class Trial(NamedTuple):
    """A training with one model, tested on samples held back."""

    steps_per_round: int
    test_loss: float
    bytes: int
    """Sent in both directions."""


def try_exchanges(wanted: Training, samples: LabelledTables, given: Mapping[str, Any]) -> list[Trial]:
    """Train as long as each of `exchanges_to_try`; return the trials, none if nothing is to be chosen.

    ``given`` are settings by dotted key. Warnings are those of the training that follows, and not shown.
    """
    classes = 0 if callable(wanted.loss) else len(wanted.classes)
    if not (tried := exchanges_to_try(len(samples.labels_N), classes, given)):
        return []
    held = draw_tested(samples.labels_N, HELD_BACK, True, np.random.RandomState(wanted.seed))
    trials: list[Trial] = []
    for steps_per_round in tried:
        folder = Path(tempfile.mkdtemp(prefix="lvfl-"))
        places = Places(folder, folder / "run", Console(quiet=True))
        settings = {**given, **trial_settings(), STEPS_PER_ROUND: steps_per_round}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                summary = train_tables(wanted, samples, held, settings, places, again=False)[0].summary
        finally:
            forget_run(folder)
        sent = summary["uplink_bytes"] + summary["downlink_bytes"]
        trials.append(Trial(steps_per_round, float(summary["test_loss"]), sent))
    return trials


def best_exchanges(trials: Sequence[Trial]) -> dict[str, int]:
    """Return the setting of the longest trial whose loss is within `LEAD` of the lowest; none without trials."""
    judged = [each for each in trials if not math.isnan(each.test_loss)]
    if not judged:
        return {}
    lowest = min(each.test_loss for each in judged)
    return {STEPS_PER_ROUND: max(each.steps_per_round for each in judged if each.test_loss <= LEAD * lowest)}


def train_tables(
    wanted: Training,
    samples: LabelledTables,
    tested: NDArray[np.int64],
    given: Mapping[str, Any],
    places: Places,
    *,
    again: bool,
) -> tuple[Run, InProcess]:
    """Train as ``lvfl train`` does, test on some rows, and return the run and its models.

    ``again``: the tested rows are trained on as well. Raises ValueError, one line; KeyboardInterrupt for a signal.
    """
    tables, test_file = hold_owners(places.tables, samples, tested, again=again)
    values: dict[str, Any] = {"name": "python", "seed": wanted.seed, "task": wanted.task}
    values["data"] = {"dataset": {"kind": "tables"}, "tables": tables, "test_file": str(test_file)}
    values |= {"lightweighting": {"alpha": wanted.alpha, "beta": wanted.beta}, "checkpoint": {"every": wanted.rounds}}
    parties = [name for name, table in tables.items() if table["features"] != {}]
    values["evaluation"] = {"subsets": len(parties) > 1, "every": wanted.rounds}
    own_loss = wanted.loss if callable(wanted.loss) else None
    with _hiding_label():
        config = fitting_experiment(values, given, len(wanted.classes), wanted.rounds, one_model=own_loss is not None)
    config = by_code(config, wanted.classes)
    config.note_own()
    check_given(config, "tables", wanted.task)
    built: list[InProcess] = []

    def build(config: ExperimentConfig, stage: Stage) -> Built:
        modules, start = GivenModules(loss=own_loss), start_of(config, stage.run_dir)
        built.append(build_in_process(config, stage.runtime, stage.progress.on_step, given=modules, start=start))
        return Built(built[0].server)

    lines = [*config.warnings(), *lacking(samples.owners)]
    with _hiding_label(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", UserWarning)  # not as errors: some are not the caller's
        outcome = run_experiment(config, places.run, resume=False, console=places.console, build=build)
    if not outcome.finished:
        rounds = outcome.summary["rounds"]
        raise KeyboardInterrupt(f"interrupted after {rounds} of {config.training.rounds} rounds; fit again")
    for line in filter(None, [*lines, worse_than_constant(outcome.summary)]):
        warnings.warn(line, stacklevel=4)
    for each in caught:
        # The training counts rows of its own tables, in which tested samples are there twice.
        if DROPPED not in str(each.message):
            warnings.warn(_without_label(str(each.message)), each.category, stacklevel=4)
    return Run(places.run), built[0]


@contextmanager
def _hiding_label() -> Generator[None]:
    try:
        yield
    except (ValueError, PeerLost) as error:
        raise ConfigError(_without_label(str(error))) from None


def _without_label(line: str) -> str:
    """Return a line without the name of the column of labels, which is added to the caller's."""
    return line.replace(f"label {LABEL!r}", "label")
