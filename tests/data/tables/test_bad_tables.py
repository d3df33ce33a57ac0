"""Bad tables: one line with file, column and row, before anything is trained."""

import gzip
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml
from refusals import refused, refuses

from vfl.config import parse_config
from vfl.config.tables import ColumnKind
from vfl.data.source import open_source
from vfl.data.tables.arrow import pa, pq
from vfl.data.tables.cells import Reading, column_names
from vfl.data.tables.columns import Categories, Numbers, read_table
from vfl.data.tables.describe import describe_table
from vfl.data.tables.proposal import describe_as_found, doubtful_header, propose_features, proposed_yaml

HEAD = b"k,a,b\n"
KINDS: dict[str, ColumnKind] = {"a": "number", "b": "category"}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", ("t.csv", "empty")),
        (HEAD, ("t.csv", "below")),
        (b"1,2,3\n4,5,6\n", ("t.csv", "'a'", "header")),
        (b"k,a\n1,2\n", ("t.csv", "'b'")),
        (b"k,a,a\n1,2,3\n", ("t.csv", "'a'")),
        (b"k,a,\n1,2,3\n", ("t.csv", "column 3")),
        (HEAD + b"1,2,x\n2,3,y,4\n", ("t.csv", "row 3", "cells")),
        (HEAD + b"1,2,x\n2,3\n", ("t.csv", "row 3")),
        (HEAD + b"1,2,x\nk,a,b\n", ("t.csv", "'a'", "row 3", "repeats")),
        (HEAD + b"1,2,x\n2,inf,y\n", ("t.csv", "'a'", "row 3", "infinite")),
        (HEAD + b"1,1e31,x\n", ("t.csv", "'a'", "row 2", "1e")),
        (HEAD + b"1,2013-01-01,x\n", ("t.csv", "'a'", "row 2", "'2013-01-01'")),
        (HEAD + b"1,2,x\nNA,3,y\n", ("t.csv", "'k'", "row 3")),
        (HEAD + b"1\x1f2,2,x\n", ("t.csv", "'k'", "row 2")),
        (HEAD + b'1,2,"x\n2,3,y\n', ("t.csv", "'b'", "row 2", "quote")),
        (HEAD + b"1,2,x\n2,\xe9,y\n", ("t.csv", "'a'", "row 3")),
        (b"k,a,\xe9\n1,2,3\n", ("t.csv", "row 1")),
        ("k,a,b\n1,2,3\n".encode("utf-16"), ("t.csv", "UTF-16")),
        ("k,a,b\n1,2,3\n".encode("utf-16-le"), ("t.csv", "text")),
        (b"PK\x03\x04rest", ("t.csv", "Excel")),
        (b"PAR1rest", ("t.csv", "read")),
        (gzip.compress(HEAD + b"1,2,x\n" * 1000, mtime=0)[:30], ("t.csv", "read")),
        (b'{"k": 1, "a": 2, "b": 3}\n{"k": 2, "a": 2, "b": 3}\n', ("t.csv", "JSON")),
        (b"7,2.5,red\n8,3,blue\n", ("t.csv", "'a'", "2.5")),
        (b"\x00\x01\x02\xff", ("t.csv", "text")),
    ],
)
def test_a_file_that_is_no_table_is_one_line(tmp_path, content, line):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with refused(*line):
        read_table(path, KINDS, [("k",)])


@pytest.mark.parametrize(
    ("header", "separator"),
    [(" k , a,b ", ","), ('k;"a";b', ";"), ('"k";a;"b, in m, dry"', ";"), ("\ufeffk\ta\tb", "\t"), ("k|a|b", "|")],
)
def test_a_header_has_white_space_quotes_and_any_separator(tmp_path, header, separator):
    path = tmp_path / "t.csv"
    path.write_text("\n".join([header, separator.join("123"), separator.join("45x"), ""]))
    *names, last = column_names(path)
    table = read_table(path, {"a": "number", last: "category"}, [("k",)])
    assert (names, last) == (["k", "a"], "b, in m, dry" if "dry" in header else "b")
    number, category = table.columns["a"], table.columns[last]
    assert isinstance(number, Numbers)
    assert isinstance(category, Categories)
    assert number.values.tolist() == [2.0, 5.0]
    assert category.names == ("3", "x")
    assert table.keys[("k",)].to_pylist() == ["1", "4"]


