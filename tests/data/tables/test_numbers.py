"""Numbers as files and people write them: no key, no missing value, with commas between thousands or without."""

import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses
from shorthand import examples
from two_tables import bank_config

from vfl.data.source import open_source
from vfl.data.tables.arrow import pa
from vfl.data.tables.cells import MISSING, Reading, TableError
from vfl.data.tables.columns import Numbers, read_table
from vfl.data.tables.describe import NUMBER, _numbers_and_others, describe_table
from vfl.data.tables.proposal import describe_as_found, proposed_yaml

FAR = 40_000
"""Rows before the odd ones, more than a block of the file holds."""
ODD = ["1", "-0", "+3", "1e5", "1e-400", "1e31", " 2.5 ", "\t7", "\u00a08", " NA ", "1,5", "0x10", "1_0", "inf", "-nan"]
LONG = ["0.1000000000000000055511151231257827", "123456789012345678901"]
CELLS = st.sampled_from([*MISSING, *ODD, *LONG, "many", "x", "\u0663", "true"])


def read(path) -> bytes | str:
    """Return the numbers' bits, or the error's text."""
    try:
        column = read_table(path, {"x": "number"}, [("id",)], Reading(missing=("many",))).columns["x"]
    except TableError as error:
        return str(error)
    assert isinstance(column, Numbers)
    return column.values.tobytes()


@examples(150)
@given(cells=st.lists(CELLS | st.floats(width=64).map(repr), min_size=1, max_size=6), quoted=st.booleans())
def test_numbers_are_those_of_their_text(tmp_path_factory, cells, quoted):
    path, as_text = tmp_path_factory.mktemp("table") / "t.csv", tmp_path_factory.mktemp("text") / "t.csv"
    lines = [f'{place},"{cell}"' if quoted or "," in cell else f"{place},{cell}" for place, cell in enumerate(cells)]
    path.write_text("\n".join(["id,x", *lines, ""]))
    # A cell with a no-break space, which is stripped from text alone, sends the whole block through text.
    as_text.write_text("\n".join(["id,x", *lines, f"{len(cells)},\u00a00", ""]))
    numbers, from_text = read(path), read(as_text)
    if isinstance(from_text, str):
        assert numbers == from_text.replace(str(as_text), str(path))
    else:
        assert numbers == from_text[:-8]


def test_blocks_before_and_after_a_cell_that_is_stripped_are_whole(tmp_path):
    values = np.arange(3 * FAR, dtype=np.float64) / 8
    cells = [f"{value:.3f}" + " " * 60 for value in values]
    cells[2 * FAR] = "\u00a0" + cells[2 * FAR]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["id,x", *(f"{place},{cell}" for place, cell in enumerate(cells)), ""]))
    assert read(path) == values.tobytes()
    cells[2 * FAR + 1] = "word"
    path.write_text("\n".join(["id,x", *(f"{place},{cell}" for place, cell in enumerate(cells)), ""]))
    assert f"row {2 * FAR + 3}: 'word' is no number" in str(read(path))


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


WRITTEN_CELLS = [
    ["1", "-2.5", None, ".5", "7.", "1e5", "+3", "0012"],
    ["1", "inf"],
    ["1", "-Infinity", None],
    ["1", "1e400"],
    ["nan ", "1", "NAN", "-nan"],
    ["0x10", "1_000", "1e", "", "-", "1 2", "1,5"],
    ["\u0661", "1"],
    [None, None],
]


@pytest.mark.parametrize("cells", WRITTEN_CELLS, ids=str)
def test_a_block_of_numbers_alone_is_summarised_as_cell_by_cell(cells: list[str | None]):
    amounts, others = _numbers_and_others(pa.array(cells, pa.string()))
    numbers = [cell is not None and re.fullmatch(NUMBER[1:-1], cell, re.ASCII) is not None for cell in cells]
    expected = [float(cell) if cell and number else math.nan for cell, number in zip(cells, numbers, strict=True)]
    np.testing.assert_array_equal(amounts, np.array(expected))
    assert others.to_pylist() == [None if cell is None else not numbers[place] for place, cell in enumerate(cells)]


ROWS = 60
AMOUNTS = [137.25 * row * row for row in range(ROWS)]


