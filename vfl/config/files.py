"""Reading and writing configurations in YAML, and the one-line errors about them. No other module knows YAML."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import ValidationError

from vfl.base.errors import ConfigError, did_you_mean, nearest_name, one_line
from vfl.config.experiment import REMOVED, ExperimentConfig
from vfl.config.models import ModelsConfig
from vfl.config.own_models import beside
from vfl.config.settings import Section, section_of, section_of_values
from vfl.config.shipped import TABLES, find_config, kind_of
from vfl.config.tables import OTHERS, SQLITE, without_features

S = TypeVar("S", bound=Section)

FORMS = {
    "device": "must be cpu, or (untested) cuda, or one GPU as cuda:0",
    "name": "must be of letters, digits, dots, dashes and underscores, as it names a folder",
}
"""Error texts by field, in place of pydantic's about a regular expression."""
PLAINLY = {
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "path_type": "must be a path",
}
"""Error texts by pydantic's type of error, in place of its own."""
OTHER_WORDS = {
    "lr": "training.optimizer.learning_rate",
    "wd": "training.optimizer.weight_decay",
    "epochs": "training.rounds",
    "num_rounds": "training.rounds",
    "batch": "training.batch_size",
    "early_stopping": "training.patience",
    "random_state": "seed",
    "random_seed": "seed",
    "gpu": "device",
    "sparsity": "lightweighting.beta",
    **dict.fromkeys(("clip", "grad_clip", "gradient_clip", "max_grad_norm"), "training.optimizer.clip_gradient"),
}
"""Words of other programs for settings of this one, by dotted name, whose own names are unlike these."""


KIND = re.compile(r"(literal|dict|function-\w+)\[.+\]$", re.DOTALL)
"""Alternatives of a union, as pydantic names them in an error's location: literal['auto']."""
COLUMN = re.compile(r"data\.tables\.([^.]+)\.features\.(.+)")
"""The setting of one column's kind."""
IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+\]:\d+")
"""An address that YAML would take for the beginning of a list."""


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
    """Read a user's experiment from a YAML file or the name of a shipped one, and apply ``dotted.key=value`` overrides.

    A file may name another as ``base:``, relative to itself or shipped, and then holds only what differs from it.
    Raises ConfigError, one line, for anything that is wrong.
    """
    return load_experiment(path, parse_overrides(overrides))


def load_experiment(path: Path, settings: Mapping[str, object]) -> ExperimentConfig:
    """Read a user's experiment, as ``load_config``, with settings by dotted key laid over it."""
    config = parse_config(lay_over(read_settings(path), settings))
    return config if path.is_dir() else with_own_models(config)


