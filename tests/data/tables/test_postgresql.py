"""A real PostgreSQL: rows and scores come and go with the bits of their Parquet file, and a bad end leaves nothing."""

import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from postgresql import Server, running_postgresql
from queried_bank import ROWS, check_bits_of_file, split_of, write_bank

import vfl
from vfl.commands import predict
from vfl.data.tables.arrow import pa
from vfl.data.tables.database import connected

pytest.importorskip("adbc_driver_postgresql", reason="needs the extra database")
pytestmark = pytest.mark.release


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_postgresql() as server:
        yield server


@pytest.fixture(autouse=True)
def password(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", request.getfixturevalue("server").password)


def execute(server: Server, *statements: str) -> None:
    with connected("test", server.database, "rw") as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


def select(server: Server, query: str) -> list[dict[str, Any]]:
    with connected("test", server.database) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetch_arrow_table().to_pylist()


@pytest.fixture
def folder(server: Server, tmp_path: Path) -> Path:
    """The bank's rows in the database and as Parquet, numbers with gaps among them, and the shop's as CSV."""
    table = write_bank(tmp_path)
    with connected("test", server.database, "rw") as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS bank")
        cursor.execute("DROP TABLE IF EXISTS scores")
        cursor.adbc_ingest("bank", table, mode="create")
        connection.commit()
    return tmp_path


def test_a_query_gives_the_bits_of_its_parquet_file(server: Server, folder: Path):
    check_bits_of_file(folder, "SELECT * FROM bank ORDER BY age DESC", server.database)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC", "query: .*syntax"),
        ("SELECT * FROM nowhere", "query: .*nowhere"),
        ("SELECT k, late, 1 / (k - 80) AS v FROM bank", "query: .*division by zero"),
        ("SELECT *, pg_terminate_backend(pg_backend_pid()) FROM bank", "query: "),
        ("SELECT * FROM bank WHERE k < 0", "query: gives no row"),
    ],
)
def test_a_bad_query_or_a_lost_connection_is_one_line(
    server: Server, folder: Path, query: str, said: str, monkeypatch: pytest.MonkeyPatch
):
    (folder / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "temporary"))
    with pytest.raises(ValueError, match=rf"data\.tables\.bank\.{said}") as error:
        split_of(folder, query=query, database=server.database)
    assert "\n" not in str(error.value)
    assert "s3cret" not in str(error.value)
    assert [*(folder / "temporary").iterdir()] == []


def test_a_wrong_password_is_one_line_and_is_not_shown(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PGPASSWORD", "wr0ng")
    with pytest.raises(ValueError, match=r"data\.tables\.bank\.database: .*authentication") as error:
        split_of(folder, query="SELECT 1", database=server.database)
    assert "\n" not in str(error.value)
    assert "wr0ng" not in str(error.value)


def predicting(folder: Path, database: str) -> int:
    tables = ["--table", f"bank={folder / 'bank.parquet'}", "--table", f"shop={folder / 'shop.csv'}"]
    argv = ["lvfl", str(folder / "run"), *tables, "--out", "scores", "--database", database]
    with patch.object(sys, "argv", argv):
        return predict.main()


def test_scores_are_written_once_and_whole(server: Server, folder: Path, capsys: pytest.CaptureFixture[str]):
    with warnings.catch_warnings(action="ignore"):
        (folder / "bank.yaml").write_text(
            f"{{query: SELECT * FROM bank, database: {server.database!r}, key: k, label: late}}"
        )
        tables = {"bank": folder / "bank.yaml", "shop": folder / "shop.csv"}
        run = vfl.train(tables, {"training.rounds": 1, "threads": 1}, run_dir=folder / "run")
    assert predicting(folder, server.database) == 0
    rows = select(server, "SELECT * FROM scores")
    expected = run.predict(tables | {"bank": folder / "bank.parquet"})
    assert len(rows) == ROWS
    for row in rows:
        assert [row["p_0"], row["p_1"]] == pytest.approx(expected[int(row["k"])].tolist(), abs=1e-8)
    capsys.readouterr()
    assert predicting(folder, server.database) == 2
    assert "'scores' already" in capsys.readouterr().err
    assert len(select(server, "SELECT * FROM scores")) == ROWS
    kept = [path for path in (folder / "run").rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    assert kept == []


def test_a_connection_lost_while_scores_are_written_leaves_no_table(server: Server, folder: Path):
    def lose() -> None:
        with connected("--database", server.database, "rw") as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("scores", pa.table({"k": ["1"]}), mode="create")
            server.end_connections()
            connection.commit()

    with pytest.raises(ValueError, match="--database: failed") as error:
        lose()
    assert "\n" not in str(error.value)
    assert select(server, "SELECT 1 FROM pg_tables WHERE tablename = 'scores'") == []