def test_numbers_of_parquet_are_of_any_size_and_precision_and_nan_is_missing(tmp_path):
    path, large = tmp_path / "t.parquet", [2**60 + row for row in range(3)]
    half = pa.array(np.array([0.5, np.nan, 2.0], np.float16), from_pandas=False)
    pq.write_table(pa.table({"k": pa.array(large), "half": half, "large": pa.array([1.5e300, -1e19, 7.0])}), path)
    table = read_table(path, {"k": "number", "half": "category", "large": "category"}, [("k",)])
    number, category, other = table.columns["k"], table.columns["half"], table.columns["large"]
    assert isinstance(number, Numbers)
    assert isinstance(category, Categories)
    assert isinstance(other, Categories)
    assert number.values.tolist() == [2.0**60] * 3
    assert table.keys[("k",)].to_pylist() == [str(each) for each in large]
    assert (category.names, category.codes.tolist()) == (("0.5", "2"), [0, -1, 1])
    assert other.names == ("1.5e+300", "-1e+19", "7")
    assert [(each.numbers, each.missing) for each in describe_table(path)] == [(3, 0), (2, 1), (3, 0)]


def owners(tmp_path, bank_rows, shop_rows, task=None, **changes):
    """Split two owners' tables, rows of cells below a header."""
    for name, rows in (("bank", bank_rows), ("shop", shop_rows)):
        (tmp_path / f"{name}.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    tables = {
        "bank": {"file": str(tmp_path / "bank.csv"), "key": "k", "label": "y"},
        "shop": {"file": str(tmp_path / "shop.csv"), "key": "k"},
    }
    for owner, settings in changes.items():
        tables[owner] |= settings
    data = {"dataset": {"kind": "tables"}, "tables": tables, "test_share": 0.25}
    return open_source(parse_config({"name": "x", "data": data} | ({"task": task} if task else {}))).split()


BANK = [("k", "a", "y"), *((row, row % 7, "yes" if row % 3 else "no") for row in range(40))]
SHOP = [("k", "b"), *((row, row * 0.5) for row in range(40))]


def changed(rows, column, value):
    return [rows[0], *((*row[:column], value(index), *row[column + 1 :]) for index, row in enumerate(rows[1:]))]


@pytest.mark.parametrize(
    ("bank", "shop", "changes", "line"),
    [
        (changed(BANK, 2, lambda _: "yes"), SHOP, {}, ("bank.csv", "'y'", "only")),
        (changed(BANK, 2, lambda i: "" if i == 5 else i % 2), SHOP, {}, ("bank.csv", "'y'", "row 7")),
        (changed(BANK, 1, lambda _: ""), SHOP, {"bank": {"features": {"a": "number"}}}, ("bank.csv", "'a'", "value")),
        (changed(BANK, 1, lambda _: 3), SHOP, {}, ("bank.csv", "'a'")),
        (changed(BANK, 1, lambda i: BANK[1 + i][2]), SHOP, {}, ("bank.csv", "'a'", "'y'")),
        (BANK, SHOP, {"bank": {"features": {"y": "category"}}}, ("bank.csv", "'y'")),
        (BANK, [("k", "y"), *SHOP[1:]], {}, ("shop.csv", "'y'")),
        (BANK, changed(SHOP, 0, lambda i: f"s{i}"), {}, ("shop.csv", "'0'", "'1'", "'2'")),
        (BANK, changed(SHOP, 0, lambda i: f"{i}.0"), {}, ("shop.csv", "bank")),
        (BANK, changed(SHOP, 0, lambda i: max(i, 3)), {}, ("shop.csv", "'3'", "row 3", "shop.dup")),
        (changed(BANK, 0, lambda i: i // 2), SHOP, {}, ("bank.csv", "20", "row 3", "bank.duplicates=first")),
        (BANK, SHOP, {"shop": {"label": "b"}}, ("data.tables", "shop")),
        (BANK, SHOP, {"bank": {"label": None}}, ("data.tables", "owner")),
        (BANK, SHOP, {"shop": {"key": None}}, ("data.tables.shop.key", "missing")),
        (BANK, SHOP, {"shop": {"features": {"b": "ignore"}}}, ("data.tables.shop.features", "left")),
        (BANK, SHOP, {"bank": {"keys": {"shopp": "k"}}}, ("data.tables.bank.keys", "'shopp'", "'shop'")),
    ],
)
def test_tables_that_cannot_be_learned_from_are_one_line(tmp_path, bank, shop, changes, line):
    with warnings.catch_warnings(action="ignore"), refused(*line):
        owners(tmp_path, bank, shop, **changes)


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        (lambda row, yes: row + 1 if yes else 0, True),  # days late: 0 exactly if on time
        (lambda row, yes: row + 1 if yes else "", True),
        (lambda row, yes: row, False),
        (lambda row, yes: 5 if row == 6 else int(yes), False),
        (lambda row, yes: f"{'late' if yes else 'fine'} {row % 2}", True),
        (lambda row, yes: "odd" if row == 8 else f"{'late' if yes else 'fine'} {row % 2}", True),
        (lambda row, yes: "both" if row in (3, 4) else f"{'late' if yes else 'fine'} {row % 2}", False),
        (lambda row, yes: f"customer {row}", False),
    ],
)
def test_a_feature_that_determines_the_class_is_warned_of(tmp_path, cell, told):
    bank = [("k", "a", "y"), *((row, cell(row, row % 3 != 0), row % 3 != 0) for row in range(40))]
    kind = "number" if isinstance(cell(1, True), int) else "category"
    with warnings.catch_warnings(record=True, action="always") as caught:
        owners(tmp_path, bank, SHOP, bank={"features": {"a": kind}})
    assert any(re.search("column 'a' .* label 'y'", str(each.message)) for each in caught) == told


