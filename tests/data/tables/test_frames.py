"""Frames in memory give the table that a file of the same cells gives; so does the embedded one of two owners."""

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refuses
from sklearn.datasets import load_breast_cancer

from vfl.config.data import DataConfig
from vfl.data.tables.breast_cancer import KEY, LABEL, BreastCancer
from vfl.data.tables.cells import BLOCK_ROWS, FrameTable, TableError, open_blocks
from vfl.data.tables.columns import Categories, ColumnKind, Numbers, read_table
from vfl.data.tables.frames import frame_table

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
    rows = FrameTable("bank", frame_table("bank", made(pa.table(COLUMNS))))
    kinds: dict[str, ColumnKind] = {"x": "number", "colour": "category"}
    file, frame = (read_table(table, kinds, [("key",)]) for table in (csv, rows))
    numbers, categories, wanted = frame.columns["x"], frame.columns["colour"], file.columns["x"]
    assert isinstance(numbers, Numbers)
    assert isinstance(wanted, Numbers)
    assert isinstance(categories, Categories)
    np.testing.assert_array_equal(numbers.values, wanted.values)
    assert [categories.names[code] if code >= 0 else None for code in categories.codes] == COLUMNS["colour"]
    assert frame.keys[("key",)].equals(file.keys[("key",)])


@pytest.mark.parametrize("given", [3, [[1, 2]], {"x": [1], "y": [1, 2]}, {"x": [object()]}])
def test_what_is_no_table_is_one_line_that_names_the_owner(given):
    refuses("bank", lambda: frame_table("bank", given), "table")


def test_runs_of_equal_values_are_read_as_the_values():
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([1.5, None]))
    read = frame_table("bank", pa.table({"a": runs})).column("a")
    assert read.take([2, 0]).to_pylist() == [None, 1.5]  # of runs nothing can be taken


NOON = datetime(2020, 1, 2, 12, 0, 5)
CELLS = {
    **{f"{each}": pa.array([NOON, None], each) for each in [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")]},
    "zone": pa.array([NOON, None], pa.timestamp("s", "Europe/Berlin")),
    **{f"{each}": pa.array([NOON.date(), None], each) for each in (pa.date32(), pa.date64())},
    **{f"{each}": pa.array([NOON.time(), None], each) for each in (pa.time32("s"), pa.time32("ms"), pa.time64("ns"))},
    **{f"{each}": pa.array([7, None], each) for each in (pa.uint64(), pa.int8(), pa.float32(), pa.duration("s"))},
    "half": pa.array([1.5, None], pa.float16()),
    "decimal": pa.array([Decimal("21.33"), None]),
    "text": pa.array(["a ", "NA"], pa.large_string()),
    "codes": pa.array(["x", None]).dictionary_encode(),
    "truth": pa.array([True, None]),
    "nothing": pa.nulls(2),
    "lists": pa.array([[1], None]),
}


@pytest.mark.parametrize("kind", CELLS)
def test_a_frame_has_the_cells_of_its_parquet_file(kind: str, tmp_path: Path):
    rows = frame_table("bank", pa.table({"x": CELLS[kind]}))
    pq.write_table(rows, tmp_path / "frame.parquet")
    with open_blocks(tmp_path / "frame.parquet") as file, open_blocks(FrameTable("bank", rows)) as frame:
        (wanted,), (found,) = file, frame
    assert (found.start, found.others.keys()) == (wanted.start, wanted.others.keys())
    assert found.columns["x"].equals(wanted.columns["x"])


def test_blocks_of_a_long_frame_are_those_of_its_file(tmp_path: Path):
    chunks = [pa.array(np.arange(size), pa.int64()) for size in (3, BLOCK_ROWS, 0, 40_000)]
    rows = pa.table({"x": pa.chunked_array(chunks)})
    pq.write_table(rows, tmp_path / "frame.parquet")
    with open_blocks(tmp_path / "frame.parquet") as file, open_blocks(FrameTable("bank", rows)) as frame:
        for wanted, found in zip(file, frame, strict=True):
            assert (found.start, found.columns["x"]) == (wanted.start, wanted.columns["x"])


def test_errors_of_a_frame_name_it_and_its_row():
    with pytest.raises(TableError, match=r"^X: bank: column 'x', row 2: 'b' is no number"):
        read_table(FrameTable("X: bank", pa.table({"x": ["1", "b"]})), {"x": "number"}, [])
    with pytest.raises(TableError, match=r"^X: bank: holds no row"):
        read_table(FrameTable("X: bank", pa.table({"x": pa.array([], pa.int64())})), {"x": "number"}, [])


@pytest.mark.parametrize(("owner", "columns"), [("clinic", slice(0, 10)), ("laboratory", slice(10, 30))])
def test_the_embedded_table_is_that_of_scikit_learn(owner, columns):
    bunch: Any = load_breast_cancer()
    source = BreastCancer(DataConfig(), 0)
    assert list(source.columns(owner).numbers) == bunch.feature_names[columns].tolist()
    table = source.read(owner, ["clinic", "laboratory"])
    for name, values in zip(bunch.feature_names[columns], bunch.data[:, columns].T, strict=True):
        column = table.columns[name]
        assert isinstance(column, Numbers)
        assert np.array_equal(column.values, values)
    if owner == "clinic":
        label = table.columns[LABEL]
        assert isinstance(label, Categories)
        assert [label.names[code] for code in label.codes] == bunch.target_names[bunch.target].tolist()
    assert len(table.keys[KEY]) == len(table.row_numbers) == len(bunch.target)
