"""A summary of a table before its use: the content of each column, and whether it should be a feature.

Memory does not grow with the rows: at most `MOST_VALUES` different values of a column are kept.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from vfl.base.errors import printable
from vfl.config.tables import ColumnKind
from vfl.data.tables.arrow import ArrowInvalid, Column, pa, pc
from vfl.data.tables.canonical import BOOLEANS, spell
from vfl.data.tables.cells import PLAIN, Block, Reading, TablePlace, open_blocks
from vfl.data.tables.columns import GROUPED, WRITTEN, as_text, ungrouped

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
WITH_COMMA = r"^[+-]?[\d. ]*\d,\d+$|" + GROUPED % ","
THOUSANDS = r"^[+-]?\d{1,3}(,\d{3})+\.\d+$|^[+-]?\d{1,3}(,\d{3}){2,}$"
"""A number whose commas are between thousands: 1,093.39 or 1,093,390. The comma of 1,093 may be a decimal one."""
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
    grouped: int = 0
    """Count of those that may have a comma between thousands."""
    thousands: str = ""
    """The first number whose comma is certainly one between thousands."""
    low: float = math.inf
    high: float = -math.inf
    whole: bool = True
    values: set[str] = field(default_factory=set[str])
    """Different values, at most `MOST_VALUES` + 1."""
    texts: set[str] = field(default_factory=set[str])
    """Different values that are no numbers even with marks between thousands, at most `SHOWN` + 1."""
    words: int = 0
    """Count of cells with one of `WORDS`."""
    first_text: str = ""
    """The first value that is not a number, with its row."""
    foreign: str = ""
    """The column's type where it holds no cells of a table, such as lists."""
    settings: str = PLAIN.settings
    """`Reading.settings` of its owner."""

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
        texts = cells.filter(others)
        self.dates += _matching(texts, DATE)
        self.written += _matching(texts, WRITTEN)
        self.commas += _matching(texts, WITH_COMMA)
        self.words += pc.sum(pc.is_in(pc.utf8_lower(texts), value_set=pa.array(WORDS, pa.string()))).as_py()
        if self.commas:
            grouped = pc.match_substring_regex(texts, GROUPED % ",")
            self.grouped += grouped.true_count
            self.thousands = self.thousands or _first_matching(texts, THOUSANDS)
            texts = texts.filter(pc.invert(grouped))
        if len(self.texts) <= SHOWN:
            self.texts.update(pc.unique(texts).to_pylist()[: SHOWN + 1])
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
        amounts = self.numbers + (self.grouped if self.groups_thousands else 0)
        mostly = amounts >= MOSTLY * (self.rows - self.missing)
        return words if amounts and (mostly or words == self.texts) else set()

    def missing_codes(self) -> list[str]:
        """Return a negative number that may stand for a missing value: the only one among positive ones."""
        if not self.mostly_numbers or len(self.values) > MOST_VALUES:
            return []
        negative = [value for value in self.values if value.startswith("-") and value not in self.texts]
        return negative if len(negative) == 1 and negative[0] in CODES else []

    @property
    def groups_thousands(self) -> bool:
        """Return whether it is a column of numbers if commas are taken for marks between thousands, as they must be."""
        present = self.rows - self.missing - self.words
        return bool(self.thousands) and self.grouped == self.commas and self.grouped + self.numbers >= MOSTLY * present

    @property
    def two_words(self) -> list[str]:
        """Return its values if they are two words, in their order: as classes, any of them may be the positive one."""
        words = sorted(self.values)
        return [] if len(words) != 2 or self.numbers or set(words) <= set(BOOLEANS.values()) else words

    @property
    def _spoilt(self) -> str:
        """The cells that are no numbers: the first one with its row, and some others."""
        others = [repr(each[:40]) for each in sorted(self.texts) if not self.first_text.startswith(repr(each[:40]))]
        more = f"; also {', '.join(others[: SHOWN - 1])}" if others else ""
        return f" (first {self.first_text}{more})" if self.first_text else ""

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
            out = (
                f', or set {self.settings}.thousands="," if it is between thousands'
                if self.grouped == self.commas
                else ""
            )
            return "ignore", f"holds numbers with a comma{self._spoilt}: write 1234.5 for 1.234,5{out}"
        if self._marked:
            return "ignore", f"holds numbers with marks{self._spoilt}: write 1234.5 without them"
        if self.looks_like_key():
            return "ignore", "looks like a key"
        coded = f"has codes such as {self._code}, which are no amounts" if self.mostly_numbers and self._code else ""
        if not self.mostly_numbers or coded:
            many = len(self.values) > max(FEW_ROWS, present // 2) or len(self.values) > MOST_VALUES
            too_many = f"{coded} and" if coded else "has"
            spoilt = self.numbers >= present // 2 and not coded and self.first_text
            cells = f"; {present - self.numbers} cells are no numbers{self._spoilt}" if spoilt else ""
            reason = f"{too_many} too many different values for a category{cells}"
            return ("ignore", reason) if many else ("category", coded)
        wrong = present - self.numbers
        return "number", f"has {wrong} cells that are no finite number{self._spoilt}" if wrong else ""

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
    path: TablePlace,
    columns: Sequence[str] | None = None,
    reading: Reading = PLAIN,
    progress: Callable[[int], None] = lambda rows: None,
) -> list[ColumnSummary]:
    """Read a table once (``columns``: only these) and return its columns' summaries in their order.

    ``progress`` is called with the rows read so far. Raises TableError.
    """
    summaries: dict[str, ColumnSummary] = {}
    with open_blocks(path, columns, reading) as blocks:
        for block in blocks:
            cells_of = [*block.columns.values()]
            if reading.thousands is not None:
                cells_of = [ungrouped(cells, reading.thousands) for cells in cells_of]
            amounts, others = _amounts(cells_of)
            for (name, cells), own, texts in zip(block.columns.items(), amounts, others, strict=True):
                if name not in summaries:
                    summaries[name] = ColumnSummary(name, settings=reading.settings)
                summaries[name].add(block, cells, own, texts)
                summaries[name].foreign = block.others.get(name, "")
            progress(block.start)
    return list(summaries.values())


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


def _first_matching(cells: Column, pattern: str) -> str:
    matches = cells.filter(pc.fill_null(pc.match_substring_regex(cells, pattern), False))
    return matches[0].as_py() if len(matches) else ""
