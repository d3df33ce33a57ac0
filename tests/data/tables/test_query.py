"""Rows from a query: the bits of their Parquet file, one line for what is wrong, no password shown, nothing left."""

import gc
import subprocess
import sys
import tempfile
import warnings
from collections import deque
from pathlib import Path

import pytest
import yaml
from queried_bank import ROWS, check_bits_of_file, config_of, split_of, write_bank
from refusals import refused, refuses

import vfl
from vfl.config import ConfigError
from vfl.data.source import open_source
from vfl.data.tables import opened as reader
from vfl.data.tables.fitting import experiment_of

sqlite3 = pytest.importorskip("sqlite3", reason="this Python has no SQLite")
pytest.importorskip("adbc_driver_sqlite", reason="needs the extra database")

MIXED = "CASE WHEN k BETWEEN 4000 AND 4900 THEN 'x' ELSE visits END"
QUERY = "SELECT * FROM bank WHERE k < 1000"


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    """A database with a table of numbers with gaps, whole numbers and text, and the same rows as Parquet."""
    rows = [tuple(row.values()) for row in write_bank(tmp_path).to_pylist()]
    with sqlite3.connect(tmp_path / "bank.db") as connection:
        connection.execute("CREATE TABLE bank (k INTEGER, age REAL, visits INTEGER, job TEXT, late INTEGER)")
        connection.executemany("INSERT INTO bank VALUES (?, ?, ?, ?, ?)", [*rows, (5000, 1.0, 1, "far", 1)])
    connection.close()
    return tmp_path


def asked(folder: Path, query: str = QUERY) -> dict[str, str]:
    return {"query": query, "database": f"sqlite:{folder / 'bank.db'}"}


def test_a_query_gives_the_bits_of_its_parquet_file(bank: Path):
    check_bits_of_file(bank, **asked(bank))


def test_a_database_is_opened_by_the_name_that_its_file_has(bank: Path):
    """In the driver's URI ?, # and % have meanings of their own; a file may have them in its name."""
    odd = (bank / "bank.db").rename(bank / "50%20 #1?mode=rwc&x.db")
    split = split_of(bank, query=QUERY, database=f"sqlite:{odd}")
    assert split.parties[0].train.ids.equal(split_of(bank, file=str(bank / "bank.parquet")).parties[0].train.ids)


