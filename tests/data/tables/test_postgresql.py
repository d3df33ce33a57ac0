"""A real PostgreSQL: rows and scores come and go with the bits of their Parquet file, and a bad end leaves nothing."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.parse import quote

import pytest
from queried_bank import ROWS, check_bits_of_file, split_of, write_bank

import vfl
from vfl.commands import predict
from vfl.data.tables.arrow import pa
from vfl.data.tables.database import connected

pytest.importorskip("adbc_driver_postgresql", reason="needs the extra database")
pytestmark = pytest.mark.release


class Server(NamedTuple):
    database: str
    """Without a password."""
    password: str
    folder: Path
    end_connections: Callable[[], None]


def binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        pytest.skip("Debian's package postgresql is not installed")
    return found[-1].parent if found else Path(str(on_path)).resolve().parent


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """PostgreSQL in a folder of its own, on a Unix socket alone, with a password for whoever comes."""
    programs = binaries()
    folder = Path(tempfile.mkdtemp(prefix="lvfl-pg-"))
    nobody = pwd.getpwnam("nobody")
    as_nobody: list[str] = []
    if os.getuid() == 0:  # it refuses to run as root
        as_nobody = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    (folder / "password").write_text("s3cret")
    (folder / "password").chmod(0o644)

    def ask(*argv: str) -> None:
        done = subprocess.run([*as_nobody, *argv], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    data = str(folder / "data")
    control = (str(programs / "pg_ctl"), "-D", data, "-w", "-t", "60")
    initdb = (str(programs / "initdb"), "-D", data, "-U", "bank", "-A", "scram-sha-256", "--no-sync", "-E", "UTF8")
    ask(*initdb, "--pwfile", str(folder / "password"))

    def start() -> None:
        ask(*control, "-o", f"-k {folder} -c listen_addresses='' -c fsync=off", "-l", str(folder / "log"), "start")

    def stop() -> None:
        ask(*control, "-m", "immediate", "stop")

    def end_connections() -> None:
        stop()
        start()

    start()
    database = f"postgresql://bank@/postgres?host={quote(str(folder), safe='')}"
    try:
        yield Server(database, "s3cret", folder, end_connections)
    finally:
        stop()
        shutil.rmtree(folder)


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
