"""Settings of one owner's table: ``data.tables.OWNER``."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from vfl.data.tables.columns import ColumnKind
from vfl.settings import Section


def _as_columns(value: object) -> object:
    return [value] if isinstance(value, str) else value


KeyColumns = Annotated[tuple[str, ...], BeforeValidator(_as_columns), Field(min_length=1)]
"""A column, or a list of them."""


class TableConfig(Section):
    """A table, and which of its columns are used for what. In place of it may stand a YAML file that holds it."""

    file: Path | None = None
    """CSV, gzipped CSV or Parquet. A process of its own needs only its own owner's."""
    key: KeyColumns | None = None
    """Columns by which the owner knows a sample."""
    label: str | None = None
    """Column of the labels; at exactly one owner."""
    features: dict[str, ColumnKind] | None = None
    """number, category or ignore by column, in the order in which the model takes them; columns left out are ignored.
    null proposes them from what the file holds."""
    keys: dict[str, KeyColumns] = Field(default={})
    """At the owner of the labels: columns by which another owner knows the sample, where they are not ``key``; they
    may repeat."""
    duplicates: Literal["refuse", "first"] = "refuse"
    """What becomes of rows whose key stands in an earlier one: the table is refused, or they are left out."""
    match: Path | None = None
    """What ``lvfl align`` writes and training reads: which row stands for which sample; null joins keys in the open."""
