"""Rows as a data frame, for users of the Python interface."""

from collections.abc import Mapping, Sequence
from typing import Any

Columns = Any
"""A pandas.DataFrame, or lists by column where pandas is not installed."""


def in_columns(rows: Sequence[Mapping[str, Any]], index: str) -> Columns:
    """Return rows as columns, with column ``index`` as the frame's index; None if a row lacks a value."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    try:
        import pandas as pd  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]  # the user's, if there
    except ImportError:
        return columns
    frame: Any = pd.DataFrame(columns)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return frame.set_index(index)
