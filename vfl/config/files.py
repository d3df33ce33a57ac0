"""Reading and writing configurations in YAML. No other module knows YAML."""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import UnionType
from typing import Any, cast

import yaml

from vfl.base.errors import ConfigError, one_line
from vfl.config.check_settings import experiment_type, field_type, read_section
from vfl.config.experiment import ExperimentConfig
from vfl.config.models import ModelsConfig
from vfl.config.own_models import beside
from vfl.config.removed import without_removed
from vfl.config.settings import OneKind, Section, section_of
from vfl.config.shared import Experiment
from vfl.config.shipped import TABLES, find_config, kind_of
from vfl.config.tables import OTHERS, SQLITE

COLUMN = re.compile(r"data\.tables\.([^.]+)\.features\.(.+)")
"""The setting of one column's kind."""
IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+\]:\d+")
"""An address that YAML would take for the beginning of a list."""

YAML = (".yaml", ".yml")
"""Endings of YAML files."""


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses a key given twice; PyYAML would silently take the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # no key of a configuration, and refused as such
            if key.value in seen:
                raise yaml.YAMLError(f"{key.value!r} is given twice, line {key.start_mark.line + 1}")
            seen.add(key.value)
        return node


def _load(text: str) -> object:
    return yaml.load(text, _Loader)  # noqa: TID251, S506 - a SafeLoader


