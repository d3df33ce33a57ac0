"""Checked sections from nested settings, and the one-line errors about them."""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import reduce
from operator import getitem
from pkgutil import resolve_name
from typing import Any, TypeVar

from pydantic import ValidationError

from vfl.base.errors import ConfigError, did_you_mean, nearest_name
from vfl.config.components import MODES
from vfl.config.settings import Section, is_choice, section_of, section_of_values
from vfl.config.shared import Experiment

S = TypeVar("S", bound=Section)

FORMS = {
    "device": "must be cpu, or (untested) cuda, or one GPU as cuda:0",
    "name": "must be of letters, digits, dots, dashes and underscores, as it names a folder",
    "evaluation.decision": "names one cost; give both, as {fp: 1, fn: 20}",
}
"""Error texts by field, in place of pydantic's about a regular expression or a number of values."""
PLAINLY = {
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "path_type": "must be a path",
    "union_tag_not_found": "needs a kind",
    "model_attributes_type": "must be a kind, or a mapping with one",
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


def experiment_type(mode: object) -> type[Experiment]:
    """Return the type of a mode's experiments. Raises ConfigError for an unknown one."""
    if not isinstance(mode, str) or mode not in MODES:
        raise ConfigError(f"mode: must be {' or '.join(MODES)} (got {mode!r}){did_you_mean(str(mode), [*MODES])}")
    return resolve_name(MODES[mode].experiment)


def read_section(section: type[S], values: Mapping[str, Any]) -> S:
    """Check the settings of a section. Raises ConfigError, one line, for anything that is wrong."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        errors = [dict(each) for each in error.errors()]
    mode, theirs = _of_other_mode(section, errors)
    if theirs and values.keys() >= Experiment.model_fields.keys():  # of a run: nobody writes all of them into a file
        kept: Any = deepcopy(dict(values))
        for *parents, last in theirs:
            del reduce(getitem, parents, kept)[last]
        return read_section(section, kept)
    lines = [_one_line(section, each) for each in errors if each["loc"] not in theirs]
    if theirs:
        keys = [".".join(map(str, each)) for each in theirs]
        named = f"{', '.join(keys[:8])}{' and others' if len(keys) > 8 else ''}"
        lines.insert(0, f"{named}: only mode={mode} has this; set that mode, or leave this out")
    raise ConfigError("; ".join(lines))


def _of_other_mode(section: type[Section], errors: Sequence[dict[str, Any]]) -> tuple[str, list[tuple[int | str, ...]]]:
    """Return the unknown keys of an experiment that the other mode's know, and that mode."""
    unknown = [each["loc"] for each in errors if each["type"] == "extra_forbidden"]
    if unknown and issubclass(section, Experiment):
        for mode in MODES:
            if theirs := [each for each in unknown if each[-1] in _known_keys(experiment_type(mode), each[:-1])]:
                return mode, theirs
    return "", []


def field_type(section: object, key: str) -> object:
    """Return the type of a setting in a section, or of a mapping's values; None if it is unknown."""
    known = section_of(section)
    return known.type_of(key) if known else section_of_values(section)


def _without_kinds(section: type[Section], location: Sequence[int | str]) -> list[int | str]:
    """Return an error's location as the user wrote it: pydantic puts a choice's kind behind its setting."""
    at: object = section
    kept: list[int | str] = []
    for part in location:
        if is_choice(at):
            at = None
        else:
            kept.append(part)
            at = field_type(at, str(part))
    return kept


def _one_line(section: type[Section], error: dict[str, Any]) -> str:
    location = _without_kinds(section, error["loc"])
    unknown = error["type"] == "extra_forbidden"  # then all of the location is the user's, whatever a key looks like
    field = ".".join(str(part) for part in location if unknown or not KIND.match(str(part)))
    formed = FORMS.get(field) if error["type"] in ("string_pattern_mismatch", "too_short") else None
    plainly = formed or PLAINLY.get(error["type"])
    told = plainly or str(error["msg"]).replace("Input should", "must")
    message = " ".join(told.removeprefix("Value error, ").split())
    if unknown and len(location) < len(error["loc"]):
        return f"{field}: kind {error['loc'][-2]} has none; leave it out"
    if unknown:
        return f"{field}: unknown key{_nearest_key(section, location)}"
    if error["type"] == "missing":
        return f"{field}: is missing"
    if not field:
        return message
    if error["type"] == "union_tag_invalid":
        kind, allowed = error["ctx"]["tag"], re.findall(r"'([^']*)'", error["ctx"]["expected_tags"])
        return f"{field}: must be {', '.join(allowed)} (got {kind!r}){did_you_mean(kind, allowed)}"
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
    if name in OTHER_WORDS and issubclass(section, Experiment):
        return f"; did you mean {OTHER_WORDS[name]!r}?"
    if not elsewhere:
        return nearest_name(name, _known_keys(section, location[:-1]))
    shared = [sum(a == b for a, b in zip(path, given, strict=False)) for path in elsewhere]
    return f"; did you mean {'.'.join(elsewhere[shared.index(max(shared))])!r}?"


def setting_named(word: str) -> str | None:
    """Return the dotted name of the setting that a word names, wherever it stands; None for no or another one."""
    paths = sorted((path for mode in MODES for path in _paths(experiment_type(mode))), key=len)
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
        section = field_type(section, str(part))
    known = section_of(section)
    return known.known_keys() if known else []
