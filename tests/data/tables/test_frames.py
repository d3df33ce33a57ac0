"""Frames in memory give the table that a file of the same cells gives."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from vfl.data.tables.cells import TableError
from vfl.data.tables.columns import Categories, ColumnKind, Numbers, read_table
from vfl.data.tables.frames import frame_table, write_frame

COLUMNS = {"key": ["a", "b", "c"], "x": [1.5, None, -3.0], "colour": ["red", None, "blue"]}


class Stream:
    """All that is known of a foreign frame: Arrow's C stream."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class Interchanged:
    """All that is known of an older frame: the interchange protocol."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> object:
        return self.table.__dataframe__(nan_as_null, allow_copy)


@pytest.mark.parametrize(
    "made", [pa.table, Stream, Interchanged, lambda table: table.to_batches()[0], lambda table: table.to_pydict()]
)
def test_every_kind_of_frame_is_read_as_the_file_of_the_same_cells(tmp_path: Path, made):
    csv = tmp_path / "table.csv"
    csv.write_text("key,x,colour\na,1.5,red\nb,,\nc,-3.0,blue\n")
    write_frame(tmp_path / "frame.parquet", "bank", made(pa.table(COLUMNS)))
    kinds: dict[str, ColumnKind] = {"x": "number", "colour": "category"}
    file, frame = (read_table(path, kinds, [("key",)]) for path in (csv, tmp_path / "frame.parquet"))
    numbers, categories, wanted = frame.columns["x"], frame.columns["colour"], file.columns["x"]
    assert isinstance(numbers, Numbers)
    assert isinstance(wanted, Numbers)
    assert isinstance(categories, Categories)
    np.testing.assert_array_equal(numbers.values, wanted.values)
    assert [categories.names[code] if code >= 0 else None for code in categories.codes] == COLUMNS["colour"]
    assert frame.keys[("key",)].equals(file.keys[("key",)])


@pytest.mark.parametrize("given", [3, [[1, 2]], {"x": [1], "y": [1, 2]}, {"x": [object()]}])
def test_what_is_no_table_is_one_line_that_names_the_owner(given):
    with pytest.raises(TableError, match=r"^bank: [^\n]*table[^\n]*$"):
        frame_table("bank", given)


def test_runs_of_equal_values_are_read_as_the_values():
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([1.5, None]))
    read = frame_table("bank", pa.table({"a": runs})).column("a")
    assert read.take([2, 0]).to_pylist() == [None, 1.5]  # of runs nothing can be taken