def write_amounts(folder: Path, form: str, name: str = "t.csv") -> Path:
    """Write amounts in a form of numbers, beside keys that hold commas as well."""
    path = folder / name
    cells = (f'"1,{row:03}";"{amount:{form}}";{row % 2}' for row, amount in enumerate(AMOUNTS))
    path.write_text("\n".join(["k;amount;late", *cells]))
    return path


def features_of(path: Path, **settings: Any):
    source = open_source(bank_config(path, **settings))
    with warnings.catch_warnings(record=True, action="always") as caught:
        split = source.split()
    return split, [str(each.message) for each in caught]


def test_numbers_with_commas_are_the_numbers_without(tmp_path: Path):
    written, plain = write_amounts(tmp_path, ",.2f"), write_amounts(tmp_path, ".2f", "plain.csv")
    summaries, found = describe_as_found(written)
    proposed = yaml.safe_load(proposed_yaml(written, summaries, tmp_path, "late", found))
    assert (proposed["thousands"], proposed["features"]["amount"]) == (",", "number")
    (alone, told), (given, _), (expected, _) = (
        features_of(written),
        features_of(written, thousands=",", features={"amount": "number"}),
        features_of(plain),
    )
    assert sum("thousands" in line for line in told) == 1
    for split in (alone, given):
        assert split.parties[0].train.features.equal(expected.parties[0].train.features)
        assert split.labels.train.ids.equal(expected.labels.train.ids)  # a key keeps its comma


def test_a_comma_that_may_be_a_decimal_one_is_not_guessed(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["k;amount", *(f"r{row};{row % 7 + 1},{row:03}" for row in range(ROWS))]))
    summaries, found = describe_as_found(path)
    kind, why = summaries[1].proposal()
    assert (kind, found.thousands) == ("ignore", None)
    assert "'1,000' in row 2" in why  # the cell, and the way out
    assert "thousands" in why
    (told,) = describe_table(path, ["amount"], Reading(thousands=","))
    assert told.proposal() == ("number", "")
    column = read_table(path, {"amount": "number"}, [("k",)], Reading(thousands=",")).columns["amount"]
    assert isinstance(column, Numbers)
    np.testing.assert_array_equal(column.values, [1000 * (row % 7 + 1) + row for row in range(ROWS)])


@pytest.mark.parametrize("plain", [0.1, 0.9])
def test_words_and_commas_together_are_both_found(tmp_path: Path, plain: float):
    """With each alone undecided: most cells are no numbers, or not without the words."""
    path = tmp_path / "t.csv"
    cells = [
        "unknown" if row % 5 == 3 else f"{row}" if row < plain * 200 else f"{row * 100.5:,.2f}" for row in range(200)
    ]
    path.write_text("k;amount\n" + "\n".join(f"r{row};{cell}" for row, cell in enumerate(cells)))
    summaries, found = describe_as_found(path)
    assert (found.missing, found.thousands) == (("unknown",), ",")
    assert (summaries[1].proposal(), summaries[1].missing) == (("number", ""), 40)


@pytest.mark.parametrize("cell", ["12,5", "1,23,456", "1,2345", "1.234,5", ",123", "1,093.39 EUR"])
def test_other_commas_stay_errors_with_the_mark_set(tmp_path: Path, cell: str):
    path = tmp_path / "t.csv"
    path.write_text(f"k;a\nr1;2,000.5\nr2;{cell}\n")
    refuses("t.csv", lambda: read_table(path, {"a": "number"}, [("k",)], Reading(thousands=",")), "row 3")


def test_an_error_at_a_number_with_a_mark_names_the_setting(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("k;a\nr1;5\nr2;1,093.39\n")
    refuses("t.csv", lambda: read_table(path, {"a": "number"}, [("k",)]), "row 3")
    for mark, cell in {",": "1,093.39", "'": "1'093.39"}.items():
        path.write_text(f"k;a\nr1;5\nr2;{cell}\n")
        column = read_table(path, {"a": "number"}, [("k",)], Reading(thousands=mark)).columns["a"]
        assert isinstance(column, Numbers)
        assert column.values.tolist() == [5, 1093.39]