def load_stored_config(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read the configuration in a run's folder, which may be somebody else's: code that it names is not run for it."""
    return parse_config(lay_over(read_settings(path), parse_overrides(overrides)))


def with_own_models(config: ExperimentConfig) -> ExperimentConfig:
    """Return a user's own experiment; code that it names is from now on known as the user's (``own_models.py``)."""
    if config.mode == "vertical":
        config.models.note_own()
    return config


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
    changed = _with_owners_files(Path(), deepcopy(dict(values)))
    for key, value in settings.items():
        if column := COLUMN.fullmatch(key):
            _set_column(changed, column[1], column[2], value)
            continue
        _set(ExperimentConfig, changed, key.split("."), value)
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
    """Check a nested mapping of settings. Raises ConfigError, one line, for anything that is wrong."""
    config = read_section(ExperimentConfig, values)
    data = config.data
    owner = without_features(data.tables, data.group) if data.dataset.kind == "tables" else None
    if owner is None:
        return config
    # Written out, so that the run's folder tells who its parties are without that file.
    tables = values["data"]["tables"]
    own = tables | {owner: tables[owner] | {"features": {}}}
    return read_section(ExperimentConfig, {**values, "data": values["data"] | {"tables": own}})


def read_section(section: type[S], values: Mapping[str, Any]) -> S:
    """Check the settings of a section. Raises ConfigError, one line, for anything that is wrong."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_one_line(section, dict(item)) for item in error.errors())) from None


def dump_config(config: ExperimentConfig) -> str:
    """Return the resolved experiment as YAML; ``load_config`` of it gives the same experiment."""
    return yaml.safe_dump(_plain(config.model_dump()), sort_keys=False, allow_unicode=True)


def with_whole_paths(config: ExperimentConfig) -> ExperimentConfig:
    """Return an experiment with absolute paths of its data files and runs, so that it is the same from every folder."""
    data = cast(dict[str, Any], _absolute(config.data.model_dump()))
    training = config.training
    if (named := training.start_from) is not None:
        below = Path("runs") / named
        whole = (below if below.exists() and not named.exists() else named).absolute()
        training = training.model_copy(update={"start_from": whole})
    changed: dict[str, object] = {"data": type(config.data).model_validate(data), "training": training}
    changed["models"] = config.models.with_whole_paths()
    if config.mode == "horizontal":  # a section of the algorithm's own
        own = config.horizontal.own
        paths = {name: value.absolute() for name, value in own if isinstance(value, Path)}
        update = {config.horizontal.algorithm: own.model_copy(update=paths)} if paths else {}
        changed["horizontal"] = config.horizontal.model_copy(update=update)
    return config.model_copy(update=changed)


def _absolute(value: object) -> object:
    if isinstance(value, str) and value.startswith(SQLITE):
        return f"{SQLITE}{Path(value.removeprefix(SQLITE)).absolute()}"
    if isinstance(value, dict):
        return {key: _absolute(item) for key, item in cast(dict[object, object], value).items()}
    return value.absolute() if isinstance(value, Path) else value


def changed_keys(before: ExperimentConfig, after: ExperimentConfig) -> list[str]:
    """Return the dotted keys, with both values, in which two experiments differ."""
    return [f"{key} ({old} -> {new})" for key, old, new in _changes(before, after)]


def changed_keys_but_places(before: ExperimentConfig, after: ExperimentConfig) -> list[str]:
    """Return the same without files that lie elsewhere: that is their owner's own affair, what they hold counts."""
    return [
        f"{key} ({old} -> {new})"
        for key, old, new in _changes(before, after)
        if not (_is_place(old) and _is_place(new))
    ]


def _is_place(value: object) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and value.startswith(SQLITE))


def _changes(before: ExperimentConfig, after: ExperimentConfig) -> Iterator[tuple[str, object, object]]:
    # Dumped to dicts, so that a schedule, one setting in `dotted_settings`, is compared entry by entry.
    old, new = (_flat(config.model_dump(), "", dict) for config in (before, after))
    for key in sorted(old.keys() | new.keys()):
        values = (old.get(key, "(absent)"), new.get(key, "(absent)"))
        if values[0] != values[1]:
            yield key, *values


def dotted_settings(config: ExperimentConfig) -> dict[str, object]:
    """Return all settings of an experiment by dotted key; a schedule is one setting."""
    return _flat(config, "", Section)


