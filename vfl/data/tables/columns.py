"""The used columns of a table in memory: numbers, categories and keys, each in one compact form.

Shapes: N rows in the file's order.
"""

import hashlib
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from vfl.config.tables import ColumnKind, TableConfig
from vfl.data.tables.arrow import ArrowInvalid, Column, pa, pc
from vfl.data.tables.cells import (
    MISSING,
    PLAIN,
    Block,
    Reading,
    TableError,
    TablePlace,
    column_names,
    open_blocks,
    why_missing,
)

KEY_SEPARATOR = "\x1f"
"""Separator of the columns of a key: ASCII's unit separator, which no key may contain."""
LARGEST = 1e30
"""Largest magnitude of a number; its square, and so a column's variance, stays finite."""
WRITTEN = (
    r"^[+-]?[\d. ]*\d,\d+$|^[+-]?\d{1,3}([,'’]\d{3})+(\.\d+)?$"
    r"|^[+-]?[$€£¥] ?[+-]?\d[\d.,'’ ]*$|^[+-]?\d[\d.,'’ ]*[$€£¥%]$"
)
"""Numbers as people write them: 1.234,5 or 17'396.99 or $12.50."""
GROUPED = r"^[+-]?\d{1,3}(%s\d{3})+(\.\d+)?$"
"""A number with a mark between its thousands."""
CONTROL = r"[\x00-\x1f]"
TIME = r"^(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.0+|(\.\d*[1-9])0+)(Z?)$"
"""A time whose fraction of a second ends with zeros: the unit in which a file holds it, and no part of a key."""
_TIME = re.compile(TIME, re.ASCII)
NOTIFY_ROWS = 1 << 18
"""Rows between two calls of a reader's ``progress``."""

Indices = npt.NDArray[np.int64]
SPLIT, VALIDATION = "table_split", "table_validation"
"""Purposes of the draws of test and of validation samples."""
SHOWN = 3
"""Most keys that an error names."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """A column of numbers: float64 [N], NaN if missing."""

    values: npt.NDArray[np.float64]

    def take(self, kept: npt.NDArray[np.bool_]) -> "Numbers":
        """Return the cells of some rows, bool [N]."""
        return Numbers(self.values[kept])


@dataclass(frozen=True, eq=False)
class Categories:
    """A column of categories: int32 [N], indices into ``names``; -1 if missing."""

    codes: npt.NDArray[np.int32]
    names: tuple[str, ...]

    def take(self, kept: npt.NDArray[np.bool_]) -> "Categories":
        """Return the cells of some rows, bool [N]."""
        return Categories(self.codes[kept], self.names)


@dataclass(frozen=True, eq=False)
class Table:
    """The used columns of one owner's table."""

    path: TablePlace | str
    """Where its rows are, or the setting by which they came."""
    columns: dict[str, Numbers | Categories]
    """Columns by name, in the order of the owner's list; `raw_samples` takes them out."""
    keys: Mapping[tuple[str, ...], Column]
    """Text [N] by the columns of a key, as ``key_text`` returns it: the owner's own key and those of other owners."""
    row_numbers: npt.NDArray[np.int64]
    """Number in the file of each row, for errors."""
    settings: str = PLAIN.settings
    """`Reading.settings` of its owner."""

    def counted(self, weight: str) -> "Table":
        """Return the table without rows that the column ``weight`` leaves out: those whose weight is 0.

        Raises TableError if it leaves out all.
        """
        kept = cast(Numbers, self.columns[weight]).values != 0
        if kept.all():
            return self
        if not kept.any():
            raise TableError(f"{self.path}: weight column {weight!r}: is 0 in all rows, which leaves all of them out")
        columns = {name: each.take(kept) for name, each in self.columns.items()}
        return replace(
            self,
            columns=columns,
            keys={key: text.filter(pa.array(kept)) for key, text in self.keys.items()},
            row_numbers=self.row_numbers[kept],
        )


