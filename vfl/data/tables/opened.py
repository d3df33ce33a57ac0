"""Where an owner's rows are: in its file, or in the answer of its query."""

from pathlib import Path

from vfl.config.tables import TableConfig
from vfl.data.tables.query import rows_of_query


def locate_table(owner: str, config: TableConfig) -> Path:
    """Return an owner's file, or the answer of its query. Raises ValueError if file or key is missing, or the database
    does not answer."""
    if config.query is not None and config.key is not None:
        return rows_of_query(owner, config)
    if config.file is None or config.key is None:
        raise ValueError(f"data.tables.{owner}.{'file' if config.file is None else 'key'}: is missing")
    return config.file
