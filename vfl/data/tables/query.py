"""A table's rows from a database: a query's result, written once as a private Parquet file and then read as any file.

A table is read several times (types, keys, columns), and a query asked again may answer differently: so all readers see
one answer, and the same rows give the same bits as their Parquet file.
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
from vfl.data.tables.cells import TableError
from vfl.data.tables.database import connected, reporting
from vfl.data.tables.frames import plain_type

MOST_LATEST = 64
"""Answers that are kept although nobody has their settings any more: somebody may still read a file by its name."""

_HELD: dict[int, Path] = {}
"""Files of the answers by their settings' identity. A file goes with its settings, or as the process ends."""
_LATEST = deque[TableConfig](maxlen=MOST_LATEST)


def rows_of_query(owner: str, config: TableConfig) -> Path:
    """Return the file that holds an owner's rows; the first call with these settings asks the database.

    Without an owner, errors name the options of a command.

    Raises TableError, one line, for a missing driver, a database that cannot be reached or is lost, and a wrong query.
    """
    assert config.database is not None
    assert config.query is not None
    if id(config) not in _HELD:
        # Only this user may enter the folder. It is held when it is complete: an error leaves nothing behind.
        folder = Path(tempfile.mkdtemp(prefix="lvfl-query-"))
        try:
            where = f"data.tables.{owner}." if owner else "--"
            _write_answer(where, config.database, config.query, folder / "query.parquet")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _HELD[id(config)] = folder / "query.parquet"
        weakref.finalize(config, _forget, id(config), folder)
        _LATEST.append(config)
    return _HELD[id(config)]


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
