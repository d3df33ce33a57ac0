"""A table as blocks of cells: a frame in memory, or CSV, also compressed, and Parquet, read in bounded memory.

A block has at most some thousand rows. Text is stripped of white space; text in `MISSING` counts as missing. All cells
of a CSV file are text; numbers of a Parquet file are numbers. Rows are counted from 1, the header being row 1 of a CSV
file, so that a row named in an error is the file's line (if no line is empty, and no cell holds a line end). A frame's
cells are those of its Parquet file.
"""

import csv
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, cast

from vfl.base.errors import ConfigError, one_line
from vfl.data.tables.arrow import ArrowInvalid, Column, pa, pa_csv, pc, pq

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "none", "?")
"""Texts that stand for a missing value."""
SEPARATORS = (",", ";", "\t", "|")
"""Possible separators of cells in a CSV file; the one most frequent in the header is used."""
BLOCK_BYTES = 4 << 20
"""Fewest bytes of a CSV file read at once."""
BLOCK_HEADERS = 32
"""Bytes of a CSV file read at once, in lengths of its header: a block of a wide table has more than a few rows."""
BLOCK_ROWS = 1 << 15
"""Rows of a Parquet file read at once."""
DIGITS = 18
"""Most decimal digits that always fit into int64."""
RAGGED = re.compile(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)")
"""Message of pyarrow for a row that has more or fewer cells than the header."""
JSON = re.compile(rb"(\xef\xbb\xbf)?\s*[\[{]\s*([\[{\"]|$)")
"""Start of the first line of JSON."""
COMPRESSED = re.compile(rb"(?P<gzip>\x1f\x8b)|(?P<bz2>BZh[1-9]1AY&SY)|(?P<zstd>\x28\xb5\x2f\xfd)")
"""First bytes of a CSV file in a compression that is read as it is."""
FOREIGN = {
    b"PK\x03\x04": "a ZIP or Excel file",
    b"\xd0\xcf\x11\xe0": "an old Excel file",
    b"\xff\xfe|\xfe\xff": "UTF-16 text",
    b"ORC[^\x00]*[\x00-\x08]": "an ORC file",
    b"ARROW1\x00": "an Arrow file",
    b"SQLite format 3": "an SQLite file",
    b"\xfd7zXZ": "an xz file; unpack it",
}
"""Unreadable formats by patterns of the first bytes of their files."""
STARTS = 16
"""First bytes of a file, by its format."""
SEPARATOR_LINE = re.compile(rb"(\xef\xbb\xbf)?sep=([,;\t|])\r?$")
"""First line of a file for Excel, above the header."""
QUOTED = re.compile(r'"[^"]*("|$)')
"""Text within quotes, where separators do not count."""


@dataclass(frozen=True, eq=False)
class FrameTable:
    """A table in memory, which readers take as they take a file."""

    name: str
    """Its name in errors."""
    table: Any
    """A pyarrow.Table; ``frame_table`` makes one."""

    def __str__(self) -> str:
        return self.name


TablePlace = Path | FrameTable
"""Where a table is; as text, its name in errors."""
Kept = Mapping[str, Collection[str]]
"""Words, by column, that do not count as missing there."""


class TableError(ConfigError):
    """Error about a table; the line names file, column and row."""


@dataclass(frozen=True, eq=False)
class Reading:
    """How an owner's cells are read, and what an error calls its settings."""

    missing: Sequence[str] = ()
    """Words that count as a missing value, as text or as the same number, beside `MISSING`."""
    kept: Kept = field(default_factory=dict[str, Collection[str]])
    thousands: str | None = None
    """The mark between thousands."""
    settings: str = "data.tables.OWNER"
    """The owner's settings, in the fix that an error proposes."""


PLAIN = Reading()


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table."""

    start: int
    """Row in the file of the block's first row."""
    columns: Mapping[str, Column]
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    """Types of columns that hold no cells of a table, such as lists; they are empty in ``columns``."""

    def row(self, index: int) -> int:
        """Return the row in the file of the block's row ``index``."""
        return self.start + index