def read_table(
    path: TablePlace,
    kinds: Mapping[str, ColumnKind],
    keys: Sequence[tuple[str, ...]],
    reading: Reading = PLAIN,
    progress: Callable[[int], None] = lambda rows: None,
) -> Table:
    """Read the columns that are not ignored, and the keys. ``progress`` is called with the rows read so far.

    Memory: 8 bytes per number, 4 per category and the text of the keys, for each row. Raises TableError.
    """
    used: dict[str, ColumnKind] = {name: kind for name, kind in kinds.items() if kind != "ignore"}
    keyed = [*chain.from_iterable(keys)]
    numbers = {name for name, kind in used.items() if kind == "number" and name not in keyed}
    with open_blocks(path, [*used, *keyed], reading, numbers) as blocks:
        table = table_of_blocks(path, blocks, used, keys, reading, progress)
    pa.default_memory_pool().release_unused()
    return table


def table_of_blocks(
    where: TablePlace | str,
    blocks: Iterable[Block],
    kinds: Mapping[str, ColumnKind],
    keys: Sequence[tuple[str, ...]],
    reading: Reading,
    progress: Callable[[int], None] = lambda rows: None,
) -> Table:
    """Return the columns of ``kinds`` and the keys in some blocks, as ``read_table`` does.

    Errors begin with ``where``, the file or a setting.
    """
    cells: dict[str, npt.NDArray[Any]] = {}
    # Of a category, its code by column. It grows from block to block, so that a name has one code in all of them.
    places = defaultdict[str, dict[str, int]](dict)
    texts = defaultdict[tuple[str, ...], list[Column]](list)
    rows: list[npt.NDArray[np.int64]] = []
    reported_rows = count = 0
    for block in blocks:
        for name, kind in kinds.items():
            at, number = f"{where}: column {name!r}", kind == "number"
            more = _numbers(at, block, name, reading) if number else _codes(at, block, name, places[name])
            cells[name] = _append(cells.get(name, more[:0]), count, more)
        for key in keys:
            texts[key].append(key_text(where, block, key, reading.settings))
        rows.append(block.start + np.arange(len(next(iter(block.columns.values())))))
        count += len(rows[-1])
        if rows[-1][-1] >= reported_rows + NOTIFY_ROWS:
            reported_rows = int(rows[-1][-1])
            progress(reported_rows)
    columns: dict[str, Numbers | Categories] = {}
    for name, kind in kinds.items():
        values = cells[name][:count]
        columns[name] = Numbers(values) if kind == "number" else Categories(values, tuple(places[name]))
    joined = {key: pa.chunked_array(texts[key]).combine_chunks() for key in keys}
    return Table(where, columns, joined, np.concatenate(rows), reading.settings)


