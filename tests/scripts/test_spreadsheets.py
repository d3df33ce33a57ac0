"""What a command shows or writes of a stranger's text is text: to a spreadsheet, a terminal, a page."""

import csv
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vfl.data.tables.describe import describe_table
from vfl.runs.atomic import escape_formula, write_csv

SCRIPTS = Path(__file__).parents[2] / "scripts"
FIRST = ("=", "+", "-", "@", "\t", "\r")


def read_back(cell: str) -> str:
    """As docs/data.md tells a reader."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FIRST) else cell


@given(st.text(alphabet="'=+-@\t\r0.e5a", max_size=6))
def test_no_cell_is_a_formula_and_every_key_reads_back(text):
    cell = str(escape_formula(text))
    assert read_back(cell) == text
    if cell.startswith(FIRST):
        assert float(cell) is not None


@pytest.mark.parametrize("number", ["-0.3", "+4", "-1e-09", "-inf", ".5", "-3"])
def test_numbers_stay_numbers(number):
    assert escape_formula(number) == number


def test_a_formula_is_text_in_the_file(tmp_path):
    write_csv(
        tmp_path / "t.csv", [[escape_formula(cell) for cell in ("=cmd|' /C calc'!A0", "@SUM(1)", "-2+3", -0.5, "ok")]]
    )
    with (tmp_path / "t.csv").open() as file:
        assert next(csv.reader(file)) == ["'=cmd|' /C calc'!A0", "'@SUM(1)", "'-2+3", "-0.5", "ok"]


def test_describe_obeys_no_escape_of_a_table_and_writes_yaml(tmp_path, call):
    escape = "\x1b]0;owned\x07\x1b[31m"
    rows = [f"{row},{escape}{'ab'[row % 2]}" for row in range(30)]
    (tmp_path / "t.csv").write_text("\n".join([f"x,{escape}name", *rows]))
    shown = call("describe", tmp_path / "t.csv")
    assert shown.code == 0
    assert not {"\x1b", "\x07"} & set(shown.out + shown.err)
    assert "name" in shown.out
    assert f"{escape}name" in yaml.safe_load((tmp_path / "t.yaml").read_text())["features"]


def test_a_table_of_many_columns_is_read_once_for_each_name(tmp_path, monkeypatch):
    class Counted(list[str]):
        def count(self, value: str) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise AssertionError("every name would be compared with all others")

    from vfl.data.tables import cells

    cells._check_names(tmp_path, Counted(f"c{place}" for place in range(5)))
    names = [f"c{place}" for place in range(300)]
    (tmp_path / "t.csv").write_text(f"{','.join(names)}\n{','.join('1' for _ in names)}\n")
    assert [each.name for each in describe_table(tmp_path / "t.csv")] == names
