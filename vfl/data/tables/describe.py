"""A summary of a table before its use: the content of each column, and whether it should be a feature.

Memory does not grow with the rows: at most `MOST_VALUES` different values of a column are kept.
"""

import json
import math
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from vfl.base.errors import printable
from vfl.config.tables import ColumnKind
from vfl.data.tables.arrow import ArrowInvalid, Column, pa, pc
from vfl.data.tables.canonical import spell
from vfl.data.tables.cells import Block, Kept, TableError, is_number, open_blocks
from vfl.data.tables.columns import WRITTEN, as_text

MOST_VALUES = 10_000
"""Most different values that are counted; a text column with more is no use as a category."""
MOSTLY = 0.95
"""Share of numbers from which a column counts as one of numbers; its other cells are then errors."""
SHOWN = 3
"""Columns that an error names."""
FEW_ROWS = 20
"""Fewest rows from which more than types is guessed; fewer cannot show a key."""

WORDS = (
    "unknown",
    "missing",
    "not available",
    "not applicable",
    "undefined",
    "nil",
    "n.a.",
    "n.a",
    "-",
    "--",
    ".",
    "..",
)
"""Words that stand for a missing value, in lower case, beside those that are always taken so."""
CODES = ("-9", "-99", "-999", "-9999", "-99999")
"""Numbers that may stand for a missing value where no other number of the column is negative."""
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
WITH_COMMA = r"^[+-]?[\d. ]*\d,\d+$"
LABELS_ALONE = "   # none: an owner with only labels has no model and sends nothing"
DATE = r"^(\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}([T ].*)?)$"
CODE = re.compile(r"0\d+")
KEY_NAME = re.compile(r"(^|[\W_])(id|key|uuid)$|(?<=[a-z])(Id|ID)$|^ID$", re.IGNORECASE)