def test_all_readings_of_one_experiment_see_one_answer(bank: Path):
    source = open_source(config_of(bank, **asked(bank)))
    with warnings.catch_warnings(action="ignore"):
        source.names("bank")  # types are proposed
        with sqlite3.connect(bank / "bank.db") as connection:
            connection.execute("DELETE FROM bank WHERE k > 50")
        connection.close()
        split = source.split()
        anew = split_of(bank, **asked(bank))
    assert len(split.labels.train.ids) + len(split.labels.test.ids) == ROWS
    assert len(anew.labels.train.ids) + len(anew.labels.test.ids) == 51


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELEC", ("data.tables.bank.query", "syntax")),
        ("SELECT * FROM nowhere", ("data.tables.bank.query", "nowhere")),
        ("SELECT *, k FROM bank", ("data.tables.bank.query", "twice")),
        ("SELECT * FROM bank WHERE k < 0", ("data.tables.bank.query", "gives")),
        (
            "SELECT k, late, CASE WHEN k BETWEEN 4000 AND 4900 THEN 'x' ELSE visits END AS v FROM bank",
            ("data.tables.bank.query", "Type"),
        ),
        ("SELECT 1 AS k, age, late FROM bank", ("query.parquet", "repeat")),
        ("DELETE FROM bank", ("data.tables.bank.query",)),
    ],
)
def test_a_bad_query_is_one_line_and_leaves_nothing(
    bank: Path, query: str, told: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    (bank / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(bank / "temporary"))
    monkeypatch.setattr(reader, "_HELD", {})
    if "4000" in query:  # more rows than those by which the type is guessed
        with sqlite3.connect(bank / "bank.db") as connection:
            rows = [(k, 1.0, 1, "j", k % 2) for k in range(100, 5000)]
            connection.executemany("INSERT INTO bank VALUES (?, ?, ?, ?, ?)", rows)
        connection.close()
    with refused(*told):
        split_of(bank, **asked(bank, query))
    if "AS k" not in query:  # which is an answer, and its keys repeat
        assert list((bank / "temporary").iterdir()) == []
    with sqlite3.connect(bank / "bank.db") as connection:
        (count,) = connection.execute("SELECT count(*) FROM bank").fetchone()
    connection.close()
    assert count >= ROWS  # nothing is written


def test_a_database_that_is_not_there_is_one_line_and_is_not_made(bank: Path):
    refuses("data.tables.bank.database", lambda: split_of(bank, query=QUERY, database=f"sqlite:{bank / 'other.db'}"))
    assert not (bank / "other.db").exists()


@pytest.mark.parametrize(
    "database",
    [
        "postgresql://u:s3cret@host/db",
        "postgresql://u:a/s3cret@host/db",
        "postgresql://host/db?password=s3cret",
        "mysql://u:s3cret@host/db",
        "s3cret",
    ],
)
def test_no_line_shows_a_password(bank: Path, database: str):
    with refused("data.tables.bank.database", "database") as error:
        config_of(bank, query=QUERY, database=database)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("rows", [{"query": QUERY}, {"database": "sqlite:x.db"}, {"file": "x", **asked(Path())}])
def test_a_query_and_its_database_stand_together_and_alone(bank: Path, rows: dict[str, str]):
    with pytest.raises(ConfigError, match=r"data\.tables\.bank"):
        config_of(bank, **rows)


def test_owners_yaml_with_a_query_trains_and_predicts(bank: Path):
    own = {"query": QUERY, "database": "sqlite:bank.db", "key": "k", "label": "late"}
    (bank / "bank.yaml").write_text(yaml.safe_dump(own))
    tables = {"bank": bank / "bank.yaml", "shop": bank / "shop.csv"}
    with warnings.catch_warnings(action="ignore"):
        run = vfl.train(tables, {"training.rounds": 1, "threads": 1}, run_dir=bank / "run")
        by_query = run.predict({"bank": bank / "bank.yaml", "shop": bank / "shop.csv"})
        by_file = run.predict({"bank": bank / "bank.parquet", "shop": bank / "shop.csv"})
    assert (by_query == by_file).all()
    assert run.vertical.data.tables["bank"].database == f"sqlite:{bank / 'bank.db'}"
    assert experiment_of(tables, None, {}, {}).data.tables["bank"].query == QUERY
    (bank / "bank.db").rename(bank / "moved.db")  # new rows from files ask no database for those of the training
    again = vfl.Run(run.folder).predict({"bank": bank / "bank.parquet", "shop": bank / "shop.csv"})
    assert (again == by_file).all()


@pytest.mark.release
def test_without_a_query_no_driver_is_imported(bank: Path):
    code = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from pathlib import Path; from vfl.config import parse_config; from vfl.data.source import open_source\n"
        f"tables = {{'bank': {{'key': 'k', 'label': 'late', 'file': {str(bank / 'bank.parquet')!r}}}}}\n"
        "open_source(parse_config({'name': 'x', 'data': {'dataset': {'kind': 'tables'}, 'tables': tables}})).split()\n"
        "print([name for name in sys.modules if name.startswith('adbc')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_answer_goes_with_its_settings(bank: Path, monkeypatch: pytest.MonkeyPatch):
    """A process that asks again and again must not fill the disk."""
    monkeypatch.setattr(reader, "_LATEST", deque(maxlen=2))
    files = [reader.rows_of_query("bank", config_of(bank, **asked(bank)).data.tables["bank"]) for _ in range(5)]
    gc.collect()
    assert [file.exists() for file in files] == [False, False, False, True, True]
    kept = config_of(bank, **asked(bank)).data.tables["bank"]
    file = reader.rows_of_query("bank", kept)
    for _ in range(3):
        reader.rows_of_query("bank", config_of(bank, **asked(bank)).data.tables["bank"])
    gc.collect()
    assert file == reader.rows_of_query("bank", kept)
    assert file.exists()
