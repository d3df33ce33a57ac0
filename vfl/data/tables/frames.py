"""Frames of a Python program as tables in memory: they go through the same reader as an owner's file.

Accepted are pyarrow's tables, objects with Arrow's C stream (pandas from 2.2, Polars, DuckDB) or the dataframe
interchange protocol, and mappings from column to values.
"""
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyarrow ships no stubs.

import json
from collections.abc import Mapping
from typing import Any, cast

from vfl.base.errors import one_line
from vfl.data.tables.arrow import Column, pa, pc
from vfl.data.tables.cells import TableError


def frame_table(what: str, frame: object) -> Any:
    """Return a frame as a pyarrow.Table, without a nameless pandas index. Raises TableError, naming it (``what``)."""
    try:
        if isinstance(frame, pa.RecordBatch):
            table: Any = pa.Table.from_batches([frame])
        elif hasattr(frame, "__arrow_c_stream__"):
            table = pa.table(frame)
        elif hasattr(frame, "__dataframe__"):
            from pyarrow import interchange  # only older frames need it

            table = cast(Any, interchange).from_dataframe(frame)
        elif isinstance(frame, Mapping):
            table = pa.table(dict(cast(Mapping[str, Any], frame)))
        else:
            raise TableError(
                f"{what}: {type(frame).__name__} is no table; give a file, a data frame or {{column: values}}"
            )
    except (pa.ArrowException, TypeError, OverflowError) as error:
        why = f"{one_line(error)[:200]}; each column needs values of one type that Arrow knows"
        raise TableError(f"{what}: cannot be read as a table ({why})") from None
    # What pandas keeps of an index that is no range of numbers: it has no name in the frame.
    table = table.select([name for name in table.column_names if not name.startswith("__index_level_")])
    if table.num_rows == 0 or not table.column_names:
        return table
    chunks = [[plain_type(each) for each in cells.chunks] for cells in table.columns]
    return pa.table([pa.chunked_array(each) for each in chunks], names=table.column_names).replace_schema_metadata(
        table.schema.metadata
    )


def index_columns(table: Any) -> list[str]:
    """Return the columns of a frame's table that pandas holds as its index."""
    metadata = cast(dict[bytes, bytes], table.schema.metadata or {})
    kept = json.loads(metadata.get(b"pandas", b"{}")).get("index_columns", [])
    return [name for name in kept if isinstance(name, str) and name in table.column_names]  # a range is no text


def plain_type(cells: Column) -> Column:
    """Return cells in a type that pyarrow's functions take: of views, dictionaries and extensions most take none."""
    kind = cells.type
    if pa.types.is_dictionary(kind):
        return plain_type(cells.dictionary).take(cells.indices)
    if pa.types.is_run_end_encoded(kind):
        return plain_type(pc.run_end_decode(cells))
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(cells.storage)
    if pa.types.is_struct(kind) and [kind.field(place).name for place in range(kind.num_fields)] == ["left", "right"]:
        sides = [pc.cast(cells.field(side), pa.string()) for side in ("left", "right")]  # an interval of pandas
        return pc.if_else(cells.is_valid(), pc.binary_join_element_wise(*sides, " to "), None)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return pc.cast(cells, pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary())
    return cells
