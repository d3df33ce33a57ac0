"""Rows to be scored from a real PostgreSQL: the bits of their file; what is lost or hangs is away, and comes again."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgresql import Server, running_postgresql
from served_owner import KEYS, NEW, Owner, check_same, key

from vfl.data.tables.arrow import pa, pc, pq
from vfl.data.tables.database import connected

pytest.importorskip("adbc_driver_postgresql", reason="needs the extra database")
pytestmark = pytest.mark.release


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_postgresql() as server:
        yield server


@pytest.fixture(autouse=True)
def password(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", server.password)


def fill(server: Server, path: Path, key_type: str = "bigint") -> None:
    table = pq.read_table(path)
    with connected("test", server.database, "rw") as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS rows, bare")
        cursor.adbc_ingest("bare", table, mode="create")
        cursor.execute("CREATE TABLE rows AS SELECT * FROM bare")
        cursor.execute(f"ALTER TABLE rows ALTER k TYPE {key_type}")
        connection.commit()


@pytest.mark.parametrize("owner", ["bank", "shop"])
@pytest.mark.parametrize("key_type", ["bigint", "integer", "text", "varchar(9)", "char(9)", "numeric"])
def test_a_row_has_the_bits_of_its_file_whatever_the_key_s_type(
    owner: str, key_type: str, owned, new_rows: dict[str, Path], server: Server
):
    fill(server, new_rows[owner], key_type)
    own: Owner = owned(owner)
    rows = own.served(query="SELECT * FROM rows WHERE k = ?", database=server.database)
    whole, keys = own.from_file(new_rows[owner]), [*KEYS, key("nobody"), key("01000"), key(10**40)]
    found = rows.find(own.party, keys)
    assert own.told() == []
    assert found.away == frozenset()
    assert found.places.keys() == whole.places.keys()
    check_same(own, found, whole, keys)


def test_a_cast_takes_keys_of_other_types(owned, new_rows: dict[str, Path], server: Server):
    fill(server, new_rows["bank"])
    own: Owner = owned("bank")
    rows = own.served(query="SELECT * FROM rows WHERE k = CAST(? AS bigint) -- ?", database=server.database)
    found = rows.find(own.party, [KEYS[3], key("nobody")])
    assert found.places.keys() == {KEYS[3]}
    assert found.away == {key("nobody")}  # what the database refuses as a number


def test_a_server_that_goes_is_away_and_comes_again(owned, new_rows: dict[str, Path], server: Server):
    fill(server, new_rows["bank"])
    own: Owner = owned("bank")
    rows = own.served(query="SELECT * FROM rows WHERE k = ?", database=server.database)
    whole = own.from_file(new_rows["bank"])
    check_same(own, rows.find(own.party, KEYS), whole, KEYS)
    server.end_connections()
    found = rows.find(own.party, KEYS)  # each connection is made anew
    assert found.away == frozenset()
    check_same(own, found, whole, KEYS)
    server.stop()
    try:
        assert rows.find(own.party, KEYS).away == {*KEYS}
    finally:
        server.start()
    assert rows.find(own.party, KEYS).away == frozenset()
    assert own.told()
    assert all("\n" not in line and server.password not in line for line in own.said)


def test_a_query_that_hangs_is_away_in_time_and_ended_by_the_server(owned, new_rows: dict[str, Path], server: Server):
    fill(server, new_rows["bank"])
    own: Owner = owned("bank")
    slow = "SELECT rows.* FROM rows, (SELECT pg_sleep(600)) AS s WHERE k = ?"
    rows = own.served(limit_s=0.5, query=slow, database=server.database)
    for _ in range(4):
        assert rows.find(own.party, KEYS).away == {*KEYS}
    asked = "SELECT count(*) AS n FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active'"
    until_s = time.monotonic() + 30
    while True:
        with connected("test", server.database) as connection, connection.cursor() as cursor:
            cursor.execute(asked)
            if cursor.fetch_arrow_table()["n"][0].as_py() <= 1:  # this one
                break
        assert time.monotonic() < until_s
        time.sleep(0.1)
    assert len([thread for thread in threading.enumerate() if thread.name == "row connection"]) <= 8


def test_a_query_writes_nothing(owned, new_rows: dict[str, Path], server: Server):
    fill(server, new_rows["bank"])
    own: Owner = owned("bank")
    rows = own.served(query="DELETE FROM rows WHERE k = ? RETURNING *", database=server.database)
    assert rows.find(own.party, KEYS).away == {*KEYS}
    with connected("test", server.database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) AS n FROM rows")
        assert cursor.fetch_arrow_table()["n"][0].as_py() == len(KEYS)


def test_a_wrong_password_is_away_and_in_no_line(owned, new_rows, server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PGPASSWORD", "wr0ng-wr0ng")
    own: Owner = owned("bank")
    rows = own.served(query="SELECT * FROM rows WHERE k = ?", database=server.database)
    assert rows.find(own.party, KEYS[:1]).away == {KEYS[0]}
    (line,) = own.told()
    assert "authentication" in line
    assert all("wr0ng" not in each for each in own.said)


def test_a_repeated_key_is_away_and_the_others_are_not(owned, new_rows: dict[str, Path], server: Server):
    fill(server, new_rows["bank"])
    with connected("test", server.database, "rw") as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO rows SELECT * FROM rows WHERE k = {NEW[5]}")
        connection.commit()
    own: Owner = owned("bank")
    found = own.served(query="SELECT * FROM rows WHERE k = ?", database=server.database).find(own.party, KEYS)
    assert found.away == {key(NEW[5])}
    assert len(found.places) == len(KEYS) - 1


def test_types_of_postgresql_are_those_of_parquet(owned, new_rows: dict[str, Path], server: Server):
    """numeric comes as text, real as float32: the model reads the same numbers as from a file of these types."""
    fill(server, new_rows["shop"])
    with connected("test", server.database, "rw") as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE rows ALTER spent TYPE numeric(12, 4), ALTER visits TYPE real")
        connection.commit()
    table = pq.read_table(new_rows["shop"])
    spent = pc.cast(table["spent"], pa.decimal128(12, 4), safe=False)
    table = table.set_column(1, "spent", spent).set_column(2, "visits", pc.cast(table["visits"], pa.float32()))
    typed = new_rows["shop"].with_name("typed.parquet")
    pq.write_table(table, typed)
    own: Owner = owned("shop")
    rows = own.served(query="SELECT * FROM rows WHERE k = ?", database=server.database)
    check_same(own, rows.find(own.party, KEYS), own.from_file(typed), KEYS)
