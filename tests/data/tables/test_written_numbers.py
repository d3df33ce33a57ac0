"""Numbers as people write them: they are no key and no missing value."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from vfl.data.tables.arrow import pa
from vfl.data.tables.columns import read_table
from vfl.data.tables.describe import NUMBER, _numbers_and_others, describe_table

WRITTEN = ["1,{:03}.31", "17,{:03}.99", "${}.50", "17'{:03}.99", "17’{:03}.99", "€ {}", "{} €", "{}%", "-$1,{:03}.5"]


def write(folder: Path, cells: list[str]) -> Path:
    path = folder / "t.csv"
    path.write_text("k;a\n" + "".join(f"r{row};{cell}\n" for row, cell in enumerate(cells)))
    return path


@pytest.mark.parametrize("written", WRITTEN)
def test_written_numbers_look_like_no_key(tmp_path: Path, written: str):
    (summary,) = describe_table(write(tmp_path, [written.format(row) for row in range(60)]), ["a"])
    kind, why = summary.proposal()
    assert (kind, summary.looks_like_key()) == ("ignore", False)
    assert why.startswith("holds numbers with ")


@pytest.mark.parametrize("written", WRITTEN)
def test_a_few_written_numbers_are_not_to_be_taken_as_missing(tmp_path: Path, written: str):
    path = write(tmp_path, [written.format(row) if row > 98 else str(row) for row in range(100)])
    with refused("t.csv", "row 101") as told:
        read_table(path, {"a": "number"}, [("k",)])
    assert "missing" not in str(told.value)


@pytest.mark.parametrize("code", ["A{:05}", "1.2.{}", "12-{:04}", "555 123 {:03}"])
def test_codes_that_are_no_amounts_still_look_like_a_key(tmp_path: Path, code: str):
    (summary,) = describe_table(write(tmp_path, [code.format(row) for row in range(60)]), ["a"])
    assert summary.looks_like_key()


CELLS = [
    ["1", "-2.5", None, ".5", "7.", "1e5", "+3", "0012"],
    ["1", "inf"],
    ["1", "-Infinity", None],
    ["1", "1e400"],
    ["nan ", "1", "NAN", "-nan"],
    ["0x10", "1_000", "1e", "", "-", "1 2", "1,5"],
    ["\u0661", "1"],
    [None, None],
]


@pytest.mark.parametrize("cells", CELLS, ids=str)
def test_a_block_of_numbers_alone_is_summarised_as_cell_by_cell(cells: list[str | None]):
    amounts, others = _numbers_and_others(pa.array(cells, pa.string()))
    numbers = [cell is not None and re.fullmatch(NUMBER[1:-1], cell, re.ASCII) is not None for cell in cells]
    expected = [float(cell) if cell and number else math.nan for cell, number in zip(cells, numbers, strict=True)]
    np.testing.assert_array_equal(amounts, np.array(expected))
    assert others.to_pylist() == [None if cell is None else not numbers[place] for place, cell in enumerate(cells)]