def load_config(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read a user's vertical experiment, as ``load_experiment``, with ``dotted.key=value`` overrides."""
    return vertical(load_experiment(path, parse_overrides(overrides)))


def load_experiment(path: Path, settings: Mapping[str, object]) -> Experiment:
    """Read a user's experiment from a YAML file or the name of a shipped one, with settings by dotted key laid over it.

    A file may name another as ``base:``, relative to itself or shipped, and then holds only what differs from it.
    Raises ConfigError, one line, for anything that is wrong.
    """
    experiment = parse_experiment(lay_over(read_settings(path), settings))
    if not path.is_dir():
        experiment.note_own()
    return experiment


def load_stored_config(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read the configuration in a run's folder, which may be somebody else's: code that it names is not run for it."""
    return parse_experiment(lay_over(read_settings(path), parse_overrides(overrides)))


def vertical(experiment: Experiment) -> ExperimentConfig:
    """Return an experiment that has parties. Raises ConfigError for one of another mode."""
    if isinstance(experiment, ExperimentConfig):
        return experiment
    raise ConfigError(f"mode: {experiment.mode} trains in one process, by lvfl train alone; parties need mode=vertical")


def _type_of(*layers: Mapping[str, Any]) -> type[Experiment]:
    """Return the type of the experiment of settings laid over each other."""
    return experiment_type(next((layer["mode"] for layer in reversed(layers) if "mode" in layer), "vertical"))


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a YAML file laid over those of its ``base:``, unchecked."""
    file = find_config(path)
    values = _read_with_base(file, seen=())
    if {"grid", "list"} & values.keys():
        raise ConfigError(f"{path}: is a sweep, not one experiment; use lvfl sweep {path}")
    return values


def parse_overrides(overrides: Sequence[str]) -> dict[str, object]:
    """Return the values of ``dotted.key=value`` texts by key. Raises ConfigError for any other text."""
    values: dict[str, object] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not all(key.split(".")):
            raise ConfigError(f"{override!r} is not an override; write key=value, as training.rounds=20")
        values[key] = _parse_value(key, text)
    return values


def lay_over(values: Mapping[str, Any], settings: Mapping[str, object]) -> dict[str, Any]:
    """Return a copy of nested settings with the values of some dotted keys replaced, unchecked."""
    changed, section = _with_owners_files(Path(), deepcopy(dict(values))), _type_of(values, settings)
    for key, value in settings.items():
        if column := COLUMN.fullmatch(key):
            _set_column(changed, column[1], column[2], value)
            continue
        _set(section, changed, key.split("."), value)
        # Once more: a setting may itself name an owner's file, relative to where the command was called.
        changed = _with_owners_files(Path(), changed)
    return changed


def _set_column(values: dict[str, Any], owner: str, column: str, kind: object) -> None:
    """Change the kind of one column, whose name may have dots; if no columns are named, the others are proposed."""
    keys = ["data", "tables", owner, "features"]
    given: Any = values
    for key in keys:
        given = cast(dict[str, Any], given).get(key) if isinstance(given, dict) else None
    named = cast(dict[str, object], given) if isinstance(given, dict) else {OTHERS: "propose"}
    _set(ExperimentConfig, values, keys, {**named, column: kind})


def parse_config(values: Mapping[str, Any]) -> ExperimentConfig:
    """Check the nested settings of a vertical experiment. Raises ConfigError, one line, for anything that is wrong."""
    return vertical(parse_experiment(values))


def parse_experiment(values: Mapping[str, Any]) -> Experiment:
    """Check the nested settings of an experiment. Raises ConfigError, one line, for anything that is wrong."""
    return read_section(_type_of(values), without_removed(values))


def dump_config(config: Experiment) -> str:
    """Return the resolved experiment as YAML; ``load_config`` of it gives the same experiment."""
    return yaml.safe_dump(_plain(config.model_dump()), sort_keys=False, allow_unicode=True)


def changed_keys(before: Experiment, after: Experiment) -> list[str]:
    """Return the dotted keys, with both values, in which two experiments differ."""
    return [f"{key} ({old} -> {new})" for key, old, new in _changes(before, after)]


def changed_keys_but_places(before: Experiment, after: Experiment) -> list[str]:
    """Return the same without files that lie elsewhere: that is their owner's own affair, what they hold counts."""
    return [
        f"{key} ({old} -> {new})"
        for key, old, new in _changes(before, after)
        if not (_is_place(old) and _is_place(new))
    ]


def _is_place(value: object) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and value.startswith(SQLITE))


def _changes(before: Experiment, after: Experiment) -> Iterator[tuple[str, object, object]]:
    # A schedule, one setting in `dotted_settings`, is compared entry by entry.
    old, new = (_flat(config, "", Section | dict) for config in (before, after))
    for key in sorted(old.keys() | new.keys()):
        values = (old.get(key, "(absent)"), new.get(key, "(absent)"))
        if values[0] != values[1]:
            yield key, *values


def dotted_settings(config: Experiment) -> dict[str, object]:
    """Return all settings of an experiment by dotted key; a schedule is one setting."""
    return _flat(config, "", Section)


def _read_with_base(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in seen:
        raise ConfigError(f"{path}: base refers back to itself")
    values = models_beside(path.parent, _with_owners_files(path.parent, read_yaml(path)))
    base = values.pop("base", None)
    if base is None:
        return values
    try:
        file = find_config(Path(str(base)), path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: base: {error}") from None
    inherited = _read_with_base(file, (*seen, path.resolve()))
    check_inherited(path.parent / str(base), inherited)
    return _overlay(_type_of(inherited, values), inherited, values)


def check_inherited(base: Path, values: Mapping[str, Any]) -> None:
    """Raise ConfigError if the settings are those of a run's folder, and it names code of somebody else."""
    if base.is_dir():
        read_section(ModelsConfig, values.get("models", {})).check_noted()


def _with_owners_files(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Replace the name of an owner's YAML file in ``data.tables`` by the file's content, with paths relative to it."""
    data = values.get("data")
    tables = cast(dict[str, Any], data).get("tables") if isinstance(data, dict) else None
    if not isinstance(tables, dict):
        return values
    read, positive = dict[str, Any](), {}
    for owner, table in cast(dict[str, Any], tables).items():
        read[owner] = table
        if isinstance(table, str):
            try:
                own = read_owners_file(folder / table)
            except ConfigError as error:
                raise ConfigError(f"data.tables.{owner}: {error}") from None
            if "positive_class" in own:  # set by the owner of the labels; it counts for the complete experiment
                positive = {"positive_class": own.pop("positive_class")}
            read[owner] = own
    return values | {"data": positive | cast(dict[str, Any], data) | {"tables": read}}


def read_owners_file(path: Path) -> dict[str, Any]:
    """Return the settings in an owner's YAML file; the paths in it are relative to it. Raises ConfigError, one line."""
    own = _paths_beside(path.parent, read_yaml(path), ("file", "match", "serve"))
    if isinstance(serve := own.get("serve"), dict):
        files = ("file", "token", "ca", "certificate", "key")
        own["serve"] = _paths_beside(path.parent, cast(dict[str, Any], serve), files)
    return own


def _paths_beside(folder: Path, settings: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return settings whose ``names``, and the file of an SQLite database, are relative to a folder."""
    database = settings.get("database")
    if isinstance(database, str) and database.startswith(SQLITE):
        settings = settings | {"database": f"{SQLITE}{folder / database.removeprefix(SQLITE)}"}
    return settings | {name: str(folder / settings[name]) for name in names if isinstance(settings.get(name), str)}


def models_beside(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, nested or by dotted key, with the paths of models' files relative to a folder."""

    def placed(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {inner: placed(f"{key}.{inner}", each) for inner, each in cast(dict[Any, Any], value).items()}
        if isinstance(value, list):  # a sweep's
            return [placed(key, each) for each in cast(list[Any], value)]
        if key.endswith(".weights") and isinstance(value, str):
            return str(folder / value)
        return beside(folder, value) if key.endswith(".kind") and isinstance(value, str) else value

    return {
        key: placed(str(key), value) if str(key).split(".")[0] == "models" else value for key, value in settings.items()
    }


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. Raises ConfigError, one line, if the file holds anything else."""
    if path.name.lower().endswith(TABLES):
        raise ConfigError(f"{path}: holds no settings{kind_of(path)}")
    try:
        values = _load(path.read_text(encoding="utf-8"))
    except IsADirectoryError:
        told = kind_of(path) or "; name a YAML file or a run"
        raise ConfigError(f"{path}: is a folder without a run's config.yaml{told}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply to be a configuration") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date such as 2020-99-99
        raise ConfigError(f"{path}: is not YAML ({_why(error)})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold 'key: value' settings")
    return cast(dict[str, Any], values)


def _overlay(section: type[Section], under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Lay settings over others: sections merge key by key, every other value is replaced whole."""
    merged = dict(under)
    for key, value in over.items():
        inner = field_type(section, key)
        inherited = merged.get(key)
        if (within := section_of(inner)) and isinstance(value, dict):
            # A value of the base that is not a mapping is replaced.
            settings = cast(dict[str, Any], inherited) if isinstance(inherited, dict) else {}
            merged[key] = _overlay(within, settings, cast(dict[str, Any], value))
        else:
            merged[key] = value
    return merged


def _parse_value(key: str, text: str) -> object:
    if IPV6.fullmatch(text):
        return text
    try:
        return _load(text)
    except RecursionError:
        raise ConfigError(f"{key}: is nested too deeply to be a value") from None
    except (yaml.YAMLError, ValueError) as error:
        cut = text[0] in "{[" and text[-1] not in "}]"  # by a shell, at the first space
        fix = f"; put the setting in quotes: '{key}={{...}}'" if cut else ""
        raise ConfigError(f"{key}: {text!r} is not a YAML value ({_why(error)}){fix}") from None


def _why(error: Exception) -> str:
    """Return what is wrong with a YAML text, and where."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return one_line(error)


def _set(section: object, values: dict[str, Any], keys: Sequence[str], value: object) -> None:
    """Change one setting of ``values`` in place; ``section`` is the type that describes them."""
    *parents, last = keys
    for parent in parents:  # the type goes down with the values: at the end it decides whether `value` merges
        inner = values.get(parent)
        # A mapping replaces a number: alpha=0.2 in the file, alpha.party_1=0.4 on the command line.
        values[parent] = dict(cast(dict[str, Any], inner)) if isinstance(inner, dict) else {}
        values, section = values[parent], field_type(section, parent)
    if known := section_of(section):
        values |= _overlay(known, values, {last: value})  # a mapping for a section changes what it names
    else:
        values[last] = value


def _plain(value: object) -> object:
    """Return a dumped value in YAML's own types."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast(dict[object, object], value).items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in cast(tuple[object, ...], value)]
    return str(value) if isinstance(value, Path) else value


def _flat(values: object, prefix: str, kind: type[Any] | UnionType) -> dict[str, object]:
    """Return nested values of the given type as a flat mapping by dotted key."""
    if not isinstance(values, kind) or isinstance(values, OneKind):
        return {prefix: values}
    flat: dict[str, object] = {}
    nested: dict[str, object] = cast(Any, values)
    if isinstance(values, Section):
        # Its fields, not converted within, without what is cached beside them; of a field called keys its value.
        nested = {name: vars(values)[name] for name in type(values).model_fields}
        nested |= {} if kind is Section else values.model_extra or {}
    for key, value in nested.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key), kind)
    return flat
