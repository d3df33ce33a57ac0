"""The columns that are used of a table, in memory: numbers, categories and keys, each in one compact form.

Shapes: N rows in the file's order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vfl.data.tables.arrow import ArrowInvalid, Column, pa, pc
from vfl.data.tables.cells import Block, TableError, open_blocks

ColumnKind = Literal["number", "category", "ignore"]
KEY_SEPARATOR = "\x1f"
"""Between the columns of a key: ASCII's unit separator, which no key may hold."""
LARGEST = 1e30
"""Amount of a number: its square, and so a column's variance, stays a number."""
CONTROL = r"[\x00-\x1f]"
NOTIFY_ROWS = 1 << 18
"""Between two calls of a reader's ``progress``."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """A column of numbers: float64 [N], NaN where there is none."""

    values: npt.NDArray[np.float64]

    def take(self, rows: npt.NDArray[np.int64]) -> "Numbers":
        """Return some rows, in the order given."""
        return Numbers(self.values[rows])


@dataclass(frozen=True, eq=False)
class Categories:
    """A column of categories: int32 [N], places in ``names``; -1 where there is none."""

    codes: npt.NDArray[np.int32]
    names: tuple[str, ...]

    def take(self, rows: npt.NDArray[np.int64]) -> "Categories":
        """Return some rows, in the order given."""
        return Categories(self.codes[rows], self.names)


@dataclass(frozen=True, eq=False)
class Table:
    """What one owner holds."""

    path: Path
    columns: Mapping[str, Numbers | Categories]
    """By name, in the order of the owner's list."""
    keys: Mapping[tuple[str, ...], Column]
    """Text [N] by the columns of a key, as ``key_text`` makes it: the owner's own and those of other owners."""
    rows: npt.NDArray[np.int64]
    """Row in the file of each row, for errors."""


def read_table(
    path: Path,
    kinds: Mapping[str, ColumnKind],
    keys: Sequence[tuple[str, ...]],
    progress: Callable[[int], None] = lambda rows: None,
) -> Table:
    """Read the columns that are not ignored, and the keys. ``progress`` is called with the rows read so far.

    Memory: 8 bytes per number, 4 per category and the text of the keys, for each row. Raises TableError.
    """
    used = {name: kind for name, kind in kinds.items() if kind != "ignore"}
    readers = {
        name: _NumberReader(path, name) if kind == "number" else _CategoryReader(path, name)
        for name, kind in used.items()
    }
    parts: dict[tuple[str, ...], list[Column]] = {key: [] for key in keys}
    starts: list[tuple[int, int]] = []
    told = 0
    with open_blocks(path, [*used, *(name for key in keys for name in key)]) as blocks:
        for block in blocks:
            for name, reader in readers.items():
                reader.read(block, block.columns[name])
            for key, texts in parts.items():
                texts.append(key_text(path, block, key))
            length = len(next(iter(block.columns.values())))
            starts.append((block.start, length))
            if block.start + length >= told + NOTIFY_ROWS:
                told = block.start + length
                progress(told)
    columns = {name: readers[name].column() for name in used}
    joined = {key: pa.chunked_array(texts).combine_chunks() for key, texts in parts.items()}
    return Table(path, columns, joined, np.concatenate([np.arange(start, start + n) for start, n in starts]))


class _NumberReader:
    """Collects a column of numbers."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.parts: list[npt.NDArray[np.float64]] = []

    def read(self, block: Block, cells: Column) -> None:
        """Take a block. Raises TableError for text that is no number, and for infinity."""
        try:
            values = pc.cast(cells, pa.float64())
        except ArrowInvalid:
            raise self._no_number(block, cells) from None
        numbers = np.asarray(pc.fill_null(values, float("nan")))
        too_large = np.abs(numbers) > LARGEST
        if too_large.any():
            first = int(too_large.argmax())
            where = f"{self.path}: column {self.name!r}, row {block.row(first)}"
            raise TableError(f"{where}: {numbers[first]:g} is infinite or too large; leave it empty or mend it")
        self.parts.append(numbers)

    def column(self) -> Numbers:
        """Return all of it."""
        values = np.concatenate(self.parts)
        self.parts.clear()
        return Numbers(values)

    def _no_number(self, block: Block, cells: Column) -> TableError:
        for index, cell in enumerate(cells.to_pylist()):
            if cell is not None and not _casts(cell):
                where = f"{self.path}: column {self.name!r}, row {block.row(index)}"
                if cell == self.name:
                    return TableError(f"{where}: repeats the header; remove the row")
                return TableError(f"{where}: {cell[:40]!r} is no number; mend it, or make the column a category")
        raise AssertionError("pyarrow refused a column of numbers")


class _CategoryReader:
    """Collects a column of categories; of a name that comes again only its place is kept."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.places: dict[str, int] = {}
        self.parts: list[npt.NDArray[np.int32]] = []

    def read(self, block: Block, cells: Column) -> None:
        """Take a block; numbers are categories by their text. Raises TableError for a name of several lines."""
        encoded = as_text(cells).dictionary_encode()
        for index, name in enumerate(encoded.dictionary.to_pylist()):
            if "\n" in name:
                row = block.row(encoded.indices.index(index).as_py())
                raise TableError(
                    f"{self.path}: column {self.name!r}, row {row}: holds a line end; is a quote left open?"
                )
        places = [self.places.setdefault(name, len(self.places)) for name in encoded.dictionary.to_pylist()]
        indices = np.asarray(pc.fill_null(encoded.indices, -1))
        self.parts.append(np.append(np.array(places, np.int32), np.int32(-1))[indices])

    def column(self) -> Categories:
        """Return all of it."""
        return Categories(np.concatenate(self.parts), tuple(self.places))


def as_text(cells: Column) -> Column:
    """Return cells as text: whole numbers without a point, also where the file holds them as floating point."""
    if pa.types.is_floating(cells.type):
        whole = pc.cast(cells, pa.int64(), safe=False)
        exact = pc.equal(pc.cast(whole, cells.type), cells)
        return pc.if_else(exact, pc.cast(whole, pa.string()), pc.cast(cells, pa.string()))
    return pc.cast(cells, pa.string())


def key_text(path: Path, block: Block, key: tuple[str, ...]) -> Column:
    """Return the keys of a block as text [rows]: what is compared byte for byte.

    A key is text without the white space around it, in Unicode's form NFC; a whole number is its decimal digits.
    Several columns are joined by `KEY_SEPARATOR`. Raises TableError for a key that is missing or neither of both.
    """
    parts: list[Any] = []
    for name in key:
        cells = block.columns[name]
        where = f"{path}: key column {name!r}"
        if pa.types.is_floating(cells.type):
            raise TableError(f"{where}: holds {cells.type}; a key is text or whole numbers")
        text = pc.utf8_normalize(pc.cast(cells, pa.string()), form="NFC")
        if text.null_count:
            row = block.row(text.is_null().to_pylist().index(True))
            raise TableError(f"{where}, row {row}: is missing; every row needs its key")
        if pc.any(pc.match_substring_regex(text, CONTROL)).as_py():
            row = block.row(pc.match_substring_regex(text, CONTROL).index(True).as_py())
            raise TableError(f"{where}, row {row}: holds a line end or control character; is a quote left open?")
        parts.append(text)
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, KEY_SEPARATOR)


def _casts(cell: object) -> bool:
    try:
        pc.cast(pa.array([cell]), pa.float64())
    except ArrowInvalid:
        return False
    return True