@contextmanager
def open_blocks(
    path: TablePlace,
    columns: Sequence[str] | None = None,
    reading: Reading = PLAIN,
    numbers: Collection[str] = (),
) -> Generator[Iterator[Block]]:
    """Yield the table's blocks in order, with the given columns (None: all).

    Columns in ``numbers`` are float64 where the file allows it, and may be text elsewhere. Raises TableError for a file
    that does not exist, is not a table, lacks a column or has one twice.
    """
    kept = reading.kept
    try:
        # Blocks are read while the caller iterates: what pyarrow raises there is thrown in here, at this yield.
        if isinstance(path, FrameTable):
            blocks = _frame_blocks(path, columns, kept)
        elif (start := _first_bytes(path))[:4] == b"PAR1":
            blocks = _parquet_blocks(path, columns, kept)
        else:
            blocks = _csv_blocks(path, columns, start, set(numbers) - kept.keys(), kept)
        yield (_without(block, reading) for block in blocks) if reading.missing else blocks
    except (pa.ArrowException, csv.Error) as error:
        raise TableError(f"{path}: cannot be read ({one_line(error)[:200]})") from None
    except OSError as error:
        assert isinstance(path, Path)
        moved = f"if it was moved, name its new place, as {reading.settings}.file=FILE"
        where = f"; {moved if path.is_absolute() else f'the working folder is {Path.cwd()}'}"
        where = where if isinstance(error, FileNotFoundError) else ""
        raise TableError(f"{path}: cannot be read ({error.strerror or one_line(error)[:200]}{where})") from None


