"""The label column: class indices or amounts, and the check for features that copy it."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Signatures of torch and numpy are partly untyped.

import re
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
import torch
from torch import Tensor

from vfl.base.errors import ConfigError, nearest_name
from vfl.data.tables.canonical import spell
from vfl.data.tables.cells import TableError, is_number, why_missing
from vfl.data.tables.columns import Categories, Indices, Numbers, Table

MOST_CLASSES = 1000
"""Largest number of classes; a label with more values is an amount."""
MOST_AMOUNTS = 100
"""Largest number of numeric classes, unless ``task: classification`` is given; with more the label is an amount."""
ROWS_PER_VALUE = 5
"""Rows of each class per distinct value above which a feature that determines the class is no accident."""
YAML_WORDS = {**dict.fromkeys(("yes", "on"), "true"), **dict.fromkeys(("no", "off"), "false")}
"""Words that YAML reads as booleans, so that a class of this name arrives as true or false."""
CODE = re.compile(r"[+-]?0\d")
"""Beginning of a number that is a code: 00123 and 123 may be two."""
FEW_CLASSES, FEW_ROWS = 10, 3
"""A label with more classes, and fewer rows per class, may be an amount."""
MANY_ROWS = 100
"""Number of rows from which a class of fewer than ``FEW_ROWS`` may be a slip."""


def read_labels(
    table: Table, name: str, rows: Indices, most_amounts: int = MOST_AMOUNTS, positive: str | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels [N] of some rows: int64 with the names of the classes, or float64 without names.

    Classes are in the order of their numbers, or of their names; of two the second one, or ``positive``, is the one
    whose probability the metrics judge. Raises TableError for a missing label, too many classes, or more than
    ``most_amounts`` numeric ones.
    """
    column = table.columns[name]
    where = f"{table.path}: label column {name!r}"
    missing = np.isnan(column.values[rows]) if isinstance(column, Numbers) else column.codes[rows] < 0
    if missing.any():
        first, count = table.row_numbers[rows[missing.argmax()]], int(missing.sum())
        why = why_missing(table.path, name, int(first), table.settings)
        rest = "remove the row" if count == 1 else f"{count - 1} more are missing; remove these rows"
        raise TableError(f"{where}, row {first}: {why}; {'else ' if ';' in why else ''}{rest}")
    if isinstance(column, Numbers):
        return torch.from_numpy(column.values[rows]), ()
    used = [column.names[code] for code in np.unique(column.codes[rows])]
    if len(used) > MOST_CLASSES or (len(used) > most_amounts and all(map(is_number, used))):
        fix = "" if len(used) > MOST_CLASSES else "; or task: classification, if they are classes"
        raise TableError(f"{where}: has {len(used)} different values; is it an amount? then set task: regression{fix}")
    if len(used) > max(FEW_CLASSES, len(rows) / FEW_ROWS):
        what = f"has {len(used)} classes in {len(rows)} rows"
        warnings.warn(f"{where}: {what}; is it an amount? then set task: regression", stacklevel=3)
    _warn_of_rare_classes(where, column.names, np.bincount(column.codes[rows], minlength=len(column.names)))
    spelt = _class_of_names(where, used)
    classes = positive_last(tuple(dict.fromkeys(spelt.values())), positive)
    places = {name: classes.index(spelling) for name, spelling in spelt.items()}
    # By the column's code. Names that only rows outside the samples have get 0, which nothing looks up.
    index = np.array([places.get(name, 0) for name in column.names], np.int64)
    return torch.from_numpy(index[column.codes[rows]]), classes


def _warn_of_rare_classes(where: str, names: Sequence[str], counts: Indices) -> None:
    """Warn of classes of few rows among many: a slip makes a class of its own, and of two classes three."""
    rare = [(name, count) for name, count in zip(names, counts, strict=True) if 0 < count < FEW_ROWS]
    if not rare or counts.sum() < MANY_ROWS:
        return
    (name, count), *others = rare
    what = f"{count} of {counts.sum():,} rows {'are' if count > 1 else 'is'} of class {name!r}"
    more = f", and {len(others)} more classes are as rare" if others else ""
    warnings.warn(f"{where}: {what}{more}; if that is a slip, mend or remove what it stands in", stacklevel=4)


def read_weights(table: Table, name: str, rows: Indices) -> Tensor:
    """Take the column of the samples' weights out of the table; return those of some rows, float64 [N].

    Raises TableError for one that is missing or below 0; rows of weight 0 are no longer there (`Table.counted`).
    """
    column = table.columns.pop(name)
    assert isinstance(column, Numbers)
    weights = column.values[rows]
    if not (wrong := ~(weights > 0)).any():
        return torch.from_numpy(weights)
    first = int(wrong.argmax())
    what = "is missing" if np.isnan(weights[first]) else f"is {weights[first]:g}"
    where = f"{table.path}: weight column {name!r}, row {table.row_numbers[rows[first]]}"
    raise TableError(f"{where}: {what}; a weight is above 0, or 0 to leave the row out")


def positive_last(
    classes: tuple[str, ...], positive: str | None, field: str = "data.positive_class"
) -> tuple[str, ...]:
    """Return two classes with the one that counts as positive at the end. Raises ValueError for another name."""
    if positive is None:
        return classes
    if len(classes) != 2:
        raise ConfigError(f"{field}: is for two classes, and there are {len(classes)}; leave it out")
    meant = classes_called(positive, classes)
    if len(meant) != 1:
        raise ConfigError(f"{field}: no class is called {positive!r}{nearest_name(positive, classes)}")
    return (*(name for name in classes if name != meant[0]), meant[0])