def _read_with_base(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in seen:
        raise ConfigError(f"{path}: base refers back to itself")
    own = without_constants(path, read_yaml(path)) if path.name == "config.yaml" else read_yaml(path)
    values = models_beside(path.parent, _with_owners_files(path.parent, own))
    base = values.pop("base", None)
    if base is None:
        return values
    try:
        file = find_config(Path(str(base)), path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: base: {error}") from None
    inherited = _read_with_base(file, (*seen, path.resolve()))
    check_inherited(path.parent / str(base), inherited)
    return _overlay(ExperimentConfig, inherited, values)


def without_constants(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Leave out settings that are constant now, which earlier versions wrote into runs' folders; warn of others."""
    for removed in REMOVED:
        *sections, name = removed.key.split(".")
        at = values
        for section in sections:
            inner = at.get(section)
            at = cast(dict[str, Any], inner) if isinstance(inner, dict) else {}
        if removed.constant is not None and at.get(name, removed.constant) != removed.constant:
            warnings.warn(f"{path}: {removed.key}: ignored, it is always {removed.constant}", stacklevel=2)
        if removed.constant is not None:
            at.pop(name, None)
    return values


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
            if "positive_class" in own:  # told by who knows the labels; it counts for the whole experiment
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
        inner = _field_type(section, key)
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
        values, section = values[parent], _field_type(section, parent)
    if known := section_of(section):
        values |= _overlay(known, values, {last: value})  # a mapping for a section changes what it names
    else:
        values[last] = value


def _field_type(section: object, key: str) -> object:
    known = section_of(section)
    return known.type_of(key) if known else section_of_values(section)


def _plain(value: object) -> object:
    """Return a dumped value in YAML's own types."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast(dict[object, object], value).items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in cast(tuple[object, ...], value)]
    return str(value) if isinstance(value, Path) else value


def _flat(values: object, prefix: str, kind: type[Any]) -> dict[str, object]:
    """Return nested values of the given type as a flat mapping by dotted key."""
    if not isinstance(values, kind):
        return {prefix: values}
    flat: dict[str, object] = {}
    # A section's fields, not converted within. dict() would take a field called keys for a mapping's method.
    nested: dict[str, object] = vars(values) if isinstance(values, Section) else cast(Any, values)
    for key, value in nested.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key), kind)
    return flat


def _one_line(section: type[Section], error: dict[str, Any]) -> str:
    location: tuple[int | str, ...] = error["loc"]
    unknown = error["type"] == "extra_forbidden"  # then all of the location is the user's, whatever a key looks like
    field = ".".join(str(part) for part in location if unknown or not KIND.match(str(part)))
    plainly = FORMS.get(field) if error["type"] == "string_pattern_mismatch" else PLAINLY.get(error["type"])
    told = plainly or str(error["msg"]).replace("Input should", "must")
    message = " ".join(told.removeprefix("Value error, ").split())
    if unknown:
        return f"{field}: unknown key{_nearest_key(section, location)}"
    if error["type"] == "missing":
        return f"{field}: is missing"
    if not field:
        return message
    if error["type"] == "value_error" and re.match(r"\w+: ", message):
        return f"{field}.{message}"  # the section's own message names the key
    # Our own validators may have said what was given, as a value or in brackets; of a section it would be a mapping.
    percent = re.search(r"'(-?\d+(?:\.\d+)?) ?%'", f"{message} {error['input']!r}")
    if percent and "number" in message:
        return f"{field}: {percent[0]} is no number; write {float(percent[1]) / 100:g}"
    named = isinstance(error["input"], str) and repr(error["input"]) in message
    complete = error["type"] == "value_error" and ("(" in message or named or bool(_known_keys(section, location)))
    got = "" if complete else f" (got {error['input']!r})"
    allowed = re.findall(r"'([^']*)'", error["ctx"]["expected"]) if error["type"] == "literal_error" else []
    return f"{field}: {message[0].lower()}{message[1:]}{got}{did_you_mean(str(error['input']), allowed)}"


def _nearest_key(section: type[Section], location: Sequence[int | str]) -> str:
    """Return the end of the line about an unknown key: the nearest place of a key of that name, or the nearest key."""
    name = str(location[-1])
    given = [str(part) for part in location]
    elsewhere = [path for path in _paths(section) if path[-1] == name]
    if name in OTHER_WORDS and section is ExperimentConfig:
        return f"; did you mean {OTHER_WORDS[name]!r}?"
    if not elsewhere:
        return nearest_name(name, _known_keys(section, location[:-1]))
    shared = [sum(a == b for a, b in zip(path, given, strict=False)) for path in elsewhere]
    return f"; did you mean {'.'.join(elsewhere[shared.index(max(shared))])!r}?"


def setting_named(word: str) -> str | None:
    """Return the dotted name of the setting that a word names, wherever it stands; None for no or another one."""
    paths = sorted(_paths(ExperimentConfig), key=len)
    names = (".".join(path) for path in paths if word in (path[-1], ".".join(path)))
    return OTHER_WORDS.get(word) or next(names, None)


def _paths(section: type[Section]) -> list[list[str]]:
    """Return the keys of all settings of a section, those of sections in it after its own."""
    own = [[key] for key in section.known_keys()]
    # Without sections of algorithms, which may be other packages': a suggestion is no reason to import them.
    fields = [key for (key,) in own if key in section.model_fields]
    within = [(key, inner) for key in fields if (inner := section_of(section.type_of(key)))]
    return [*own, *([key, *path] for key, inner in within for path in _paths(inner))]


def _known_keys(section: object, location: Sequence[int | str]) -> list[str]:
    for part in location:
        section = _field_type(section, str(part))
    known = section_of(section)
    return known.known_keys() if known else []