@dataclass
class ColumnSummary:
    """Summary of a column, gathered block by block."""

    name: str
    rows: int = 0
    missing: int = 0
    numbers: int = 0
    dates: int = 0
    written: int = 0
    """Count of numbers with a mark of thousands, a decimal comma, a currency or a percent sign."""
    commas: int = 0
    """Count of numbers with a decimal comma, or a comma between thousands."""
    low: float = math.inf
    high: float = -math.inf
    whole: bool = True
    values: set[str] = field(default_factory=set[str])
    """Different values, at most `MOST_VALUES` + 1."""
    texts: set[str] = field(default_factory=set[str])
    """Different values that are no numbers, at most `SHOWN` + 1."""
    first_text: str = ""
    """The first value that is not a number, with its row."""
    foreign: str = ""
    """The column's type where it holds no cells of a table, such as lists."""

    def add(self, block: Block, cells: Column, amounts: np.ndarray, others: Column) -> None:
        """Add a block's cells to the summary; ``amounts`` and ``others`` as in ``_amounts``."""
        self.rows += len(cells)
        self.missing += cells.null_count
        if len(self.values) <= MOST_VALUES:
            new = as_text(pc.unique(cells)).drop_null().to_pylist()
            self.values.update(map(spell, new[: MOST_VALUES + 1]))  # one more than is counted tells "over"
        if others.true_count:
            self._note_text(block, cells, others)
        finite = amounts[np.isfinite(amounts)]
        self.numbers += len(finite)
        if len(finite):
            self.low, self.high = min(self.low, finite.min()), max(self.high, finite.max())
            self.whole = self.whole and bool((finite == np.round(finite)).all())

    def _note_text(self, block: Block, cells: Column, others: Column) -> None:
        if len(self.texts) <= SHOWN:
            self.texts.update(pc.unique(cells.filter(others)).to_pylist()[: SHOWN + 1])
        self.dates += _matching(cells, DATE)
        self.written += _matching(cells.filter(others), WRITTEN)
        self.commas += _matching(cells, WITH_COMMA)
        if not self.first_text:
            index = others.index(True).as_py()
            self.first_text = f"{cells[index].as_py()[:40]!r} in row {block.row(index)}"

    @property
    def distinct(self) -> str:
        """Return the number of different values, as text."""
        return f"over {MOST_VALUES:,}" if len(self.values) > MOST_VALUES else f"{len(self.values):,}"

    @property
    def range(self) -> str:
        """Lowest and highest number, or some values."""
        if self.mostly_numbers:
            return f"{self.low:g} to {self.high:g}"
        return printable(", ".join(sorted(map(str, self.values))[:3])[:40])

    def missing_words(self) -> set[str]:
        """Return the words for a missing value, if nearly all cells, or all but those, are numbers."""
        words = {text for text in self.texts if text.lower() in WORDS}
        return words if self.mostly_numbers or (self.numbers and words == self.texts) else set()

    def missing_codes(self) -> list[str]:
        """Return a negative number that may stand for a missing value: the only one among positive ones."""
        if not self.mostly_numbers or len(self.values) > MOST_VALUES:
            return []
        negative = [value for value in self.values if value.startswith("-") and value not in self.texts]
        return negative if len(negative) == 1 and negative[0] in CODES else []

    @property
    def _code(self) -> str:
        """A value of digits that begins with 0, such as 00123 of postcodes: as numbers 00123 and 123 are the same."""
        return min((value for value in self.values if value[:1] == "0" and CODE.fullmatch(value)), default="")

    @property
    def mostly_numbers(self) -> bool:
        """Return whether it counts as a column of numbers."""
        return self.numbers > 0 and self.numbers >= MOSTLY * (self.rows - self.missing)

    @property
    def _marked(self) -> bool:
        """Return whether these would be numbers, were they not written with marks."""
        amounts = self.written + self.numbers
        return not self.mostly_numbers and self.written > 0 and amounts >= MOSTLY * (self.rows - self.missing)

    def proposal(self) -> tuple[ColumnKind, str]:
        """Return the proposed kind of the column, and a warning ("" if none)."""
        present = self.rows - self.missing
        if self.foreign:
            return "ignore", f"holds {self.foreign}; a column holds numbers, text, dates or booleans"
        if present == 0:
            return "ignore", "holds no value"
        if len(self.values) == 1 and self.missing == 0:
            return "ignore", "is constant"
        if self.dates >= MOSTLY * present:
            return "ignore", "holds dates: make numbers of what matters in them (hour, weekday, days since)"
        if not self.mostly_numbers and self.commas and self.commas + self.numbers >= MOSTLY * present:
            return "ignore", "holds numbers with a comma: write 1234.5 for 1.234,5 or 1,234.5"
        if self._marked:
            return "ignore", f"holds numbers with marks (first {self.first_text}): write 1234.5 without them"
        if self.looks_like_key():
            return "ignore", "looks like a key"
        coded = f"has codes such as {self._code}, which are no amounts" if self.mostly_numbers and self._code else ""
        if not self.mostly_numbers or coded:
            many = len(self.values) > max(FEW_ROWS, present // 2) or len(self.values) > MOST_VALUES
            too_many = f"{coded} and" if coded else "has"
            spoilt = self.numbers >= present // 2 and not coded and self.first_text
            cells = f"; {present - self.numbers} cells are no numbers (first {self.first_text})" if spoilt else ""
            told = f"{too_many} too many different values for a category{cells}"
            return ("ignore", told) if many else ("category", coded)
        wrong = present - self.numbers
        first = f" (first {self.first_text})" if self.first_text else ""
        return "number", f"has {wrong} cells that are no finite number{first}" if wrong else ""

    def looks_like_key(self) -> bool:
        """Return whether nearly every row has its own value, and it is a row number, text, or named like a key."""
        # Only MOST_VALUES values are kept: a longer table must have that many different ones.
        if self.rows < FEW_ROWS or self.missing or len(self.values) < min(self.rows, MOST_VALUES):
            return False
        if self._marked:
            return False
        if not self.mostly_numbers or self._code:
            return True
        counted = self.whole and self.high - self.low + 1 == self.rows  # different whole numbers without a gap
        return counted or (self.whole and KEY_NAME.search(self.name) is not None)


def describe_table(
    path: Path,
    columns: Sequence[str] | None = None,
    progress: Callable[[int], None] = lambda rows: None,
    missing: Sequence[str] = (),
    kept: Kept = MappingProxyType({}),
) -> list[ColumnSummary]:
    """Read a table once (``columns``: only these) and return its columns' summaries in their order.

    ``progress`` is called with the rows read so far; ``missing`` and ``kept`` as in ``open_blocks``. Raises TableError.
    """
    summaries: dict[str, ColumnSummary] = {}
    with open_blocks(path, columns, missing, kept=kept) as blocks:
        for block in blocks:
            amounts, others = _amounts([*block.columns.values()])
            for (name, cells), own, texts in zip(block.columns.items(), amounts, others, strict=True):
                if name not in summaries:
                    summaries[name] = ColumnSummary(name)
                summaries[name].add(block, cells, own, texts)
                summaries[name].foreign = block.others.get(name, "")
            progress(block.start)
    return list(summaries.values())


def describe_with_missing(
    path: Path, progress: Callable[[int], None] = lambda rows: None
) -> tuple[list[ColumnSummary], list[str]]:
    """Return the summaries of a table with its own words for a missing value, and these words. Raises TableError.

    A table that has such words is read twice.
    """
    summaries = describe_table(path, None, progress)
    words = sorted(set[str]().union(*(each.missing_words() for each in summaries)))
    return (describe_table(path, None, progress, words) if words else summaries), words


def doubtful_header(path: Path, summaries: Sequence[ColumnSummary], named: Collection[str] = ()) -> str:
    """Return a line about names that look like a row of values, as a file has without a header; "" if none does.

    Such are a fraction that names a column of numbers, and a text that is one of its column's own. Whole numbers may
    be names: places and years. Columns ``named`` by the user have these names.
    """
    for each in (each for each in summaries if each.name not in named):
        fraction = is_number(each.name) and not each.name.isdigit()
        if fraction if each.mostly_numbers else each.name in each.values:
            return f"{path}: {each.name!r}, a name in its header, looks like a value; does the file have a header?"
    return ""


def propose_missing(
    path: Path, left_out: Sequence[str], kept: Kept = MappingProxyType({})
) -> tuple[list[str], str, list[ColumnSummary] | None]:
    """Return a table's own words for a missing value and a line about them, or else the summaries of its columns.

    Columns ``left_out`` are not looked at for words. Raises TableError.
    """
    summaries = describe_table(path, kept=kept)
    words = {each.name: each.missing_words() for each in summaries if each.name not in left_out}
    found = sorted(set[str]().union(*words.values()))
    if not found:
        return [], "", summaries
    named = ", ".join(repr(name) for name, own in words.items() if own)
    return found, f"{path}: taken as missing: {', '.join(map(repr, found))} (among numbers of {named})", None


def propose_features(
    path: Path,
    left_out: Sequence[str],
    missing: Sequence[str] = (),
    kept: Kept = MappingProxyType({}),
    summaries: Sequence[ColumnSummary] | None = None,
) -> tuple[dict[str, ColumnKind], list[str]]:
    """Return proposed kinds of the columns except ``left_out``, and a line for each doubtful one. Raises TableError."""
    summaries = summaries or describe_table(path, missing=missing, kept=kept)
    proposals = {each.name: each.proposal() for each in summaries if each.name not in left_out}
    kinds: dict[str, ColumnKind] = {name: kind for name, (kind, _) in proposals.items()}
    lines = [
        f"{path}: column {name!r} {warning}; it is {_taken(kind)}"
        for name, (kind, warning) in proposals.items()
        if warning
    ]
    lines += [line] if (line := doubtful_header(path, summaries, left_out)) else []
    if all(kind == "ignore" for kind in kinds.values()):
        why = "; ".join(f"{name!r} {warning}" for name, (_, warning) in [*proposals.items()][:SHOWN])
        fix = "name some in features ({} at an owner of labels alone)"
        raise TableError(f"{path}: no column looks like a feature ({why or 'there is none'}); {fix}")
    return kinds, lines


def proposed_yaml(
    path: Path,
    summaries: Sequence[ColumnSummary],
    folder: Path,
    label: str | None = None,
    missing: Sequence[str] = (),
) -> str:
    """Return an owner's ``data.tables.OWNER`` as YAML to edit, for a file in ``folder``. JSON's strings are YAML's.

    ``missing`` are the table's words for a missing value, with which it was summarised.
    """
    features = [each for each in summaries if each.name != label]
    keys = [each.name for each in features if each.looks_like_key()]
    if label is not None and len(features) == 1:  # of a few rows: beside a label only a key makes a table
        keys, features = [features[0].name], []
    labels_alone = label is not None and all(each.proposal()[0] == "ignore" for each in features)
    lines = [
        f"# {summaries[0].rows:,} rows; each column is a number, a category, or ignored",
        f"file: {_quoted(os.path.relpath(path, folder))}",
        f"key: {_quoted(keys[0])}" if keys else "key:   # COLUMN or [COLUMNS] by which a row is known",
        f"label: {_quoted(label)}" if label else "# label: COLUMN   # at the owner of the labels; no feature",
        *_missing_lines(summaries, missing),
        f"features:{'' if features else ' {}'}{LABELS_ALONE if labels_alone else ''}",
    ]
    for each in features:
        kind, warning = each.proposal()
        seen = f"{each.missing / each.rows:.1%} missing, {each.distinct} values: {each.range}"
        note = " ".join(f"{seen}; {warning}".rstrip("; ").split())
        lines.append(f"  {_quoted(each.name)}: {kind}   # {note}")
    return "\n".join(lines) + "\n"


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


def _amounts(columns: Sequence[Column]) -> tuple[list[np.ndarray], list[Column]]:
    """Return columns as numbers, NaN where there is none, and which of their cells hold a text that is no number.

    Columns of text are looked at as one: each call of pyarrow costs as much as some hundred cells.
    """
    rows = len(columns[0])
    texts = [position for position, cells in enumerate(columns) if not _holds_numbers(cells)]
    amounts = [np.empty(0)] * len(columns)
    others = [pa.nulls(rows, pa.bool_())] * len(columns)
    if texts:
        read, other = _numbers_and_others(pa.concat_arrays([columns[position] for position in texts]))
        for place, position in enumerate(texts):
            amounts[position] = read[rows * place : rows * (place + 1)]
            others[position] = other.slice(rows * place, rows)
    for position in set(range(len(columns))) - {*texts}:
        amounts[position] = np.asarray(pc.cast(columns[position], pa.float64(), safe=False), np.float64)
    return amounts, others


def _numbers_and_others(cells: Column) -> tuple[np.ndarray, Column]:
    """Return texts as numbers, and which of them are none."""
    try:
        numbers = pc.cast(cells, pa.float64())
        if pc.all(pc.is_finite(numbers)).as_py() is not False:  # else a text such as "inf", or an overflow
            return np.asarray(numbers, np.float64), pc.is_inf(numbers)
    except ArrowInvalid:
        pass
    number = pc.match_substring_regex(cells, NUMBER)  # looks at each, which takes longer than to read them
    return np.asarray(pc.cast(pc.if_else(number, cells, None), pa.float64()), np.float64), pc.invert(number)


def _holds_numbers(cells: Column) -> bool:
    kind = cells.type
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)


def _matching(cells: Column, pattern: str) -> int:
    return pc.sum(pc.fill_null(pc.match_substring_regex(cells, pattern), False)).as_py()


def _taken(kind: ColumnKind) -> str:
    return "left out" if kind == "ignore" else f"a {kind}"
