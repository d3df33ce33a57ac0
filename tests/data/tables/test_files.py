"""Files as people have them: each is read, or is one line that says what it is and what to do."""

import bz2
import lzma
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from refusals import refused, refuses

from vfl.config import parse_config
from vfl.config.tables import ColumnKind
from vfl.data.source import open_source
from vfl.data.tables.arrow import pa, pq
from vfl.data.tables.cells import column_names
from vfl.data.tables.columns import Numbers, read_table
from vfl.data.tables.describe import describe_table
from vfl.data.tables.proposal import propose_features

KINDS: dict[str, ColumnKind] = {"a": "number"}
PLAIN = b"k,a,b\n1,2,x\n2,3,y\n"


def orc(path: Path) -> None:
    from pyarrow import orc

    orc.write_table(pa.table({"k": [1], "a": [2]}), path)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"sep=;\nk;a;b\n1;2;x\n2;3;y\n", ["k", "a", "b"]),
        (b"\xef\xbb\xbfsep=,\r\nk,a,b\r\n1,2,x\r\n2,3,y\r\n", ["k", "a", "b"]),
        (b"k;a;debt, net, total\n1;2;x\n2;3;y\n", ["k", "a", "debt, net, total"]),
        (b"k;a, gross;debt, net, total, old\n1;2;x\n2;3;y\n", ["k", "a, gross", "debt, net, total, old"]),
        (bz2.compress(PLAIN), ["k", "a", "b"]),
        (pa.compress(PLAIN, codec="zstd", asbytes=True), ["k", "a", "b"]),
        (b"#k,a,b\n1,2,x\n2,3,y\n", ["#k", "a", "b"]),
        (b"sep,a\n1,2\n2,3\n", ["sep", "a"]),
        (b"BZh,a\n1,2\n2,3\n", ["BZh", "a"]),
        (b"ORC,a\n1,2\n2,3\n", ["ORC", "a"]),
    ],
)
def test_a_file_is_read_as_it_is(tmp_path: Path, content: bytes, names: list[str]):
    (path := tmp_path / "t.csv").write_bytes(content)
    assert column_names(path) == names
    table = read_table(path, {names[1]: "number"}, [(names[0],)])
    column = table.columns[names[1]]
    assert isinstance(column, Numbers)
    assert column.values.tolist() == [2.0, 3.0]
    assert table.keys[(names[0],)].to_pylist() == ["1", "2"]


def test_rows_are_counted_below_the_line_that_names_the_separator(tmp_path: Path):
    (path := tmp_path / "t.csv").write_text("sep=;\nk;a\n1;2\n2;x\n")
    refuses("t.csv", lambda: read_table(path, KINDS, [("k",)]), "row 4", "'x'")


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (b"# made by us\nk,a,b\n1,2,x\n", ("t.csv", "made")),
        (b"Report of May\n\nk,a,b\n1,2,x\n", ("t.csv", "Report")),
        (lzma.compress(PLAIN), ("t.csv", "unpack")),
        (orc, ("t.csv", "UTF-")),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", ("t.csv", "Excel")),
        (b"ARROW1\0\0", ("t.csv", "Arrow")),
        (b"SQLite format 3\0", ("t.csv", "SQLite")),
        (Path.mkdir, ("t.csv", "parts")),
        (os.mkfifo, ("t.csv", "regular")),
        (b"k,a\n1," + b"1" * (9 << 20) + b"\n", ("t.csv", "longer")),
        (b'k,a\n1,"' + b"1\n" * (5 << 20), ("t.csv", "longer")),
    ],
)
def test_what_cannot_be_read_says_what_it_is(tmp_path: Path, made: Any, line: tuple[str, ...]):
    path = tmp_path / "t.csv"
    path.write_bytes(made) if isinstance(made, bytes) else made(path)
    with refused(*line) as error:
        read_table(path, KINDS, [("k",)])
    assert len(str(error.value)) < 400


def test_lines_above_the_header_are_told_by_a_look(tmp_path: Path):
    (path := tmp_path / "t.csv").write_text("# made by us\nk,a,b\n1,2,x\n")
    with refused("t.csv", "'# made by us'"):
        describe_table(path)


def test_a_category_with_a_line_end_says_what_to_do(tmp_path: Path):
    (path := tmp_path / "t.csv").write_text('k,a,b\n1,2,"x\ny"\n')
    refuses("t.csv", lambda: read_table(path, {"b": "category"}, [("k",)]), "quote")
    assert isinstance(read_table(path, KINDS | dict[str, ColumnKind](b="ignore"), [("k",)]).columns["a"], Numbers)


def test_columns_that_hold_no_cells_are_left_out(tmp_path: Path):
    columns = {"a": [float(row % 7) for row in range(30)], "l": [[1, 2]] * 30, "b": [b"x\xff"] * 30}
    pq.write_table(pa.table(columns), path := tmp_path / "t.parquet")
    kinds, lines = propose_features(path, [])
    assert kinds == {"a": "number", "l": "ignore", "b": "ignore"}
    assert any("'l' holds list" in line for line in lines)
    assert [each.name for each in describe_table(path)] == ["a", "l", "b"]
    refuses("t.parquet", lambda: read_table(path, {"l": "category"}, []), "'l'")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_time_is_one_key_in_every_unit(tmp_path: Path, unit: str, zone: str | None):
    times = pa.array([datetime(2026, 1, day, 10) for day in (1, 2)], pa.timestamp(unit, zone))
    pq.write_table(pa.table({"k": times, "a": [1.0, 2.0]}), path := tmp_path / "t.parquet")
    found = read_table(path, KINDS, [("k",)]).keys[("k",)].to_pylist()
    assert found == [f"2026-01-0{day} 10:00:00{'Z' if zone else ''}" for day in (1, 2)]
    if unit != "s":
        half = pa.array([datetime(2026, 1, 1, 10, 0, 0, 120000)], pa.timestamp(unit))
        pq.write_table(pa.table({"k": half, "a": [1.0]}), path)
        assert read_table(path, KINDS, [("k",)]).keys[("k",)].to_pylist() == ["2026-01-01 10:00:00.12"]


@pytest.mark.parametrize("writing", ["A\u200b{}", "A {}", "A{} \u200b", "A\u00a0{}", "a{}", "A{}.0"])
@pytest.mark.parametrize("all_of_them", [True, False])
def test_keys_that_look_alike_are_told(tmp_path: Path, writing: str, all_of_them: bool):
    bank = "".join(f"A{row},{row % 7},{row % 3 % 2}\n" for row in range(40))
    keys = [(writing if all_of_them or row >= 20 else "A{}").format(row) for row in range(40)]
    (tmp_path / "bank.csv").write_text("k,a,y\n" + bank)
    (tmp_path / "shop.csv").write_text("k,b\n" + "".join(f"{key},{row / 2}\n" for row, key in enumerate(keys)))
    tables = {name: {"file": str(tmp_path / f"{name}.csv"), "key": "k"} for name in ("bank", "shop")}
    tables["bank"]["label"] = "y"
    data = {"dataset": {"kind": "tables"}, "tables": tables, "test_share": 0.25}
    source = open_source(parse_config({"name": "x", "data": data}))
    if all_of_them:
        refuses("shop.csv", lambda: source.split(), "40", "'A0'")
    else:
        with pytest.warns(UserWarning, match="20 more would be found .* were written 'A20'"):
            source.split()
