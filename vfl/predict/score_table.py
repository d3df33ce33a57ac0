"""Predictions as a table of a database: written in one transaction, never into a table that exists."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyarrow's signatures are partly untyped.

from contextlib import suppress
from typing import Any

from vfl.config import ConfigError
from vfl.config.tables import database_of
from vfl.data.tables.arrow import pa
from vfl.data.tables.database import connected, sqlite_file
from vfl.predict.predict import Prediction
from vfl.runs.run_folder import private_files

WHERE = "--database"


def check_score_table(database: str, table: str) -> None:
    """Raise ValueError, before the work, for a database that cannot be used, and a table that exists."""
    database_of(database, WHERE)
    file = sqlite_file(database)
    if file is not None and not file.exists():
        if not file.parent.is_dir():
            raise ConfigError(f"{WHERE}: there is no folder {file.parent}; make it, or name another file")
        return
    with connected(WHERE, database, "rw") as connection:
        _refuse_existing(connection, table)


def write_scores(prediction: Prediction, database: str, table: str) -> None:
    """Write predictions into a new table: keys and names as text, all else as numbers.

    Raises ValueError, one line; the database is then as it was.
    """
    scores, file = score_table(prediction), sqlite_file(database)
    made = file is not None and not file.exists()
    try:
        with private_files(), connected(WHERE, database, "rwc") as connection:
            _refuse_existing(connection, table)
            with connection.cursor() as cursor:
                cursor.adbc_ingest(table, scores, mode="create")
            connection.commit()
    except BaseException:
        if made and file is not None:
            with suppress(OSError):
                file.unlink()
        raise


def score_table(prediction: Prediction) -> Any:
    """Return predictions as an Arrow table, with the columns of the CSV file. Raises ConfigError for a name twice."""
    heading, *rows = prediction.rows()
    if twice := [name for name in heading if heading.count(name) > 1]:
        raise ConfigError(f"--out: two columns are called {twice[0]!r}; write a CSV file, or rename the key's column")
    keys = len(prediction.keys[0]) if prediction.keys else 0
    words = {*heading[:keys], "prediction", "owners", "reasons_of"} if keys else {"prediction", "owners", "reasons_of"}
    if prediction.classes:
        words.add("label")
    if prediction.reasons is not None:
        words.update(f"reason_{place}" for place in range(1, prediction.reasons.most + 1))
    columns: dict[str, Any] = {}
    for place, name in enumerate(heading):
        cells = [row[place] for row in rows]
        if name in words:
            columns[name] = pa.array([str(cell) for cell in cells], pa.string())
        elif place == 0 and not keys:
            columns[name] = pa.array([int(cell) for cell in cells], pa.int64())
        else:
            columns[name] = pa.array([None if cell == "" else float(cell) for cell in cells], pa.float64())
    return pa.table(columns)


def _refuse_existing(connection: Any, table: str) -> None:
    try:
        connection.adbc_get_table_schema(table)
    except Exception:  # each driver's own; what else is wrong the writing says
        connection.rollback()
        return
    raise ConfigError(f"--out: the database has a table {table!r} already; name another, or drop it")
