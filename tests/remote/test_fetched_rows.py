"""Owners whose rows are in a database or behind a service: scores are those of their files, or lack the owner."""

import csv
import json
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from vfl.parties.network.tls.certificates import SERVER

from .service import NEW, Service

pytest.importorskip("adbc_driver_sqlite", reason="needs the extra database")
KEYS = [*NEW][:40]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def write_database(path: Path, rows: list[dict[str, Any]]) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE IF EXISTS rows")
        connection.execute("CREATE TABLE rows (k INTEGER, age REAL, job TEXT)")
        connection.executemany(
            "INSERT INTO rows VALUES (?, ?, ?)", [(row["k"], row["age"], row["job"]) for row in rows]
        )
    connection.close()


@pytest.fixture
def shop(service: Service) -> Iterator[Any]:
    """A service of the shop's rows; keys in ``broken`` get status 500."""
    rows = {row["k"]: row for row in rows_of(service.tables["shop"])}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            key = self.path.rsplit("/", 1)[-1]
            row = rows.get(key)
            cells = {name: json.loads(cell) if cell else None for name, cell in (row or {}).items()}
            body = json.dumps(cells).encode()
            self.send_response(500 if int(key) in server.broken else 404 if row is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.broken = True, set[int]()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_rows_from_where_they_live_give_the_scores_of_their_files(service: Service, shop: Any, tmp_path: Path):
    expected, database = service.predicted(), tmp_path / "bank.db"
    rows = rows_of(service.tables["bank"])
    write_database(database, rows)
    asked = f"{{query: 'SELECT * FROM rows WHERE k = ?', database: 'sqlite:{database}'}}"
    url = f"http://127.0.0.1:{shop.server_port}/rows/{{key}}"
    service.start(SERVER)
    service.start("bank", party=(f"data.tables.bank.serve={asked}",))
    service.start("shop", party=(f"data.tables.shop.serve={{url: '{url}'}}", "network.consent.reasons=amounts"))
    service.until_ready("bank", "shop")
    scores = service.score(*KEYS)
    assert [score["parties"] for score in scores] == [{"bank": "row", "shop": "row"}] * len(KEYS)
    assert {score["key"]: score["probabilities"] for score in scores} == {str(key): expected[str(key)] for key in KEYS}
    assert service.score(999)[0]["parties"] == {"bank": "none", "shop": "none"}

    write_database(database, [*rows, rows[0]])
    shop.broken = {KEYS[3]}
    scores = {score["key"]: score for score in service.score(*KEYS)}
    first, broken = scores.pop(rows[0]["k"]), scores.pop(str(KEYS[3]))
    assert (first["parties"], first["probabilities"]) == ({"bank": "away", "shop": "row"}, None)
    assert (broken["parties"], broken["probabilities"]) == ({"bank": "row", "shop": "away"}, None)
    assert {key: score["probabilities"] for key, score in scores.items()} == {key: expected[key] for key in scores}

    write_database(database, rows)
    shop.broken = set()
    reply = service.post("/v1/predict", {"keys": KEYS, "reasons": True})
    assert [score["probabilities"] for score in reply.body["scores"]] == [expected[str(key)] for key in KEYS]
    assert {score["reasons"]["disclosed"]["shop"] for score in reply.body["scores"]} == {"amounts"}


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        ("{query: SELECT * FROM rows, database: 'sqlite:gone.db'}", "data.tables.bank.serve.query: has 0 ?"),
        ("{url: 'https://h/{key}', token: gone.txt}", "gone.txt: No such file"),
        ("{url: 'https://h/{key}', ca: gone.pem}", "data.tables.bank.serve.ca: gone.pem cannot be used"),
    ],
)
def test_what_cannot_be_used_ends_the_owner_with_one_line(serve: str, said: str, service: Service):
    service.start(SERVER)
    service.start("bank", party=(f"data.tables.bank.serve={serve}",))
    service.federation.wait("bank")
    assert service.federation.codes["bank"][-1] == 2
    assert said in service.federation.logs()


def test_keys_that_travel_hashed_need_a_file(service: Service, tmp_path: Path):
    (tmp_path / "secret").write_text("a secret of all owners")
    (tmp_path / "secret").chmod(0o600)
    hidden = (f"serving.key_secret={tmp_path / 'secret'}",)
    service.start(SERVER, server=hidden)
    service.start("bank", party=("data.tables.bank.serve={url: 'https://h/{key}'}", *hidden))
    service.federation.wait("bank")
    assert service.federation.codes["bank"][-1] == 2
    assert "serving.key_secret hides" in service.federation.logs()