def _append(held: npt.NDArray[Any], rows: int, more: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array with the first ``rows`` cells of one, then ``more``, and behind them room for others.

    Room takes no memory before it is written, and only one column at a time is held twice.
    """
    if rows + len(more) > len(held):
        held, before = np.empty(max(2 * len(held), rows + len(more)), more.dtype), held
        held[:rows] = before[:rows]
    held[rows : rows + len(more)] = more
    return held


def ungrouped(cells: Column, thousands: str) -> Column:
    """Return texts in which numbers have no ``thousands``, the mark between their thousands."""
    if not pa.types.is_string(cells.type):
        return cells
    grouped = pc.match_substring_regex(cells, GROUPED % thousands)
    return pc.if_else(grouped, pc.replace_substring(cells, thousands, ""), cells)


def _numbers(where: str, block: Block, name: str, reading: Reading) -> npt.NDArray[np.float64]:
    """Return a block's numbers. Raises TableError for text that is not a number, and for infinity."""
    cells = block.columns[name]
    if reading.thousands is not None:
        cells = ungrouped(cells, reading.thousands)
    try:
        values = pc.cast(cells, pa.float64(), safe=False)  # the nearest float for a whole number of many digits
    except ArrowInvalid:
        raise _no_number(where, block, name, cells, reading.settings) from None
    numbers = values.to_numpy(zero_copy_only=False)  # NaN where missing
    too_large = np.abs(numbers) > LARGEST
    if too_large.any():
        first = int(too_large.argmax())
        what = f"{numbers[first]:g} is infinite or too large; leave it empty or mend it"
        raise TableError(f"{where}, row {block.row(first)}: {what}")
    return numbers


def _no_number(where: str, block: Block, name: str, cells: Column, settings: str) -> TableError:
    index, cell = next(each for each in enumerate(cells.to_pylist()) if not _casts(each[1]))
    where = f"{where}, row {block.row(index)}"
    if cell == name:
        return TableError(f"{where}: repeats the header; remove the row")
    if re.match(WRITTEN, cell):  # not to be taken as missing: such cells are a column's largest values
        mark = next((each for each in ",'" if re.match(GROUPED % each, cell)), None)
        out = "" if mark is None else f", or set {settings}.thousands={json.dumps(mark)}"
        return TableError(f"{where}: {cell[:40]!r} is no number; write only digits and a decimal point: 1234.5{out}")
    return TableError(
        f"{where}: {cell[:40]!r} is no number; name it under {settings}.missing, or make the column a category or "
        "ignore"
    )


def _casts(cell: str | None) -> bool:
    try:
        pc.cast(pa.array([cell], pa.string()), pa.float64())
    except ArrowInvalid:
        return False
    return True


def _codes(where: str, block: Block, name: str, places: dict[str, int]) -> npt.NDArray[np.int32]:
    """Return a block's categories as indices into the names so far, which grow; numbers are categories by their text.

    Raises TableError for a name with line ends.
    """
    encoded = as_text(block.columns[name]).dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    for index, each in enumerate(names):
        if "\n" in each:
            row = block.row(encoded.indices.index(index).as_py())
            raise TableError(
                f"{where}, row {row}: holds a line end; is a quote left open? else write it without, or ignore the "
                "column"
            )
    of_name = [places.setdefault(each, len(places)) for each in names]
    indices = np.asarray(pc.fill_null(encoded.indices, -1))
    # Index -1 of a missing cell picks the last element, which is the appended -1.
    return np.append(np.array(of_name, np.int32), np.int32(-1))[indices]


def as_text(cells: Column) -> Column:
    """Return cells as text; whole numbers have no decimal point, even if the file holds floating point."""
    if pa.types.is_floating(cells.type):
        whole = pc.cast(cells, pa.int64(), safe=False)
        exact = pc.equal(pc.cast(whole, cells.type, safe=False), cells)  # false for fractions and overflows
        return pc.if_else(exact, pc.cast(whole, pa.string()), pc.cast(cells, pa.string()))
    return pc.cast(cells, pa.string())


def _refuse_rounded(where: str, block: Block, cells: Column) -> None:
    """Raise TableError for a number that is not whole, or may be another one's rounding: one row's key, then two's."""
    bits = 24 if cells.type.bit_width == 32 else 53
    doubtful = pc.or_(pc.greater_equal(pc.abs(cells), 2.0**bits), pc.not_equal(pc.trunc(cells), cells))
    if pc.any(doubtful).as_py():
        index = doubtful.index(True).as_py()
        what = f"{cells[index].as_py()!r} is no whole number below 2**{bits}, to which {cells.type} is exact"
        raise TableError(f"{where}, row {block.row(index)}: {what}; write keys as text or int64")


def key_text(path: TablePlace | str, block: Block, key: tuple[str, ...], settings: str = PLAIN.settings) -> Column:
    """Return the keys of a block as text [rows], which are compared byte for byte.

    A key is text stripped of white space, in Unicode's form NFC; a whole number is its decimal digits, also one held as
    floating point if no other is rounded to it; a time has no zeros at the end of its fraction. Several columns are
    joined by `KEY_SEPARATOR`. Raises TableError for a key that is missing or neither text nor a whole number.
    """
    parts: list[Any] = []
    for name in key:
        cells = block.columns[name]
        where = f"{path}: key column {name!r}"
        if pa.types.is_floating(cells.type):
            _refuse_rounded(where, block, cells)
        text = pc.utf8_normalize(as_text(cells), form="NFC")  # é is one code point or two
        if text.null_count:
            row = block.row(text.is_null().to_pylist().index(True))
            why = why_missing(path, name, row, settings)
            raise TableError(f"{where}, row {row}: {why}; every row needs its key")
        # Separators are control characters: without any in the cells, two different keys never give one text.
        if pc.any(pc.match_substring_regex(text, CONTROL)).as_py():
            row = block.row(pc.match_substring_regex(text, CONTROL).index(True).as_py())
            raise TableError(f"{where}, row {row}: holds a line end or control character; is a quote left open?")
        parts.append(pc.replace_substring_regex(text, TIME, r"\1\2\3"))
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, KEY_SEPARATOR)