def _first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file. Raises TableError for what cannot be a table."""
    if path.is_dir():
        fix = (
            "write its parts as one file, as pyarrow.parquet.write_table(pyarrow.parquet.read_table(FOLDER), FILE) does"
        )
        raise TableError(f"{path}: cannot be read: it is a folder; {fix}")
    if path.exists() and not path.is_file():  # a pipe gives its rows once, and blocks whoever asks again
        raise TableError(f"{path}: is no regular file, and it is read more than once; write it to a file first")
    with path.open("rb") as file:
        start = file.read(STARTS)
    for mark, what in FOREIGN.items():
        if re.match(mark, start):
            fix = "" if ";" in what else "; save it as CSV in UTF-8, or as Parquet"
            raise TableError(f"{path}: is {what}{fix}")
    return start


def _without(block: Block, reading: Reading) -> Block:
    amounts = pa.array([float(word) for word in reading.missing if is_number(word)], pa.float64())

    def blanked(name: str, cells: Column) -> Column:
        if pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type):
            is_missing = pc.is_in(pc.cast(cells, pa.float64(), safe=False), value_set=amounts)
        else:
            words = {word for word in reading.missing if word not in reading.kept.get(name, ())}
            words |= {f"{word}.0" for word in words if word.removeprefix("-").isdigit()}
            is_missing = pc.is_in(pc.cast(cells, pa.string()), value_set=pa.array(sorted(words), pa.string()))
        return pc.if_else(is_missing, None, cells)

    return Block(block.start, {name: blanked(name, cells) for name, cells in block.columns.items()}, block.others)


def column_names(path: TablePlace, reading: Reading = PLAIN) -> list[str]:
    """Return the names of all columns in their order. Raises TableError as ``open_blocks``."""
    with open_blocks(path, reading=reading) as blocks:
        return list(next(blocks).columns)


def why_missing(path: TablePlace | str, name: str, row: int, settings: str) -> str:
    """Return that a row's cell is missing; if a word stands there, which one, and the setting that keeps it.

    Rows that came by the setting ``path`` are not read again.
    """
    if isinstance(path, str):
        return "is missing"
    with open_blocks(path, [name], Reading(kept={name: MISSING[1:]})) as blocks:
        for block in blocks:
            if block.start <= row < block.row(len(block.columns[name])):
                word = block.columns[name][row - block.start].as_py()
                if word not in MISSING:
                    break
                keep = f"{settings}.not_missing: {{{name}: [{word!r}]}}"
                return f"is missing, as {word!r} counts as missing; if it is a value, set {keep}"
    return "is missing"


def _parquet_blocks(path: Path, columns: Sequence[str] | None, kept: Kept) -> Iterator[Block]:
    with pq.ParquetFile(path) as file:

        def batches(names: Sequence[str]) -> Iterable[tuple[int, Sequence[Column]]]:
            return ((batch.num_rows, batch.columns) for batch in file.iter_batches(BLOCK_ROWS, columns=names))

        yield from _typed_blocks(path, file.schema_arrow, file.metadata.num_rows, batches, columns, kept)


def _frame_blocks(frame: FrameTable, columns: Sequence[str] | None, kept: Kept) -> Iterator[Block]:
    def batches(names: Sequence[str]) -> Iterable[tuple[int, Sequence[Column]]]:
        count = frame.table.num_rows
        for start in range(0, count, BLOCK_ROWS):  # a file's blocks; only one is copied at a time
            rows = frame.table.slice(start, BLOCK_ROWS)
            columns = [_as_in_parquet(rows.column(name).combine_chunks()) for name in names]
            yield min(BLOCK_ROWS, count - start), columns

    return _typed_blocks(frame, frame.table.schema, frame.table.num_rows, batches, columns, kept)


def _as_in_parquet(cells: Column) -> Column:
    """Return cells in the type of a Parquet file, which has no seconds: their text has another length there."""
    kind = cells.type
    if pa.types.is_date64(kind):
        return pc.cast(cells, pa.date32())
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        return pc.cast(cells, pa.timestamp("ms", kind.tz))
    return pc.cast(cells, pa.time32("ms")) if kind == pa.time32("s") else cells


def _typed_blocks(
    where: TablePlace,
    schema: Any,
    rows: int,
    batches: Callable[[Sequence[str]], Iterable[tuple[int, Sequence[Column]]]],
    columns: Sequence[str] | None,
    kept: Kept,
) -> Iterator[Block]:
    """Yield the blocks of a table whose columns have types; ``batches`` yields the rows and some columns of each."""
    _check_names(where, schema.names)
    wanted = _wanted(where, schema.names, columns)
    if rows == 0:
        raise TableError(f"{where}: holds no row")
    # Asked for by name, they are refused below.
    kinds = {name: schema.field(name).type for name in wanted} if columns is None else {}
    others = {name: str(kind) for name, kind in kinds.items() if _is_foreign(kind)}
    read = [name for name in wanted if name not in others]
    row = 1
    for count, held in batches(read):
        cells = dict.fromkeys(wanted, pa.nulls(count))
        cells |= {name: plain(where, name, each, kept.get(name, ())) for name, each in zip(read, held, strict=True)}
        yield Block(row, cells, others)
        row += count


def block_of(where: str, rows: Any, columns: Sequence[str], reading: Reading) -> Block:
    """Return the columns of an Arrow table as a block, as those of a Parquet file with the same rows.

    Errors begin with ``where``. Raises TableError.
    """
    kept = reading.kept
    _check_names(where, rows.column_names)
    cells = {name: rows.column(name).combine_chunks() for name in _wanted(where, rows.column_names, columns)}
    block = Block(1, {name: plain(where, name, each, kept.get(name, ())) for name, each in cells.items()})
    return _without(block, reading) if reading.missing else block


def plain(path: TablePlace | str, name: str, cells: Column, kept: Collection[str] = ()) -> Column:
    """Return numbers unchanged, with NaN as missing, and everything else as text; ``kept`` words are not missing."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if pa.types.is_decimal(cells.type):
        cells = _of_decimals(cells)
    elif pa.types.is_float16(cells.type):  # half precision cannot be compared
        cells = pc.cast(cells, pa.float64())
    kind = cells.type
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(cells), None, cells)  # a cell that is missing stays so: is_nan(null) is null
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return cells
    if _is_foreign(kind):
        raise TableError(f"{path}: column {name!r} holds {kind}; a column holds numbers, text, dates or booleans")
    return _text(cells, kept)


