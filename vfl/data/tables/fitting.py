"""Experiments on tables whose settings need no search: those that fit the training rows, after join and split."""

from collections.abc import Mapping
from typing import Any

from vfl.config import ExperimentConfig, parse_config
from vfl.config.files import lay_over
from vfl.config.tables import ROUNDS, table_settings
from vfl.data.source import open_source
from vfl.data.tables.source import Tables


def fitting_experiment(
    values: Mapping[str, Any], given: Mapping[str, object], classes: int, rounds: int = ROUNDS
) -> ExperimentConfig:
    """Return the experiment of ``values`` with `table_settings` for its training rows; ``given`` override both.

    ``classes`` is 0 where the label is an amount. Raises ValueError, one line, for settings and tables that do not fit.
    """

    def experiment(rows: int) -> ExperimentConfig:
        return parse_config(lay_over({**table_settings(rows, classes, rounds), **values}, given))

    config = experiment(1)
    source = open_source(config)
    return experiment(source.training_rows()) if isinstance(source, Tables) else config