def key_cell(cell: str) -> str:
    """Return a cell of a key that comes from elsewhere as ``key_text`` has it, where no cell is a missing one."""
    return _TIME.sub(r"\1\2\3", unicodedata.normalize("NFC", cell.strip()))


def read_test_keys(path: TablePlace, key: tuple[str, ...]) -> Column:
    """Read the keys of the test samples from a table with the ``key`` columns, or with as many others and no more.

    Raises TableError.
    """
    names = column_names(path)
    if not set(key) <= set(names) and len(names) == len(key):
        key = tuple(names)
    # Every word is kept: whether it is a key is said by the table that has it.
    return read_table(path, {}, [key], Reading(kept=dict.fromkeys(key, MISSING[1:]))).keys[key]


def test_groups(groups: npt.NDArray[np.str_], share: float, seed: int, purpose: str) -> npt.NDArray[np.bool_]:
    """Return a seeded mask, bool [N], of whole groups that hold at least ``share`` of N samples; not all groups.

    A group's place in the draw depends only on its name, so that owners who hold the same groups agree without
    exchange. Raises TableError for fewer than two groups.
    """
    names, codes = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        raise TableError(f"data.group: all {len(groups)} samples are of one group; name another column")
    marks = [hashlib.blake2b(f"{seed} {purpose} {name}".encode()).digest() for name in names]
    order = np.array(sorted(range(len(names)), key=marks.__getitem__))
    held = np.cumsum(np.bincount(codes)[order])
    wanted = min(int(np.searchsorted(held, share * len(groups))) + 1, len(names) - 1)
    return np.isin(codes, order[:wanted])


def groups_of(table: Table, column: str, rows: Indices) -> npt.NDArray[np.str_]:
    """Return the group of some rows, text [n]."""
    return np.array(table.keys[column,].take(pa.array(rows)).to_pylist(), str)


def tested_rows(table: Table, key: tuple[str, ...], path: TablePlace) -> Indices:
    """Return the rows of a table whose keys the test file lists, ascending. Raises TableError."""
    return np.flatnonzero(np.asarray(pc.is_in(table.keys[key], value_set=read_test_keys(path, key))))


def key_cells(keys: Column) -> list[list[str]]:
    """Return the columns' texts of each key."""
    return [key.split(KEY_SEPARATOR) for key in keys.to_pylist()]


def key_of(config: TableConfig) -> tuple[str, ...]:
    """Return the columns of an owner's own key."""
    assert config.key is not None
    return config.key


def keys_of(config: TableConfig, owners: Collection[str]) -> list[tuple[str, ...]]:
    """Return the columns of all keys in an owner's table: its own, and those by which ``owners`` know its rows."""
    foreign = [key for other, key in config.keys.items() if other in owners]
    return list(dict.fromkeys((key_of(config), *foreign)))


def unique_rows(table: Table, config: TableConfig) -> Indices:
    """Return the first row of each key, ascending. Raises TableError for duplicates if the settings refuse them."""
    codes = np.asarray(table.keys[key_of(config)].dictionary_encode().indices)
    _, first = np.unique(codes, return_index=True)  # in the order of the codes; sorted again by row at the end
    if len(first) < len(codes) and config.duplicates == "refuse":
        doubled = np.setdiff1d(np.arange(len(codes)), first)[:SHOWN]
        which = examples(table.keys[key_of(config)].take(pa.array(doubled)))
        where = ", ".join(str(table.row_numbers[row]) for row in doubled)
        raise TableError(
            f"{table.path}: column {', '.join(key_of(config))}: {len(codes) - len(first)} rows repeat a key: {which} "
            f"in row {where}; remove them, or set {table.settings}.duplicates=first"
        )
    return np.sort(first)


def examples(keys: Column) -> str:
    """Return the first few keys, for an error."""
    return ", ".join(repr(" ".join(cells)) for cells in key_cells(keys.slice(0, SHOWN)))
