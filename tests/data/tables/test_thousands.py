"""Commas between thousands: proposed where they can be nothing else, else set by the owner; never in a key."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml
from refusals import refuses
from two_tables import bank_config

from vfl.data.source import open_source
from vfl.data.tables.cells import Reading
from vfl.data.tables.columns import Numbers, read_table
from vfl.data.tables.describe import describe_table
from vfl.data.tables.proposal import describe_as_found, proposed_yaml

ROWS = 60
AMOUNTS = [137.25 * row * row for row in range(ROWS)]


def write(folder: Path, form: str, name: str = "t.csv") -> Path:
    """Write amounts in a form of numbers, beside keys that hold commas as well."""
    path = folder / name
    cells = (f'"1,{row:03}";"{amount:{form}}";{row % 2}' for row, amount in enumerate(AMOUNTS))
    path.write_text("\n".join(["k;amount;late", *cells]))
    return path


def features_of(path: Path, **settings: object):
    source = open_source(bank_config(path, **settings))
    with warnings.catch_warnings(record=True, action="always") as caught:
        split = source.split()
    return split, [str(each.message) for each in caught]


def test_numbers_with_commas_are_the_numbers_without(tmp_path: Path):
    written, plain = write(tmp_path, ",.2f"), write(tmp_path, ".2f", "plain.csv")
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