def _is_foreign(kind: Any) -> bool:
    return pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _of_decimals(cells: Column) -> Column:
    """Return whole numbers by all of their digits, as a key needs them, and others as the floats of their text."""
    text = pc.cast(cells, pa.string())  # pyarrow 26 does not cast decimal32 to int64
    if cells.type.scale != 0:
        return pc.cast(text, pa.float64())  # its own cast makes 21.330000000000002 of 21.33
    return pc.cast(text, pa.int64()) if cells.type.precision <= DIGITS else text


def _csv_blocks(
    path: Path, columns: Sequence[str] | None, start: bytes, numbers: Collection[str], kept: Kept
) -> Iterator[Block]:
    found = COMPRESSED.match(start)
    compression = found.lastgroup if found else None
    header = _read_header(path, compression)
    read = pa_csv.ReadOptions(
        use_threads=False,  # threads do not count rows
        block_size=max(BLOCK_BYTES, BLOCK_HEADERS * len(header.line)),
        skip_rows=header.above,
    )
    # No invalid_row_handler: pyarrow's thread that would call it may outlive the interpreter, which aborts the process.
    parse = pa_csv.ParseOptions(delimiter=header.separator, newlines_in_values=True, ignore_empty_lines=True)
    wanted, done = _wanted(path, [*header.names], columns), 0
    try:
        for parsed in (numbers, ()):
            # All else as bytes: pyarrow would not say in which row text is not UTF-8.
            types = {header.names[name]: pa.float64() if name in parsed else pa.binary() for name in wanted}
            convert = pa_csv.ConvertOptions(column_types=types, include_columns=[*types], null_values=MISSING)
            try:
                with pa.input_stream(str(path), compression=compression) as stream:
                    reader = pa_csv.open_csv(stream, read, parse, convert)
                    for block in islice(_csv_rows(path, reader, wanted, parsed, kept, 2 + header.above), done, None):
                        yield block
                        done += 1
                return
            except ArrowInvalid as error:
                if RAGGED.match(str(error)) or not parsed:
                    raise
            # A cell is no number, or has to be stripped first: from its block on, which is the same bytes in a second
            # reading, all cells are text. So errors can name cell and row.
    except ArrowInvalid as error:
        if "straddling object" in str(error):
            long = f"a row is longer than {read.block_size >> 20} MB"
            raise TableError(f"{path}: {long}; is a quote left open? else shorten the cell") from None
        if not (ragged := RAGGED.match(str(error))):
            raise
        what = f"row {ragged[1]} has {ragged[3]} cells instead of {ragged[2]}"
        more = int(ragged[2]) == 1 < int(ragged[3])
        first = f"; is its first line, {header.line.strip()[:40]!r}, no header? remove what is above it" if more else ""
        raise TableError(f"{path}: {what}{first}") from None


def _csv_rows(
    path: Path, reader: Any, wanted: Sequence[str], numbers: Collection[str], kept: Kept, first: int
) -> Iterator[Block]:
    row = first
    texts = [name for name in wanted if name not in numbers and name not in kept]
    groups = [([name], kept[name]) for name in wanted if name in kept] if kept else []
    for batch in reader:
        if batch.num_rows:
            cells = dict(zip(wanted, batch.columns, strict=True))
            for names, words in ((texts, ()), *groups):
                _decode(path, cells, names, row, words)
            yield Block(row, cells)
        row += batch.num_rows
    if row == first:
        raise TableError(f"{path}: holds no row below its header")


@dataclass(frozen=True)
class Header:
    """The header of a CSV file."""

    line: str
    separator: str
    above: int
    """Number of lines above it."""
    names: Mapping[str, str]
    """The columns' names as the header writes them, by the names stripped of white space."""


