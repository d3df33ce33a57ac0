"""Rows to be scored from a query: the bits of the same rows in a file, or away; nothing else ends."""

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from served_owner import KEYS, NEW, check_same, fill, key

from vfl.data.tables.arrow import pq
from vfl.parties.serving import fetched_rows, row_connections
from vfl.parties.serving.fetched_rows import CONNECTIONS

pytest.importorskip("adbc_driver_sqlite", reason="needs the extra database")
OWNERS = pytest.mark.parametrize("owner", ["bank", "shop"])
QUERY = "SELECT * FROM rows WHERE k = ?"


@OWNERS
def test_a_query_s_rows_have_the_bits_of_their_file(owner: str, owned, new_rows: dict[str, Path]):
    own = owned(owner)
    rows = own.served(query=QUERY, database=f"sqlite:{new_rows[owner].with_suffix('.db')}")
    whole = own.from_file(new_rows[owner])
    for keys in (KEYS, KEYS[7:8], [*KEYS[::-3], key("nobody"), key("01000")]):
        found = rows.find(own.party, keys)
        check_same(own, found, whole, keys)
        assert found.away == frozenset()
        assert found.places.keys() == {*keys} & whole.places.keys()
    assert rows.find(own.party, []).places == {}
    assert own.told() == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC ?", "syntax"),
        ("SELECT * FROM nowhere WHERE k = ?", "nowhere"),
        ("SELECT k, age FROM rows WHERE k = ?", "no column 'job'"),
        ("SELECT age, job FROM rows WHERE k = ?", "no column 'k'"),
        ("SELECT *, k FROM rows WHERE k = ?", "'k' twice"),
        ("SELECT k, 'old' AS age, job FROM rows WHERE k = ?", "'old' is no number"),
        ("SELECT k, 1e31 AS age, job FROM rows WHERE k = ?", "too large"),
        ("SELECT k, 9e999 AS age, job FROM rows WHERE k = ?", "too large"),
        ("SELECT k, x'00' AS age, job FROM rows WHERE k = ?", "binary"),
        ("SELECT * FROM rows WHERE k = ? UNION ALL SELECT * FROM rows WHERE k = 1000", "2 rows of the key"),
        ("SELECT a.* FROM rows a, rows b, rows c WHERE a.k = ?", "more than 100 rows"),
        ("DELETE FROM rows WHERE k = ?", ""),
    ],
)
def test_what_is_wrong_is_one_line_and_the_owner_is_away(query: str, said: str, owned, new_rows: dict[str, Path]):
    own = owned("bank")
    rows = own.served(query=query, database=f"sqlite:{new_rows['bank'].with_suffix('.db')}")
    for _ in range(3):
        found = rows.find(own.party, KEYS[:1])
        assert (found.places, found.away) == ({}, {KEYS[0]})
    (line,) = own.told()
    assert said in line
    assert line.startswith("data.tables.bank.serve: key '1000': ")
    assert "\n" not in line
    with sqlite3.connect(new_rows["bank"].with_suffix(".db")) as connection:
        assert connection.execute("SELECT count(*) FROM rows").fetchone() == (len(NEW),)
    connection.close()


def test_one_wrong_row_costs_no_other_and_its_mending_is_seen(owned, new_rows: dict[str, Path], tmp_path: Path):
    own, good = owned("shop"), pq.read_table(new_rows["shop"]).to_pylist()
    bad = [row | ({"spent": "much"} if row["k"] == 1003 else {}) for row in good]
    fill(tmp_path / "own.db", [*bad, good[0]], "")
    rows, whole = own.served(query=QUERY, database=f"sqlite:{tmp_path / 'own.db'}"), own.from_file(new_rows["shop"])
    doubled = key(good[0]["k"])
    found = rows.find(own.party, KEYS)
    assert found.away == {key(1003), doubled}
    check_same(own, found, whole, KEYS)
    fill(tmp_path / "own.db", good)
    found = rows.find(own.party, KEYS)
    assert found.away == frozenset()
    check_same(own, found, whole, KEYS)


def test_a_database_that_another_one_replaces_is_opened_anew(owned, new_rows: dict[str, Path], tmp_path: Path):
    own, table = owned("bank"), pq.read_table(new_rows["bank"]).to_pylist()
    fill(tmp_path / "bank.db", table[:9])
    rows = own.served(query=QUERY, database=f"sqlite:{tmp_path / 'bank.db'}")
    assert len(rows.find(own.party, KEYS).places) == 9
    fill(tmp_path / "next.db", table)
    (tmp_path / "next.db").replace(tmp_path / "bank.db")
    check_same(own, rows.find(own.party, KEYS), own.from_file(new_rows["bank"]), KEYS)
    assert len(rows.find(own.party, KEYS).places) == len(KEYS)
    (tmp_path / "bank.db").rename(tmp_path / "gone.db")
    assert rows.find(own.party, KEYS).away == {*KEYS}
    (tmp_path / "gone.db").rename(tmp_path / "bank.db")
    assert rows.find(own.party, KEYS).away == frozenset()