@pytest.mark.filterwarnings("ignore")
def test_an_amount_is_no_class_unless_the_task_is_written(tmp_path):
    bank = [("k", "a", "y"), *((row, row % 7, f"{row % 120 * 0.5}") for row in range(480))]
    shop = [("k", "b"), *((row, row * 0.5) for row in range(480))]
    refuses("bank.csv", lambda: owners(tmp_path, bank, shop), "'y'", "120")
    assert len(owners(tmp_path, bank, shop, task="classification").labels.classes) == 120


def test_a_table_has_words_of_its_own_for_what_is_missing(tmp_path):
    bank = changed(BANK, 1, lambda index: ["unknown", " n. a. ", -999, 2.5][index % 4])
    features = {"a": "number"}
    with refused("bank.csv", "'a'", "row 2", "'unknown'"):
        owners(tmp_path, bank, SHOP, bank={"features": features})
    settings = {"features": features, "missing": ["unknown", "n. a.", -999]}
    part = owners(tmp_path, bank, SHOP, bank=settings).parties[0]
    held = np.concatenate([part.train.features, part.test.features])[:, 0]
    assert (np.isnan(held).sum(), set(held[~np.isnan(held)])) == (30, {2.5})
    path = tmp_path / "t.parquet"
    pq.write_table(
        pa.table({"k": ["a", "b", "c"], "x": pa.array([-999, 1, None]), "w": ["unknown", "-999", "v"]}), path
    )
    kinds: dict[str, ColumnKind] = {"x": "number", "w": "category"}
    table = read_table(path, kinds, [("k",)], Reading(missing=["unknown", "-999"]))
    numbers, words = table.columns["x"], table.columns["w"]
    assert isinstance(numbers, Numbers)
    assert isinstance(words, Categories)
    np.testing.assert_array_equal(numbers.values, [np.nan, 1.0, np.nan])
    assert words.codes.tolist() == [-1, -1, 0]


def test_a_key_that_is_a_feature_is_said(tmp_path):
    with pytest.warns(UserWarning, match="column 'k' is the key and a feature; does it say anything"):
        owners(tmp_path, BANK, SHOP, bank={"features": {"k": "number", "a": "number"}})


def test_a_label_of_nearly_as_many_classes_as_rows_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="label column 'y': has 20 classes in 40 rows; is it an amount"):
        owners(tmp_path, changed(BANK, 2, lambda index: index % 20 / 7), SHOP)


