"""Experiments on tables whose settings need no search: those that fit the training rows, after join and split."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from vfl.base.errors import ConfigError
from vfl.config import Experiment, ExperimentConfig, parse_config
from vfl.config.files import YAML, lay_over, parse_overrides, read_section
from vfl.config.tables import OWN_SHAPE, ROUNDS, TableConfig, table_settings
from vfl.data.experiments import decide_parties, load_user_experiment
from vfl.data.source import open_source
from vfl.data.tables.cells import Reading
from vfl.data.tables.describe import describe_table
from vfl.data.tables.labels import count_classes
from vfl.data.tables.opened import locate_table
from vfl.data.tables.source import Tables

SHOWN = 8
"""Columns that an error names."""


def fitting_experiment(
    values: Mapping[str, Any],
    chosen: Mapping[str, object],
    classes: int,
    rounds: int = ROUNDS,
    *,
    one_model: bool = False,
) -> ExperimentConfig:
    """Return the experiment of ``values`` with `table_settings` for its training rows; ``chosen`` overrides both.

    ``classes`` is 0 where the label is an amount. ``one_model`` goes without members. Raises ValueError, one line, for
    settings and tables that do not fit.
    """
    # With training.start_from the estimators give the shape of the earlier models, whatever that is.
    one_model |= "training.start_from" not in chosen and any(map(OWN_SHAPE.fullmatch, chosen))

    def experiment(rows: int) -> ExperimentConfig:
        fitting = table_settings(rows, classes, rounds, one_model=one_model)
        return decide_parties(parse_config(lay_over({**fitting, **values}, chosen)))

    config = experiment(1)
    source = open_source(config)
    config = experiment(source.training_rows()) if isinstance(source, Tables) else config
    config.note_own()
    return config


def experiment_of_arguments(arguments: argparse.Namespace, use: str = "training") -> ExperimentConfig:
    """Return the experiment of a command's ``OneLineParser.add_tables`` and settings. Raises ConfigError, one line."""
    tables: dict[str, Path] = {}
    for text in arguments.table:
        owner, _, file = text.partition("=")
        if not owner or not file:
            raise ConfigError(f"--table: {text!r}: write OWNER=FILE")
        if owner in tables:
            raise ConfigError(f"--table: {owner} has two, {tables[owner]} and {file}; name each owner once")
        tables[owner] = Path(file)
    if len(tables) < 2:
        raise ConfigError(f"--table: is given once; {use} needs the tables of two or more owners")
    keys: dict[str, str] = {}
    texts: list[str] = arguments.key
    for text in texts:
        owner, equals, column = text.partition("=")
        if equals and owner in tables:
            keys[owner] = column
        else:
            keys = dict.fromkeys(tables, text) | keys
    return experiment_of(tables, arguments.label, keys, arguments.settings)


def experiment_of_python(source: str | Path | Mapping[str, str | Path], overrides: Mapping[str, object]) -> Experiment:
    """Return the experiment of a YAML file or a shipped name, or that on tables by owner. Raises ConfigError."""
    if isinstance(source, Mapping):
        for owner, file in source.items():
            if not (isinstance(cast(object, file), str | Path) and Path(file).is_file()):
                what = f"tables by owner are {{OWNER: FILE}}, and {file!r} of {owner!r} is no file"
                raise ConfigError(f"config: {what}; settings go into overrides")
        return experiment_of({owner: Path(file) for owner, file in source.items()}, None, {}, overrides)
    if not isinstance(cast(object, source), str | Path):
        what = f"a YAML file, the name of a shipped experiment, or {{owner: FILE}}; got {type(source).__name__}"
        raise ConfigError(f"config: expected {what}; settings go into overrides")
    return load_user_experiment(Path(source), overrides)


def experiment_of(
    tables: Mapping[str, Path],
    label: str | None,
    keys: Mapping[str, str],
    overrides: Sequence[str] | Mapping[str, object],
) -> ExperimentConfig:
    """Return an experiment on tables by owner, with settings that need no search.

    A YAML file of ``lvfl describe`` stands for its table, and names label and key where they are not given. The column
    ``label`` is the first owner's. The key of an owner without one is its first column that looks like a key. Raises
    ConfigError, one line.
    """
    overridden = overrides if isinstance(overrides, Mapping) else parse_overrides(overrides)
    if not tables:
        raise ConfigError("--table: is missing; name OWNER=FILE for each owner")
    data = _data_of(tables)
    proposed: dict[str, dict[str, Any]] = data["tables"]
    leader = next(iter(tables))
    if label is None:
        leader = next((owner for owner, own in proposed.items() if own.get("label") is not None), leader)
        label = proposed[leader].get("label")
    if label is None:
        raise ConfigError("--label: is missing; name the column of the first table that is to be predicted")
    proposed[leader]["label"], classes = label, 0
    for owner, own in proposed.items():
        settings = read_section(TableConfig, {name: own[name] for name in ("file", "query", "database") if name in own})
        file = locate_table(owner, settings.model_copy(update={"key": ()}))
        columns = describe_table(file, reading=Reading(settings=f"data.tables.{owner}"))
        names = [each.name for each in columns]
        likely = (each.name for each in columns if each.name != label and each.looks_like_key())
        key = own["key"] = keys.get(owner) or own.get("key") or next(likely, None)
        if not set(cast(list[object], key) if isinstance(key, list) else [key]) <= set(names):
            problem = "no column that looks like a key" if key is None else f"no column {key!r}"
            raise ConfigError(f"--key: {file} has {problem}; write --key {owner}=COLUMN, one of {_list_some(names)}")
        if owner == leader and label not in names:
            raise ConfigError(f"--label: {file}, {owner}'s --table, has no column {label!r}, but {_list_some(names)}")
        if owner == leader and overridden.get("task") != "regression":
            classes = next(count_classes(each.values) for each in columns if each.name == label)
    name = label if re.fullmatch(r"[\w.-]+", label, re.ASCII) else "tables"
    rounds = overridden.get("training.rounds")
    rounds = rounds if isinstance(rounds, int) and rounds > 0 else ROUNDS  # over which the learning rate falls
    return fitting_experiment({"name": name, "data": data}, overridden, classes, rounds)


def _data_of(tables: Mapping[str, Path]) -> dict[str, Any]:
    """Return the section ``data`` of owners' tables, or YAML files of their settings."""
    tables_by_owner = {
        owner: str(file) if file.suffix in YAML else {"file": str(file)} for owner, file in tables.items()
    }
    data: dict[str, Any] = lay_over({"data": {"dataset": {"kind": "tables"}, "tables": tables_by_owner}}, {})["data"]
    for owner, own in data["tables"].items():
        if not (isinstance(own.get("file"), str) or own.get("query")):
            raise ConfigError(f"--table: {tables[owner]}: names no file; write its table as file: FILE, or a query")
    return data


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
