"""Where an owner's table is: in its file, in this program's memory, or in the answer of its query.

Settings name files. A program that holds a table itself, as an estimator does, keeps it here under the name of a file
that need not exist: whatever opens the run in this process then reads the table, and nothing is written.

The answer of a query is written once, as a private Parquet file. A table is read several times (types, keys, columns),
and a query asked again may answer differently: so all readers see one answer, and the same rows give the same bits as
their Parquet file.
"""
# pyright: reportMissingTypeStubs=false

import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vfl.config.tables import TableConfig
from vfl.data.tables.arrow import pa, pq
from vfl.data.tables.cells import FrameTable, TableError, TablePlace
from vfl.data.tables.database import connected, reporting
from vfl.data.tables.frames import plain_type

MOST_LATEST = 64
"""Answers that are kept although nobody has their settings any more: somebody may still read a file by its name."""

_HELD: dict[Path | int, TablePlace] = {}
"""Tables of this process, by the file that settings name in their place or, of an answer, by its settings' identity. A
file of an answer goes with its settings, or as the process ends."""
_LATEST = deque[TableConfig](maxlen=MOST_LATEST)


def locate_table(owner: str, config: TableConfig) -> TablePlace:
    """Return an owner's table. Raises ValueError if file or key is missing, or the database does not answer."""
    if config.query is not None and config.key is not None:
        return rows_of_query(owner, config)
    if config.file is None or config.key is None:
        raise ValueError(f"data.tables.{owner}.{'file' if config.file is None else 'key'}: is missing")
    return find_table(config.file)


def find_table(path: Path) -> TablePlace:
    """Return the table in memory that goes by the name of a file, else the file."""
    return _HELD.get(path, path)


def hold_table(path: Path, table: FrameTable) -> None:
    """Keep a table in memory under the name of a file, until it is released."""
    _HELD[path] = table


def held_tables(folder: Path) -> dict[Path, FrameTable]:
    """Return the tables in memory under names in a folder."""
    frames = {path: table for path, table in _HELD.items() if isinstance(table, FrameTable)}
    return {path: table for path, table in frames.items() if isinstance(path, Path) and path.parent == folder}


def release_tables(folder: Path) -> None:
    """Forget the tables in memory under names in a folder."""
    for path in held_tables(folder):
        del _HELD[path]


def rows_of_query(owner: str, config: TableConfig) -> Path:
    """Return the file that holds an owner's rows; the first call with these settings asks the database.

    Without an owner, errors name the options of a command.

    Raises TableError, one line, for a missing driver, a database that cannot be reached or is lost, and a wrong query.
    """
    assert config.database is not None
    assert config.query is not None
    file = _HELD.get(id(config))
    if not isinstance(file, Path):
        # Only this user may enter the folder. It is held when it is complete: an error leaves nothing behind.
        folder = Path(tempfile.mkdtemp(prefix="lvfl-query-"))
        file = folder / "query.parquet"
        try:
            where = f"data.tables.{owner}." if owner else "--"
            _write_answer(where, config.database, config.query, file)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _HELD[id(config)] = file
        weakref.finalize(config, _forget, id(config), folder)
        _LATEST.append(config)
    return file


def _forget(settings: int, folder: Path) -> None:
    _HELD.pop(settings, None)
    shutil.rmtree(folder, ignore_errors=True)


def _write_answer(where: str, database: str, query: str, file: Path) -> None:
    asked, told = connected(f"{where}database", database), reporting(f"{where}query", database)
    with asked as connection, told, connection.cursor() as cursor:
        cursor.execute(query)
        _write_batches(where, cursor.fetch_record_batch(), file)  # nothing is committed


def _write_batches(where: str, reader: Any, file: Path) -> None:
    """Write an answer batch by batch: it need not fit into memory."""
    names: list[str] = reader.schema.names
    if len(set(names)) < len(names):
        raise TableError(f"{where}query: names a column twice ({', '.join(names)}); give each its own name by AS")
    writer: Any = None
    try:
        for batch in reader:
            columns: Mapping[str, Any] = {
                name: plain_type(cells) for name, cells in zip(names, batch.columns, strict=True)
            }
            table = pa.table(columns)
            writer = writer or pq.ParquetWriter(file, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise TableError(f"{where}query: gives no row")