@pytest.mark.parametrize(
    ("slips", "names", "told"),
    [
        (1, "maybe", "1 of 120 rows is of class 'maybe'"),
        (2, "maybe", "2 .* are"),
        (3, "maybe", None),
        (9, "c{}", "1 of 120 rows is of class 'c0', and 8 more classes are as rare; "),
    ],
)
def test_classes_of_one_or_two_rows_among_many_are_one_line(tmp_path, slips: int, names: str, told: str | None):
    bank = [("k", "a", "y"), *((row, row % 7, names.format(row) if row < slips else row % 2) for row in range(120))]
    shop = [("k", "b"), *((row, row * 0.5) for row in range(120))]
    with warnings.catch_warnings(record=True, action="always") as caught:
        assert len(owners(tmp_path, bank, shop).labels.classes) >= 3
    lines = [str(each.message) for each in caught if "if that is a slip" in str(each.message)]
    assert len(lines) == (told is not None)
    assert all(re.search(f"label column 'y': {told}", line) for line in lines)


def test_a_file_that_is_not_there_is_looked_for_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses("none.csv", lambda: read_table(Path("none.csv"), KINDS, [("k",)]), tmp_path)


def test_what_is_dropped_is_counted_in_one_line(tmp_path):
    with pytest.warns(UserWarning, match="30 keys .*; dropped: 10 of 40 rows of bank, 5 of 35"):
        split = owners(tmp_path, BANK, [*SHOP[:31], *((f"x{row}", 1) for row in range(5))])
    assert len(split.labels.train.ids) + len(split.labels.test.ids) == 30


@pytest.mark.parametrize(
    ("bank_key", "shop_key", "more"),
    [("{:05}", "{}", "20 more .* if '20' were written '00020'"), ("A{}", "a{}", "20 more"), ("{}", "{}.0", "20 more")],
)
def test_keys_that_differ_in_their_writing_alone_are_told(tmp_path, bank_key, shop_key, more):
    bank = [BANK[0], *((bank_key.format(key), *rest) for key, *rest in BANK[1:])]
    shop = [SHOP[0], *(((shop_key if key >= 20 else bank_key).format(key), *rest) for key, *rest in SHOP[1:])]
    with pytest.warns(UserWarning, match=f"20 keys are .*{more}"):
        owners(tmp_path, bank, shop)


def test_doubled_keys_may_count_by_their_first_row(tmp_path):
    doubled = [*SHOP, (39, 1000.0)]
    with pytest.warns(UserWarning, match="1 of 41 rows of shop"):
        split = owners(tmp_path, BANK, doubled, shop={"duplicates": "first"})
    assert max(float(part.features.max()) for part in (split.parties[1].train, split.parties[1].test)) == 39 * 0.5


def test_a_look_at_a_table_proposes_what_its_columns_are(tmp_path):
    path = tmp_path / "t.csv"
    rows = [
        (f"id{i}", i, i % 5, f"{i % 4}", "same", f"2020-01-{1 + i % 28:02}", f"text {i}", "" if i % 3 else "red", i / 3)
        for i in range(40)
    ]
    names = ("id", "row", "count", "level", "flat", "day", "note", "colour", "share")
    path.write_text("\n".join(",".join(map(str, row)) for row in (names, *rows)))
    kinds, lines = propose_features(path, ["id"])
    numbers = {"count": "number", "level": "number", "share": "number"}
    ignored = {"row": "ignore", "flat": "ignore", "day": "ignore", "note": "ignore"}
    assert kinds == {**numbers, **ignored, "colour": "category"}
    assert [line.split("'")[1] for line in lines] == ["row", "flat", "day", "note"]
    colour = {each.name: each for each in describe_table(path)}["colour"]
    assert (colour.missing, colour.distinct, colour.range) == (26, "1", "red")


@pytest.mark.parametrize("cell", ["{0},{1}", "1.2{1}{0},{1}", "{0}{1},000", "-{0},5"])
def test_numbers_with_a_comma_are_no_categories_in_silence(tmp_path, cell):
    path = tmp_path / "t.csv"
    path.write_text("k;a\n" + "".join(f"{row};{cell.format(row % 3 + 1, row % 10)}\n" for row in range(60)))
    (summary,) = describe_table(path, ["a"])
    kind, why = summary.proposal()
    assert kind == "ignore"
    assert "with a comma" in why
    assert " in row 2" in why