def test_a_row_that_is_too_far_is_none_as_in_a_file(owned, new_rows: dict[str, Path], tmp_path: Path):
    own = owned("shop")
    rows = pq.read_table(new_rows["shop"]).to_pylist()
    fill(tmp_path / "far.db", [row | ({"spent": 1e9} if row["k"] == 1005 else {}) for row in rows])
    found = own.served(query=QUERY, database=f"sqlite:{tmp_path / 'far.db'}").find(own.party, KEYS)
    assert {*KEYS} - found.places.keys() == {key(1005)}
    assert found.away == frozenset()
    (line,) = own.told()
    assert line.endswith("the row has no score")


@pytest.mark.parametrize(
    "cell",
    ["1000' OR '1'='1", "1000; DROP TABLE rows", "x?", "a/b", "a\nb", "..", "\u00e9", "%", "{key}", "'", '"', "\\"],
)
def test_a_key_is_a_value_and_nothing_else(cell: str, owned, tmp_path: Path):
    own = owned("bank")
    known = [{"k": text, "age": 0.5, "job": "j1"} for text in ("1000", "x")]
    fill(tmp_path / "odd.db", known, "TEXT")
    rows = own.served(query=QUERY, database=f"sqlite:{tmp_path / 'odd.db'}")
    found = rows.find(own.party, [key(cell), key("x")])
    assert found.places.keys() == {key("x")}
    assert found.away == frozenset()
    if "\n" not in cell:  # no key of a table has a line end
        fill(tmp_path / "odd.db", [*known, {"k": cell, "age": 0.25, "job": "j2"}], "TEXT")
        assert rows.find(own.party, [key(cell)]).places.keys() == {key(cell)}
    found = rows.find(own.party, [b"[1]", b'["x", "x"]', b'["\\ud800"]', b"[" * 400, b"\xff", b'[ "x"]', b"{}"])
    assert (found.places, found.away) == ({}, frozenset())


@pytest.mark.parametrize(("query", "marks"), [("SELECT 1", 0), ("SELECT ?, ?", 2), ("SELECT '?' -- ?\n /* ? */", 0)])
def test_a_query_has_one_mark_for_each_column_of_the_key(query: str, marks: int, owned, new_rows: dict[str, Path]):
    with refused("data.tables.bank.serve.query", marks):
        owned("bank").served(query=query, database=f"sqlite:{new_rows['bank'].with_suffix('.db')}")


def test_marks_become_postgresql_s_but_for_those_in_texts():
    asked = "SELECT '?''?', \"?\", a -- ?\n FROM t /* ? */ WHERE a = ? AND b = ?"
    assert row_connections._numbered(asked) == asked.replace("a = ?", "a = $1").replace("b = ?", "b = $2")


@pytest.mark.parametrize("database", ["postgresql://u@h/d", "postgresql://u@h/d?sslmode=require&connect_timeout=9"])
def test_a_silent_server_is_given_up_unless_the_address_says_when(database: str):
    limited = row_connections._with_limits(database, 0.8)
    assert limited.startswith(database)
    assert limited.count("connect_timeout=") == limited.count("?") == limited.count("tcp_user_timeout=") == 1


class Hangs:
    """A connection that never answers, whatever is done to it."""

    def __init__(self, release: threading.Event) -> None:
        self.release = release

    def fetch(self, key: Any, until_s: float) -> Any:
        self.release.wait(60)
        raise OSError("gone")

    def abort(self) -> None: ...

    def close(self) -> None: ...


def test_what_hangs_has_no_more_threads_than_connections_and_rows_come_afterwards(owned, new_rows, monkeypatch):
    own, release = owned("bank"), threading.Event()
    rows = own.served(limit_s=0.05, query=QUERY, database=f"sqlite:{new_rows['bank'].with_suffix('.db')}")
    connections = rows._connections
    good, connections._connect = connections._connect, lambda: Hangs(release)
    for _ in range(6):
        found = rows.find(own.party, KEYS)
        assert (found.places, found.away) == ({}, {*KEYS})
    assert len(connections._threads) == CONNECTIONS
    assert len(connections._jobs) == 0
    assert len(own.told()) == 1
    connections._connect = good
    release.set()
    rows.limit_s = 20.0
    check_same(own, rows.find(own.party, KEYS), own.from_file(new_rows["bank"]), KEYS)


def test_it_ends_while_something_hangs(owned, new_rows, monkeypatch):
    own, release = owned("bank"), threading.Event()
    monkeypatch.setattr(fetched_rows, "LEAVES_S", 0.05)
    rows = own.served(limit_s=0.05, query=QUERY, database=f"sqlite:{new_rows['bank'].with_suffix('.db')}")
    rows._connections._connect = lambda: Hangs(release)
    rows.find(own.party, KEYS)
    rows.close()
    assert all(thread.daemon for thread in rows._connections._threads)
    release.set()
