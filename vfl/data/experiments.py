"""A user's experiment: its settings, and who its parties are where only a table's header tells.

The label owner may leave its features out of the settings. If its table has no column for one, it has no model and is
no party. Reading settings opens no file (``vfl.config``), so commands and programs read a user's experiment here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from vfl.config import Experiment, ExperimentConfig, load_experiment, vertical
from vfl.config.check_settings import read_section
from vfl.config.data import DataConfig
from vfl.config.files import parse_overrides
from vfl.config.tables import label_owner

E = TypeVar("E", bound=Experiment)


def load_user_config(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read a user's vertical experiment, as ``load_user_experiment``, with ``dotted.key=value`` overrides."""
    return vertical(load_user_experiment(path, parse_overrides(overrides)))


def load_user_experiment(path: Path, settings: Mapping[str, object]) -> Experiment:
    """Read a user's experiment as ``vfl.config.load_experiment`` does, with its parties decided.

    Raises ConfigError, one line, for anything that is wrong.
    """
    return decide_parties(load_experiment(path, settings))


def decide_parties(experiment: E) -> E:
    """Return an experiment whose settings mark a label owner without features.

    So the run's folder tells who its parties are without that owner's file. Raises ConfigError for settings of a model
    that this owner does not have.
    """
    data = experiment.data
    owner = _owner_without_features(data) if isinstance(data, DataConfig) and data.dataset.kind == "tables" else None
    if owner is None:
        return experiment
    values = experiment.model_dump(exclude_unset=True)  # which settings are given counts
    values["data"]["tables"][owner]["features"] = {}
    return read_section(type(experiment), values)


def _owner_without_features(data: DataConfig) -> str | None:
    """Return the label owner if its features are not written out and its file's header leaves no column for one."""
    owner = label_owner(data.tables)
    config = None if owner is None or len(data.tables) < 2 else data.tables[owner]
    if config is None or config.features is not None or config.file is None or config.key is None:
        return None
    from vfl.data.tables.cells import column_names  # it imports pyarrow, which other experiments do without

    try:
        names = column_names(config.file)
    except ValueError:
        return None  # the reader of the table reports the error
    taken = {*config.key, config.label, config.weight, data.group}.union(*config.keys.values())
    return None if set(names) - taken else owner
