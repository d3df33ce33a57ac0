"""Writer of the reference of all settings from their types: python -m scripts.lab.reference > docs/configuration.md."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import cast, get_args

from vfl.base.errors import WhenAbsent
from vfl.config.components import MODES
from vfl.config.experiment import ExperimentConfig
from vfl.config.files import experiment_type
from vfl.config.prediction import MetricName
from vfl.config.settings import Section, section_of, section_of_values

HEAD = """# Configuration

Every key of an experiment, from the types that check it (`make docs`). A file holds what differs from the defaults; on
the command line write a key with dots: `training.rounds=20`. Values begin with the default. By round or party:
`{round: value}`, `{party: value}`.

## Often needed
"""
RARE = """
# Rarely needed

Defaults suit most experiments.
"""
OFTEN = """
name seed threads task data.dataset.kind data.dataset.root data.train_samples data.tables data.tables.NAME.file
data.tables.NAME.key data.tables.NAME.label data.tables.NAME.features data.tables.NAME.match data.tables.NAME.serve.file
data.join data.test_file data.validation_share data.positive_class models.feature.kind models.feature.embedding_size
models.feature.width models.head.hidden training.rounds training.batch_size training.labels training.loss
training.optimizer.kind training.optimizer.learning_rate training.optimizer.schedule training.patience
training.class_weights training.start_from lightweighting.alpha lightweighting.beta lightweighting.resolution
lightweighting.controller wire.bits wire.coding privacy.gradients privacy.embeddings evaluation.every evaluation.metric
checkpoint.every network.server network.listen network.tls.ca network.tls.certificate network.tls.key
network.on_party_loss serving.listen serving.token
"""
"""Keys of the first table. The others follow by section."""
TYPES = {
    "Bits": "8, 4, 2",
    "Positive": "integer from 1",
    "AtLeastTwo": "integer from 2",
    "Number": "number",
    "Fraction": "0 to below 1",
    "Share": "between 0 and 1",
    "AboveZero": "above 0",
    "NotNegative": "from 0",
    "Count": "integer from 0",
    "Step": "number from 0.36 to 8",
    "Probability": "above 0 to 1",
    "RatioSchedule": "ratio, by round or party",
    "ResolutionSchedule": "above 0 to 1, by round or party",
    "RateSchedule": "number, by round",
    "ShiftSchedule": "integer from 0, by round",
    "Component": "name",
    "Steps": "steps",
    "Course": "cosine, one_cycle",
    "LossConfig": "cross_entropy, focal, squared, absolute, huber, pinball",
    "MaxNormNoise": "max_norm",
    "NoisyGradients": "gaussian",
    "NoisyRows": "gaussian",
    "Decorrelation": "distance_correlation",
    "KeyColumns": "column, or a list",
    "ClassWeights": "balanced, by class",
    "MetricName": ", ".join(get_args(MetricName)),
    "WhenAbsent": ", ".join(get_args(WhenAbsent)),
    "Address": "HOST:PORT",
    "Seconds": "above 0",
    "dict[str, Any]": "mapping",
    "dict[str, FeatureKind]": "kinds by column",
    "Numbers": "standardised, quantiles, both",
    "Milliseconds": "number to 60000",
    "Costs": "mapping",
    "date": "date",
    "dict[str, KeyColumns]": "columns by owner",
    "dict[str, Words]": "words by column",
    "dict[str, TableConfig]": "by owner: settings or a YAML file",
    "dict[str, FeatureModelConfig]": "by party: settings",
    "dict[str, DeviceConfig]": "by party: settings",
    "None": "null",
    "int": "integer",
    "float": "number",
    "bool": "true, false",
    "str": "name",
    "Path": "path",
}
"""Words of the page for a type, by its name in the source."""


def reference() -> str:
    """Return the page in Markdown."""
    often, rows = OFTEN.split(), _all_rows(ExperimentConfig)
    parts = [HEAD, *_table([row for each in rows.values() for row in each if row[0] in often]), RARE]
    shown = set(often)
    for mode in MODES:
        experiment = experiment_type(mode)
        if experiment is not ExperimentConfig:
            parts += [f"\n# mode: {mode}\n\nThe keys that only this mode has."]
        for name, every in _all_rows(experiment).items():
            new = [row for row in every if row[0] not in shown]
            section = section_of(experiment.type_of(name))
            if section and new:
                parts += [f"\n## {name}\n\n{inspect.cleandoc(section.__doc__ or '')}\n"]
            parts += [f"- `{key}` ({value}): {text}" for key, value, text in new]
            shown |= {key for key, _, _ in new}
    return "\n".join(parts).rstrip() + "\n"


def _all_rows(experiment: type[Section]) -> dict[str, list[tuple[str, str, str]]]:
    """Return the rows of each section of an experiment by its name; those of none under ""."""
    sections = {key: section_of(experiment.type_of(key)) for key in experiment.known_keys()}
    within = {key: list(_rows(section, f"{key}.")) for key, section in sections.items() if section}
    return {"": list(_rows(experiment, "")), **within}


def _table(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    return [
        "| key | value | meaning |",
        "|---|---|---|",
        *(f"| `{key}` | {value} | {text} |" for key, value, text in rows),
    ]


def _rows(section: type[Section], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and meaning of the settings of a section and, but for the top, of those within.

    NAME stands for the names of a mapping, such as parties. Settings of one type are listed once.
    """
    sources, names = _sources(section), {field.alias: name for name, field in section.model_fields.items()}
    listed: dict[type[Section], str] = {}
    for key in section.known_keys():
        inner = section_of(section.type_of(key))
        if inner is None:
            name = names.get(key, key)
            kind, text = sources[name]
            default = section.model_fields[name].get_default(call_default_factory=True)
            values = section_of_values(section.type_of(key))
            if values in listed:
                text += f" Keys: as `{listed[values]}`."
            yield f"{prefix}{key}", _value(kind, default, section.model_fields[name].is_required()), text
            if values and values not in listed:
                yield from _rows(values, f"{prefix}{key}.NAME.")
        elif prefix:
            listed[inner] = f"{prefix}{key}"
            yield from _rows(inner, f"{prefix}{key}.")


def _sources(section: type[Section]) -> dict[str, tuple[str, str]]:
    """Return type and meaning of every setting as declared in the source."""
    sources: dict[str, tuple[str, str]] = {}
    for owner in reversed(section.__mro__):  # bases first: what a section declares itself replaces theirs
        if not issubclass(owner, Section) or owner is Section:
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(tree, ast.ClassDef)
        for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):  # a setting's text stands after it
            if not isinstance(node, ast.AnnAssign):
                continue
            text = _docstring_text(after)
            sources[ast.unparse(node.target)] = (_kind(node.annotation), _cell(text.replace("``", "`")))
    return sources


def _docstring_text(node: ast.stmt | None) -> str:
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


def _value(kind: str, default: object, required: bool) -> str:
    """Return the default, then what else the setting takes."""
    if required:
        return f"required: {kind}"
    shown = str(list(cast(tuple[object, ...], default)) if isinstance(default, tuple) else default)
    shown = "null" if default is None else shown.lower() if isinstance(default, bool) else _cell(shown)
    choices = kind.removesuffix(", or null").split(", ")
    if shown in choices:
        choices.remove(shown)
        return ", ".join([shown, *choices])
    return f"{shown}; {kind.removesuffix(', or null')}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
