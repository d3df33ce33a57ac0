"""Writer of the reference of all settings from their types: python -m scripts.lab.reference > docs/configuration.md."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import cast, get_args

from vfl.base.absence import WhenAbsent
from vfl.config.experiment import ExperimentConfig, MetricName
from vfl.config.settings import Section, section_of, section_of_values

HEAD = """# Configuration

Every key of an experiment, written by `python -m scripts.lab.reference` from the types that check it. A file holds what
differs from the defaults; on the command line a key is written with dots: `training.rounds=20`.
"""
TYPES = {
    "Bits": "8, 4, 2",
    "Positive": "whole number from 1",
    "AtLeastTwo": "whole number from 2",
    "Number": "number",
    "Fraction": "number from 0, below 1",
    "Share": "number above 0, below 1",
    "AboveZero": "number above 0",
    "NotNegative": "number from 0",
    "Count": "whole number from 0",
    "Step": "number from 0.36 to 8",
    "Probability": "number above 0, up to 1",
    "RatioSchedule": "ratio, `{round: ratio}`, or either by party",
    "ResolutionSchedule": "share above 0, up to 1, `{round: share}`, or either by party",
    "RateSchedule": "number, or `{round: number}`",
    "KeyColumns": "column, or a list of columns",
    "ClassWeights": "balanced, or `{class: number above 0}`",
    "MetricName": ", ".join(get_args(MetricName)),
    "WhenAbsent": ", ".join(get_args(WhenAbsent)),
    "Address": "HOST:PORT",
    "Seconds": "number above 0",
    "dict[str, Any]": "mapping",
    "dict[str, ColumnKind]": "`{column: number, category or ignore}`",
    "dict[str, KeyColumns]": "`{owner: column, or a list of columns}`",
    "dict[str, Words]": "`{column: word, or a list of words}`",
    "dict[str, TableConfig]": "by owner: these settings, or a YAML file that has them",
    "dict[str, FeatureModelConfig]": "by party: these settings",
    "dict[str, DeviceConfig]": "by party: these settings",
    "None": "null",
    "int": "whole number",
    "float": "number",
    "bool": "true, false",
    "str": "name",
    "Path": "path",
}
"""Words of the page for a type, by its name in the source."""


def reference() -> str:
    """Return the whole page in Markdown."""
    parts = [HEAD, *_table(ExperimentConfig, "")]
    for key in ExperimentConfig.model_fields:
        if section := section_of(ExperimentConfig.type_of(key)):
            parts += [f"\n## {key}\n\n{inspect.cleandoc(section.__doc__ or '')}\n", *_table(section, f"{key}.")]
    return "\n".join(parts).rstrip() + "\n"


def _table(section: type[Section], prefix: str) -> list[str]:
    rows = [f"| `{key}` | {kind} | {default} | {text} |" for key, kind, default, text in _rows(section, prefix)]
    return ["| key | type | default | meaning |", "|---|---|---|---|", *rows]


def _rows(section: type[Section], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, type, default and meaning of the settings of a section and, but for the top, of those within.

    NAME stands for the names of a mapping, such as parties.
    """
    sources, names = _sources(section), {field.alias: name for name, field in section.model_fields.items()}
    for key in section.known_keys():
        inner = section_of(section.type_of(key))
        if inner is None:
            name = names.get(key, key)
            kind, text = sources[name]
            default = section.model_fields[name].get_default(call_default_factory=True)
            yield f"{prefix}{key}", kind, _shown(default, section.model_fields[name].is_required()), text
            if values := section_of_values(section.type_of(key)):
                yield from _rows(values, f"{prefix}{key}.NAME.")
        elif prefix:
            yield from _rows(inner, f"{prefix}{key}.")


def _sources(section: type[Section]) -> dict[str, tuple[str, str]]:
    """Return type and meaning of every setting as declared in the source."""
    found: dict[str, tuple[str, str]] = {}
    for owner in reversed(section.__mro__):  # bases first: what a section declares itself replaces theirs
        if not issubclass(owner, Section) or owner is Section:
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(tree, ast.ClassDef)
        for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):  # a setting's text stands after it
            if not isinstance(node, ast.AnnAssign):
                continue
            text = _told(after)
            found[ast.unparse(node.target)] = (_kind(node.annotation), _cell(text.replace("``", "`")))
    return found


def _told(node: ast.stmt | None) -> str:
    """Return the text of a docstring statement, "" for any other statement."""
    match node:
        case ast.Expr(ast.Constant(str(text))):
            return text
        case _:
            return ""


def _kind(annotation: ast.expr) -> str:
    """Return the words of the page for a type."""
    match annotation:
        case ast.BinOp(left, ast.BitOr(), right):
            return f"{_kind(left)}, or {_kind(right)}"
        case ast.Subscript(ast.Name("Annotated"), ast.Tuple([first, *_])):
            return _kind(first)
        case ast.Subscript(ast.Name("Literal"), values):
            return re.sub(r"[()']", "", ast.unparse(values))
        case ast.Subscript(ast.Name("tuple"), ast.Tuple([first, *_])):
            return f"list: {_kind(first)}"
        case _:
            name = ast.unparse(annotation)
            return TYPES.get(name, _cell(f"`{name}`"))


def _shown(default: object, required: bool) -> str:
    if required:
        return "required"
    if isinstance(default, bool):
        return str(default).lower()
    text = str(list(cast(tuple[object, ...], default)) if isinstance(default, tuple) else default)
    return "null" if default is None else _cell(text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
