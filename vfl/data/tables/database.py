"""A connection to a database, by ADBC: rows come and go in Arrow batches.

A driver comes whole in its package and opens the named database only. DuckDB fetches its readers of PostgreSQL and
SQLite from the network.
"""
# pyright: reportMissingTypeStubs=false

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from vfl.base.errors import ConfigError, one_line
from vfl.config.tables import SQLITE
from vfl.data.tables.arrow import pa
from vfl.data.tables.cells import TableError

Mode = Literal["ro", "rw", "rwc"]
"""Of SQLite: read, write, and also make the file."""


def sqlite_file(database: str) -> Path | None:
    """Return the file of an SQLite database, None for another one."""
    return Path(database.removeprefix(SQLITE)) if database.startswith(SQLITE) else None


@contextmanager
def connected(where: str, database: str, mode: Mode = "ro", *, autocommit: bool = False) -> Generator[Any]:
    """Yield a connection, which is rolled back at the end unless it was committed.

    With ``autocommit`` each statement sees the rows of its own moment.

    Raises TableError, one line beginning with ``where``, for a missing driver, a database that is not there, and
    whatever the driver raises meanwhile.
    """
    driver, file = driver_of(where, database), sqlite_file(database)
    if file is not None and mode != "rwc" and not file.is_file():
        raise TableError(f"{where}: there is no file {file}; if it was moved, name its new place: {where}={SQLITE}FILE")
    # Without a mode SQLite would make a file that is not there. In a URI ?, # and % of a file's name mean something.
    uri = database if file is None else f"file:{quote(str(file))}?mode={mode}"
    with reporting(where, database), driver.connect(uri, autocommit=autocommit) as connection:
        yield connection


@contextmanager
def reporting(where: str, database: str) -> Generator[None]:
    """Turn what a driver raises into a TableError, one line beginning with ``where``; other errors pass."""
    driver = driver_of(where, database)
    try:
        yield
    except (TableError, ConfigError):
        raise
    # A driver raises its own errors, and those of Arrow where the answer breaks off or a type changes on the way.
    except (driver.Error, driver.Warning, pa.ArrowException, OSError, ValueError) as error:
        raise TableError(f"{where}: failed ({one_line(error)[:300]})") from None


def driver_of(where: str, database: str) -> Any:
    """Return the module of a database's driver. Raises TableError where it is not installed."""
    name = "adbc_driver_sqlite" if database.startswith(SQLITE) else "adbc_driver_postgresql"
    try:
        return import_module(f"{name}.dbapi")
    except ImportError:
        fix = 'install it with: pip install -e ".[database]"'
        raise TableError(f"{where}: needs the package {name.replace('_', '-')}; {fix}") from None
