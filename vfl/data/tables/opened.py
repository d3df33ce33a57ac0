"""Where an owner's rows are: in its file, in a table that this program holds, or in the answer of its query.

Settings name files. A program that holds a table itself, as an estimator does, keeps it here under the name of a file
that need not exist: whatever opens the run in this process then reads the table, and nothing is written.
"""

from pathlib import Path

from vfl.config.tables import TableConfig
from vfl.data.tables.cells import FrameTable, TableRows
from vfl.data.tables.query import rows_of_query

_HELD: dict[Path, FrameTable] = {}
"""Tables in memory, by the file that settings name in their place."""


def locate_table(owner: str, config: TableConfig) -> TableRows:
    """Return an owner's table. Raises ValueError if file or key is missing, or the database does not answer."""
    if config.query is not None and config.key is not None:
        return rows_of_query(owner, config)
    if config.file is None or config.key is None:
        raise ValueError(f"data.tables.{owner}.{'file' if config.file is None else 'key'}: is missing")
    return find_table(config.file)


def find_table(path: Path) -> TableRows:
    """Return the table in memory that goes by the name of a file, else the file."""
    return _HELD.get(path, path)


def hold_table(path: Path, table: FrameTable) -> None:
    """Keep a table in memory under the name of a file, until it is released."""
    _HELD[path] = table


def held_tables(folder: Path) -> dict[Path, FrameTable]:
    """Return the tables in memory under names in a folder."""
    return {path: table for path, table in _HELD.items() if path.parent == folder}


def release_tables(folder: Path) -> None:
    """Forget the tables in memory under names in a folder."""
    for path in held_tables(folder):
        del _HELD[path]
