"""Scores into a database, and what is told of a query: in one transaction, never over a table, no password shown."""

import math
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import yaml

import vfl
from vfl.commands import describe, predict
from vfl.runs.stored_run import Run

sqlite3 = pytest.importorskip("sqlite3", reason="this Python has no SQLite")
pytest.importorskip("adbc_driver_sqlite", reason="needs the extra database")
ROWS = 80


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database, the YAML of its query, another owner's table, and a run of both."""
    folder, draw = tmp_path_factory.mktemp("databases"), np.random.default_rng(2)
    fill(folder / "bank.db", [(k, float(draw.normal()), ("no", "yes")[k * 7 % 2]) for k in range(ROWS)])
    (folder / "shop.csv").write_text("\n".join(["k,spent", *(f"{k},{k * 11 % 17}" for k in range(ROWS))]))
    own = {"query": "SELECT * FROM bank", "database": "sqlite:bank.db", "key": "k", "label": "late"}
    (folder / "bank.yaml").write_text(yaml.safe_dump(own))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tables = {"bank": folder / "bank.yaml", "shop": folder / "shop.csv"}
        vfl.train(tables, {"training.rounds": 1, "threads": 1}, run_dir=folder / "run")
    return folder


def run(command: Any, argv: list[str]) -> int:
    with patch.object(sys, "argv", ["lvfl", *argv]):
        return command.main()


def fill(path: Path, rows: list[tuple[Any, ...]]) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bank (k INTEGER, age REAL, late TEXT)")
        connection.executemany("INSERT INTO bank VALUES (?, ?, ?)", rows)
    connection.close()


def select(path: Path, query: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    rows = [dict(row) for row in connection.execute(query)]
    connection.close()
    return rows


def predicting(trained: Path, database: str, table: str, *more: str) -> int:
    argv = [str(trained / "run"), "--table", f"bank={trained / 'bank.yaml'}", "--table", f"shop={trained / 'shop.csv'}"]
    return run(predict, [*argv, "--out", table, "--database", database, *more])


def test_scores_become_a_new_table_and_stay_numbers(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "scores.db"
    assert predicting(trained, f"sqlite:{file}", "scores", "--reasons", "--when-absent", "zeros") == 0
    rows = select(file, "SELECT * FROM scores")
    tables = {"bank": trained / "bank.yaml", "shop": trained / "shop.csv"}
    expected = Run(trained / "run").predict(tables)
    assert len(rows) == ROWS
    assert file.stat().st_mode & 0o077 == 0
    for row in rows:
        assert [row["p_no"], row["p_yes"]] == pytest.approx(expected[int(row["k"])].tolist(), abs=1e-8)
        assert row["prediction"] in ("no", "yes")
        assert isinstance(row["k"], str)
        assert math.isclose(row["bank"] + row["shop"], row["log_odds"] - row["without_owners"], abs_tol=1e-4)
    capsys.readouterr()
    before = file.read_bytes()
    assert predicting(trained, f"sqlite:{file}", "scores") == 2
    assert "'scores' already" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert run(predict, [str(trained / "run"), "--table", str(trained / "bank.yaml")]) == 2
    assert "--table: " in capsys.readouterr().err
    assert predicting(trained, f"sqlite:{file}", "other") == 0
    assert not list((trained / "run").glob("predictions*"))


@pytest.mark.parametrize(
    ("database", "said"),
    [
        ("postgresql://u:s3cret@host/db", "--database: holds a password"),
        ("mysql://host/db", "--database: is no database"),
        ("sqlite:/no/such/folder/x.db", "--database: there is no folder"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line(trained: Path, database: str, said: str, capsys):
    assert predicting(trained, database, "scores") == 2
    err = capsys.readouterr().err.strip()
    assert said in err
    assert "\n" not in err
    assert "s3cret" not in err


def test_a_failed_writing_leaves_no_table_and_no_file(trained: Path, tmp_path: Path, monkeypatch, capsys):
    from adbc_driver_manager import dbapi

    ingest = dbapi.Cursor.adbc_ingest

    def fails(self: Any, *given: Any, **more: Any) -> None:
        ingest(self, *given, **more)
        raise dbapi.OperationalError("the connection is lost", status_code=10)

    monkeypatch.setattr(dbapi.Cursor, "adbc_ingest", fails)
    assert predicting(trained, f"sqlite:{tmp_path / 'new.db'}", "scores") == 2
    assert not (tmp_path / "new.db").exists()
    fill(tmp_path / "old.db", [(1, 1.0, "no")])
    assert predicting(trained, f"sqlite:{tmp_path / 'old.db'}", "scores") == 2
    assert "--database: failed (the connection is lost" in capsys.readouterr().err
    assert [row["name"] for row in select(tmp_path / "old.db", "SELECT name FROM sqlite_master")] == ["bank"]


def test_a_query_is_described_and_its_yaml_is_read_back(trained: Path, tmp_path: Path, capsys):
    out = tmp_path / "bank.yaml"
    asked = ["--query", "SELECT k, age, late FROM bank", "--database", f"sqlite:{trained / 'bank.db'}"]
    assert run(describe, [*asked, "--label", "late", "--out", str(out)]) == 0
    proposed = yaml.safe_load(out.read_text())
    assert proposed["query"] == asked[1]
    assert (proposed["key"], proposed["label"], proposed["features"]) == ("k", "late", {"k": "ignore", "age": "number"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tables = {"bank": out, "shop": trained / "shop.csv"}
        trained_so = vfl.train(tables, {"training.rounds": 1, "threads": 1}, run_dir=tmp_path / "run")
    database = trained_so.vertical.data.tables["bank"].database
    assert database is not None
    assert Path(database.removeprefix("sqlite:")).samefile(trained / "bank.db")
    capsys.readouterr()
    for argv, said in (
        (asked[:2], "--query: goes with --database"),
        (asked, "--out: is missing"),
        ([*asked, "x.csv", "--out", "y"], "FILE: "),
        ([], "FILE: "),
        ([*asked[:1], "SELECT", *asked[2:], "--out", str(tmp_path / "y.yaml")], "--query: failed"),
        ([*asked[:3], "sqlite:gone.db", "--out", str(tmp_path / "y.yaml")], "--database: there is no file gone.db"),
        ([*asked[:3], "postgresql://u:s3cret@h/d", "--out", str(tmp_path / "y.yaml")], "--database: holds a password"),
    ):
        assert run(describe, argv) == 2
        err = capsys.readouterr().err.strip()
        assert said in err
        assert "s3cret" not in err
    assert not (tmp_path / "y.yaml").exists()


def test_a_file_that_moved_is_one_line_with_the_fix_which_works(trained: Path, tmp_path: Path, capsys):
    moved = (trained / "bank.db").rename(tmp_path / "bank.db")
    try:
        asked = [str(trained / "run"), "--when-absent", "mean", "--out", str(tmp_path / "p.csv")]
        assert run(predict, asked) == 2
        line = capsys.readouterr().err.strip()
        assert "\n" not in line
        assert "data.tables.bank.database=sqlite:FILE" in line
        assert run(predict, [asked[0], f"data.tables.bank.database=sqlite:{moved}", *asked[1:]]) == 0
    finally:
        moved.rename(trained / "bank.db")
