"""What is proposed for a table from its summary: kinds of columns, words for a missing value, marks between thousands.

``lvfl describe`` writes it as YAML; training without ``features`` reads a table so.
"""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from vfl.config.tables import OTHERS, SQLITE, ColumnKind, TableConfig
from vfl.data.tables.cells import PLAIN, Kept, Reading, TableError, TablePlace, column_names, is_number
from vfl.data.tables.database import sqlite_file
from vfl.data.tables.describe import SHOWN, ColumnSummary, describe_table

READ = "found among numbers; 1,093.39 is read as 1093.39"
LABELS_ALONE = "   # none: an owner with only labels has no model and sends nothing"


@dataclass(frozen=True)
class FoundMarks:
    """How a table's cells are to be read, as its columns of numbers show."""

    missing: tuple[str, ...] = ()
    """Words for a missing value."""
    thousands: str | None = None
    """Mark between thousands."""
    why: str = ""
    """What was found, and where; "" for nothing."""


def find_marks(summaries: Sequence[ColumnSummary], left_out: Collection[str] = (), *, words: bool = True) -> FoundMarks:
    """Return what numbers show of a table's marks and, unless given, own ``words``.

    Columns ``left_out`` are not looked at.
    """
    own = [each for each in summaries if each.name not in left_out]
    by_column = {each.name: found for each in own if words and (found := each.missing_words())}
    missing = tuple(sorted(set[str]().union(*by_column.values())))
    grouped = {each.name: each.thousands for each in own if each.groups_thousands}
    told: list[str] = []
    if missing:
        told += [f"taken as missing: {', '.join(map(repr, missing))} (among numbers of {_listed(by_column)})"]
    if grouped:
        first = next(iter(grouped.values()))
        told += [f"taken as marks between thousands: commas, as in {first!r} (numbers of {_listed(grouped)})"]
    return FoundMarks(missing, "," if grouped else None, "; ".join(told))


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names))


def describe_as_found(
    path: TablePlace,
    left_out: Collection[str] = (),
    progress: Callable[[int], None] = lambda rows: None,
    config: TableConfig = TableConfig(),  # noqa: B008 - frozen
    settings: str = PLAIN.settings,
) -> tuple[list[ColumnSummary], FoundMarks]:
    """Return the summaries of a table that is read with its own words and marks, and those that ``config`` lacks.

    A table that has some is read twice. Columns ``left_out`` keep their words. Raises TableError.
    """
    reading = Reading(config.missing, config.not_missing, config.thousands, settings)
    summaries = describe_table(path, None, reading, progress)
    found = find_marks(summaries, left_out, words=not config.missing)
    if found.why:
        kept = with_kept(config.not_missing, left_out, found)
        marks = Reading(config.missing or found.missing, kept, config.thousands or found.thousands, settings)
        summaries = describe_table(path, None, marks, progress)
    return summaries, found


def with_kept(kept: Kept, columns: Collection[str], found: FoundMarks) -> Kept:
    """Return the words that are not missing, by column, where found words stand for themselves in some columns."""
    return {**kept, **{name: (*kept.get(name, ()), *found.missing) for name in columns}} if found.missing else kept


def propose_kinds(
    path: TablePlace, config: TableConfig, beside: Sequence[str], settings: str
) -> tuple[dict[str, ColumnKind], FoundMarks, list[str]]:
    """Return the kinds of an owner's columns, what was found for reading them, and a line for each doubtful thing.

    Columns that ``config.features`` does not name are proposed, or left out; so are those ``beside`` the features, as
    keys are. Raises TableError.
    """
    given = config.features or {OTHERS: "propose"}
    left_out = set(beside) - given.keys()
    if OTHERS not in given:
        left_out |= set(column_names(path, Reading(settings=settings))) - given.keys()
    summaries, found = describe_as_found(path, left_out, config=config, settings=settings)
    proposed, lines = propose_features(path, left_out, summaries, config.named_kinds, settings)
    kinds = proposed if OTHERS in given else dict[str, ColumnKind]((name, proposed[name]) for name in given)
    return kinds, found, [f"{path}: {found.why}"] * bool(found.why) + lines


def doubtful_header(path: TablePlace, summaries: Sequence[ColumnSummary], named: Collection[str] = ()) -> str:
    """Return a line about names that look like a row of values, as a file has without a header; "" if none does.

    Such are a fraction that names a column of numbers, and a text that is one of its column's own. Whole numbers may
    be names: places and years. Columns ``named`` by the user have these names.
    """
    for each in (each for each in summaries if each.name not in named):
        fraction = is_number(each.name) and not each.name.isdigit()
        if fraction if each.mostly_numbers else each.name in each.values:
            return f"{path}: {each.name!r}, a name in its header, looks like a value; does the file have a header?"
    return ""