def test_a_number_beyond_all_is_counted_as_no_finite_one(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("k,a\n" + "".join(f"{row},{row / 3 if row else '1e400'}\n" for row in range(40)))
    assert describe_table(path, ["a"])[0].proposal() == ("number", "has 1 cells that are no finite number")


def test_ten_thousand_categories_are_no_feature(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("k,c\n" + "".join(f"{row},c{row % 10_001}\n" for row in range(30_000)))
    (summary,) = describe_table(path, ["c"])
    assert (summary.proposal()[0], summary.distinct) == ("ignore", "over 10,000")


def test_a_label_is_proposed_as_the_label_and_no_feature(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("id,age,late\n" + "\n".join(f"c{row},{row % 7},{row % 2}" for row in range(30)))
    proposed = yaml.safe_load(proposed_yaml(path, describe_table(path), tmp_path, "late"))
    assert proposed["key"] == "id"
    assert proposed["label"] == "late"
    assert proposed["features"] == {"id": "ignore", "age": "number"}


def test_words_and_codes_for_a_missing_value_are_proposed(tmp_path: Path):
    """Words among numbers are taken; a code is asked about, as it might be a number; a category's word stays one."""
    path = tmp_path / "t.csv"
    rows = [f"{'unknown' if row % 3 == 0 else row % 7},{'-' if row % 9 == 0 else row / 8},{['missing', 'b'][row % 2]}"
            f",{-999 if row % 5 == 0 else row % 11}" for row in range(60)]  # fmt: skip
    path.write_text("age,size,kind,visits\n" + "\n".join(rows))
    summaries, found = describe_as_found(path)
    assert found.missing == ("-", "unknown")
    text = proposed_yaml(path, summaries, tmp_path, found=found)
    proposed = yaml.safe_load(text)
    assert proposed["missing"] == ["-", "unknown"]
    assert "every column; -999 as well?" in text
    assert proposed["features"]["age"] == proposed["features"]["size"] == "number"
    assert next(each for each in summaries if each.name == "age").missing == 20
    path.write_text("kind,visits\n" + "\n".join(f"{'unknown' if row % 2 else 'b'},{row - 5}" for row in range(60)))
    assert describe_as_found(path)[1].missing == ()
    assert "missing" not in yaml.safe_load(proposed_yaml(path, describe_table(path), tmp_path))


def test_words_among_numbers_are_proposed_beside_cells_that_are_errors(tmp_path: Path):
    path = tmp_path / "t.csv"
    cells = ["unknown", "12k", *range(98)]
    path.write_text("id,km\n" + "\n".join(f"{row:04},{cell}" for row, cell in enumerate(cells)))
    assert describe_as_found(path)[1].missing == ("unknown",)


def test_codes_that_differ_in_every_row_look_like_a_key(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("age,customer\n" + "\n".join(f"{row % 7},{row * 7919 % 100003:06}" for row in range(100)))
    assert [each.looks_like_key() for each in describe_table(path)] == [False, True]


def test_codes_with_leading_zeros_are_no_numbers(tmp_path: Path):
    lines = [f"{row % 30:05},{row % 300 * 7:05},{row % 12},{row / 100}" for row in range(400)]
    (path := tmp_path / "t.csv").write_text("\n".join(["postcode,branch,month,share", *lines]))
    kinds, doubtful = propose_features(path, [])
    assert kinds == {"postcode": "category", "branch": "ignore", "month": "number", "share": "number"}
    assert [line.partition(": ")[2] for line in doubtful] == [
        "column 'postcode' has codes such as 00000, which are no amounts; it is a category",
        "column 'branch' has codes such as 00000, which are no amounts and too many different values for a category; "
        "it is left out",
    ]


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("7,2.5,red", True),
        ("7,0.5,round", True),
        ("a,b,red", True),
        ("2019,2020,colour", False),
        ("0,1,2", False),
        ("a,b,colour", False),
        ("a,b,-1.5", False),
    ],
)
def test_a_file_without_a_header_is_noticed(tmp_path: Path, header: str, told: bool):
    path = tmp_path / "t.csv"
    path.write_text(header + "\n" + "\n".join(f"{row % 9},{row / 4},{['red', 'blue'][row % 2]}" for row in range(40)))
    assert bool(doubtful_header(path, describe_table(path))) == told
    assert any("header" in line for line in propose_features(path, [])[1]) == told


def test_a_label_called_as_one_of_its_classes_is_no_lost_header(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("a,left\n" + "\n".join(f"{row / 4},{['left', 'stayed'][row % 2]}" for row in range(40)))
    assert doubtful_header(path, describe_table(path))
    assert doubtful_header(path, describe_table(path), ("left",)) == ""
    assert propose_features(path, ["left"])[1] == []