def classes_called(name: str, classes: Sequence[str]) -> list[str]:
    """Return the class with this spelling, else the classes of the same number or word."""
    return [each for each in classes if each == name] or [each for each in classes if _is_same_class(each, name)]


def _is_same_class(name: str, positive: str) -> bool:
    return spell(positive) in (spell(name), YAML_WORDS.get(name.lower()))


def count_classes(names: Collection[str]) -> int:
    """Return the number of classes of a label's values; two spellings of one number are one class."""
    numbers = {_number(name) for name in names}
    return len(names if None in numbers or any(map(CODE.match, names)) else numbers)


def _class_of_names(where: str, names: Sequence[str]) -> Mapping[str, str]:
    """Return the class of every name, in the classes' order; numbers and booleans are compared as such."""
    # If one name is no number, all are compared as words. If one is a code such as 007, all are
    # codes, and 7 is another class. Else two spellings of a number are one class, called by its shortest spelling.
    numbers = {name: _number(name) for name in names}
    if None in numbers.values():
        ordered = sorted(names, key=lambda name: (spell(name), name))
        first = {spell(name): name for name in reversed(ordered)}  # of equal spellings the first one stays
        counts = Counter(map(spell, ordered))
        alike = [name for name in ordered if counts[spell(name)] > 1]
        tell_alike(where, alike, "are one value and so one class, {!r}")
        tell_alike(where, [*first.values()][::-1])
        return {name: first[spell(name)] for name in ordered}
    ordered = sorted(names, key=lambda name: (numbers[name], len(name), name))
    if any(map(CODE.match, names)):
        tell_alike(where, ordered)
        return {name: name for name in ordered}
    tell_alike(where, ordered, "are one number and so one class, {!r}")
    first = {numbers[name]: name for name in reversed(ordered)}
    return {name: first[numbers[name]] for name in ordered}


def _number(name: str) -> Decimal | None:
    try:
        number = Decimal(name)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def tell_alike(
    where: str, names: Sequence[str], remark: str = "are different classes; write them alike if they are one"
) -> None:
    """Warn of names that are the same number, or differ in case and spaces only."""
    alike: dict[object, list[str]] = {}
    for name in names:
        number = _number(name)
        alike.setdefault(" ".join(name.casefold().split()) if number is None else number, []).append(name)
    for several in (each for each in alike.values() if len(each) > 1):
        warnings.warn(f"{where}: {' and '.join(map(repr, several))} {remark.format(several[0])}", stacklevel=4)


def refuse_copies(table: Table, label: str, rows: Indices) -> None:
    """Raise TableError for a feature whose cells equal the label's; warn of one that determines the class."""
    wanted = table.columns[label]
    several = isinstance(wanted, Categories) and len(np.unique(wanted.codes[rows])) > 1
    for name, column in table.columns.items():
        if name == label:
            continue
        where = f"{table.path}: column {name!r}"
        if _is_copy(wanted, column, rows):
            raise TableError(f"{where} is the label {label!r} under another name; make it ignore")
        if several and _determines_class(_places(wanted, rows), column, rows):
            warnings.warn(f"{where} determines the label {label!r} in every row; is it known beforehand?", stacklevel=3)


def _is_copy(label: Numbers | Categories, column: Numbers | Categories, rows: Indices) -> bool:
    """Return whether the cells are equal; whole numbers also equal their text."""
    if isinstance(label, Numbers):
        return isinstance(column, Numbers) and np.array_equal(column.values[rows], label.values[rows])
    if not _one_for_one(_places(label, rows), _places(column, rows)):
        return False
    of_class = rows[np.unique(label.codes[rows], return_index=True)[1]]  # a row of each class: there are few
    return _texts(label, of_class) == _texts(column, of_class)


def _determines_class(classes: Indices, column: Numbers | Categories, rows: Indices) -> bool:
    """Return whether the column determines each row's class: by category, or by thresholds of its numbers."""
    places = _places(column, rows)  # NaN is the last of the numbers
    if _one_for_one(classes, places):
        return True
    # Thresholds can part the classes only if each takes one stretch of the values in their order.
    order = np.argsort(places, kind="stable")
    classes, places = classes[order], places[order]
    # Where the class changes a stretch begins. If the value has not changed with it, the value has two classes.
    starts = np.append(True, classes[1:] != classes[:-1])
    if (starts[1:] & (places[1:] == places[:-1])).any():
        return False
    # Few rows can fit by chance, and an id fits always: each value needs some rows of its class.
    rows_of = np.bincount(classes)
    if isinstance(column, Numbers):
        missing = int(np.isnan(column.values[rows]).sum())
        present = len(rows) - missing
        stretches = int(starts[:present].sum()) == len(np.unique(classes[:present]))
        return stretches and len(np.unique(classes[present:])) <= 1 and rows_of.min() >= ROWS_PER_VALUE
    values_of = np.bincount(classes[np.unique(places, return_index=True)[1]], minlength=len(rows_of))
    return bool((rows_of >= ROWS_PER_VALUE * values_of).all())


def _texts(column: Numbers | Categories, rows: Indices) -> list[str]:
    if isinstance(column, Numbers):
        return [f"{value:g}" for value in column.values[rows]]
    return [column.names[code] if code >= 0 else "" for code in column.codes[rows]]


def _places(column: Numbers | Categories, rows: Indices) -> Indices:
    """Return the index of each row's value among the column's different values."""
    values = column.values if isinstance(column, Numbers) else column.codes
    return np.unique(values[rows], return_inverse=True)[1].astype(np.int64)


def _one_for_one(a: Indices, b: Indices) -> bool:
    # As many different pairs as values on either side: then every value has one partner only. With b < different the
    # sum a * different + b tells pairs apart.
    different = int(a.max()) + 1
    return int(b.max()) + 1 == different and len(np.unique(a * different + b)) == different