def propose_features(
    path: TablePlace,
    left_out: Collection[str],
    summaries: Sequence[ColumnSummary] | None = None,
    named: Mapping[str, ColumnKind] = MappingProxyType({}),
    settings: str = PLAIN.settings,
) -> tuple[dict[str, ColumnKind], list[str]]:
    """Return proposed kinds of the columns except ``left_out``, and a line for each doubtful one. Raises TableError.

    Columns that are ``named`` have the kinds given there.
    """
    summaries = summaries or describe_table(path)
    proposals = {each.name: each.proposal() for each in summaries if each.name not in left_out}
    if unknown := sorted(named.keys() - {each.name for each in summaries}):
        raise TableError(f"{settings}.features: {path} has no column {unknown[0]!r}")
    proposals |= {name: (kind, "") for name, kind in named.items()}
    kinds: dict[str, ColumnKind] = {name: kind for name, (kind, _) in proposals.items()}
    lines = [
        f"{path}: column {name!r} {warning}; it is {_taken(kind)}"
        for name, (kind, warning) in proposals.items()
        if warning
    ]
    lines += [line] if (line := doubtful_header(path, summaries, [*left_out, *named])) else []
    if all(kind == "ignore" for kind in kinds.values()):
        why = "; ".join(f"{name!r} {warning or 'is ignored'}" for name, (_, warning) in [*proposals.items()][:SHOWN])
        fix = "name some in features ({} at an owner of labels alone)"
        raise TableError(f"{path}: no column looks like a feature ({why or 'there is none'}); {fix}")
    return kinds, lines


def proposed_yaml(
    rows: Path | TableConfig,
    summaries: Sequence[ColumnSummary],
    folder: Path,
    label: str | None = None,
    found: FoundMarks = FoundMarks(),
) -> str:
    """Return an owner's ``data.tables.OWNER`` as YAML to edit, for a file in ``folder``. JSON's strings are YAML's.

    ``rows`` are in a file, or the answer of these settings' query.

    ``found`` are the words and marks with which the table was summarised.
    """
    features = [each for each in summaries if each.name != label]
    keys = [each.name for each in features if each.looks_like_key()]
    if label is not None and len(features) == 1:  # of a few rows: beside a label only a key makes a table
        keys, features = [features[0].name], []
    labels_alone = label is not None and all(each.proposal()[0] == "ignore" for each in features)
    marks = [] if found.thousands is None else [f"thousands: {_quoted(found.thousands)}   # {READ}"]
    lines = [
        f"# {summaries[0].rows:,} rows; each column is a number, a category, or ignored",
        *_rows_lines(rows, folder),
        f"key: {_quoted(keys[0])}" if keys else "key:   # COLUMN or [COLUMNS] by which a row is known",
        f"label: {_quoted(label)}" if label else "# label: COLUMN   # at the owner of the labels; no feature",
        *_positive_lines(next((each for each in summaries if each.name == label), None)),
        *_missing_lines(summaries, found.missing),
        *marks,
        f"features:{'' if features else ' {}'}{LABELS_ALONE if labels_alone else ''}",
    ]
    for each in features:
        kind, warning = each.proposal()
        seen = f"{each.missing / each.rows:.1%} missing, {each.distinct} values: {each.range}"
        note = " ".join(f"{seen}; {warning}".rstrip("; ").split())
        lines.append(f"  {_quoted(each.name)}: {kind}   # {note}")
    return "\n".join(lines) + "\n"


def _rows_lines(rows: Path | TableConfig, folder: Path) -> list[str]:
    if isinstance(rows, Path):
        return [f"file: {_quoted(os.path.relpath(rows, folder))}"]
    assert rows.query is not None
    assert rows.database is not None
    file, database = sqlite_file(rows.database), rows.database
    if file is not None:  # a path in an owner's file is read from its folder
        database = f"{SQLITE}{os.path.relpath(file, folder)}"
    return [f"query: {_quoted(rows.query)}", f"database: {_quoted(database)}"]


def _positive_lines(label: ColumnSummary | None) -> list[str]:
    if label is None or not (words := label.two_words):
        return []
    other, positive = map(_quoted, words)
    return [f"positive_class: {positive}   # or {other}? AUC, F1, average precision and the threshold are of it"]


def _missing_lines(summaries: Sequence[ColumnSummary], missing: Sequence[str]) -> list[str]:
    codes = {each.name: each.missing_codes() for each in summaries}
    found = sorted({code for own in codes.values() for code in own})
    asked = f"; {', '.join(found)} as well?" if found and missing else ""
    if missing:
        words = ", ".join(map(_quoted, missing))
        return [f"missing: [{words}]   # found among numbers; taken as missing in every column{asked}"]
    where = ", ".join(_quoted(name) for name, own in codes.items() if own)
    return [f"# missing: [{', '.join(found)}]   # stands for no value in {where}?"] if found else []


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _taken(kind: ColumnKind) -> str:
    return "left out" if kind == "ignore" else f"a {kind}"