def _read_header(path: Path, compression: str | None) -> Header:
    """Return the header. Raises TableError for an empty file, a header that is not UTF-8, and wrong names."""
    with pa.input_stream(str(path), compression=compression) as stream:
        start: bytes = stream.read(BLOCK_BYTES)
        while b"\n" not in start and (more := stream.read(BLOCK_BYTES)):
            start += more
    line, *lines = start.split(b"\n", 3)
    named = SEPARATOR_LINE.match(line)
    if named:
        line, *lines = lines or [b""]
    if not line.strip():
        raise TableError(f"{path}: is empty, or its first line is; it needs a header and a row per sample")
    if b"\x00" in line:
        raise TableError(f"{path}: is no table: its first line holds bytes that are no text")
    if JSON.match(line):
        raise TableError(f"{path}: is JSON; save it as CSV in UTF-8, or as Parquet")
    try:
        header = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TableError(f"{path}: row 1, the header, is not UTF-8 text; convert the file") from None
    separator = named[2].decode() if named else _find_separator(header, lines[0] if lines else b"")
    above, text = 1 if named else 0, TextIOWrapper(BytesIO(start), "utf-8-sig", "replace", newline="")
    rows: Iterator[list[str]] = csv.reader(islice(cast(Iterable[str], text), above, None), delimiter=separator)
    raw = next(row for row in rows if row)  # pyarrow would guess each column's type, too
    names = [*map(str.strip, raw)]
    _check_names(path, names)
    return Header(header, separator, above, dict(zip(names, raw, strict=True)))


def _find_separator(header: str, below: bytes) -> str:
    """Return the separator of cells. Names may hold other ones: the cells of the next row are as many."""
    above = QUOTED.sub("", header)
    row = QUOTED.sub("", below.decode("utf-8", "replace"))
    agreed = [each for each in SEPARATORS if 0 < above.count(each) == row.count(each)]
    return max(agreed or SEPARATORS, key=above.count)


def _check_names(path: TablePlace | str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for position, name in enumerate(names, start=1):
        if not name.strip():
            raise TableError(f"{path}: column {position} has no name in the header")
        if name in seen:
            raise TableError(f"{path}: the header names {name!r} twice")
        seen.add(name)


def _wanted(path: TablePlace | str, names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(names)
    known = set(names)
    for name in columns:
        if name not in known:
            header = "; does the file have a header?" if any(map(is_number, names)) else ""
            header = "; is its first line no header? remove what is above it" if len(names) == 1 else header
            raise TableError(f"{path}: has no column {name!r}; it has {', '.join(names[:12])}{header}")
    return list(dict.fromkeys(columns))  # a column of a key may be a feature as well, or in two keys


def _text(cells: Column, kept: Collection[str]) -> Column:
    """Return cells as text stripped of white space; None for a missing value."""
    words = [word for word in MISSING if word not in kept] if kept else MISSING
    text = pc.utf8_trim_whitespace(pc.cast(cells, pa.string()))
    return pc.if_else(pc.is_in(text, value_set=pa.array(words, pa.string())), None, text)


def _decode(path: Path, cells: dict[str, Column], names: Sequence[str], row: int, kept: Collection[str]) -> None:
    """Turn a block's columns of bytes into text, as one: each call costs as much as some hundred cells."""
    if not names:
        return
    columns = [*map(cells.__getitem__, names)]
    rows = len(columns[0])
    try:
        text = _text(pa.concat_arrays(columns), kept)
    except ArrowInvalid:
        for name, column in zip(names, columns, strict=True):
            for index, cell in enumerate(column.to_pylist()):
                try:
                    (cell or b"").decode()
                except UnicodeDecodeError:
                    raise TableError(
                        f"{path}: column {name!r}, row {row + index}: is not UTF-8 text; convert the file"
                    ) from None
        raise
    for position, name in enumerate(names):
        cells[name] = text.slice(rows * position, rows)


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
