"""An owner of a trained run and its rows to be scored, from a file and from where they live."""

import sqlite3
from pathlib import Path
from typing import Any

import torch

from vfl.config import parse_config
from vfl.core.local import InProcess
from vfl.data.tables.one_row import RowReader
from vfl.messages.keys import key_bytes
from vfl.parties.serving.fetched_rows import FetchedRows
from vfl.parties.serving.file_rows import FileRows, FoundRows, ServedDrift
from vfl.parties.serving.row_connections import http_connections, query_connections

NEW = range(1000, 1060)


def key(cell: object) -> bytes:
    return key_bytes([str(cell)], None)


KEYS = [key(each) for each in NEW]


def fill(path: Path, rows: list[dict[str, Any]], key_type: str = "INTEGER") -> None:
    names = [*rows[0]]
    types = ", ".join(f"{name} {key_type if name == 'k' else ''}" for name in names)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE IF EXISTS rows")
        connection.execute(f"CREATE TABLE rows ({types})")
        marks = ", ".join("?" for _ in names)
        connection.executemany(f"INSERT INTO rows VALUES ({marks})", [tuple(row.values()) for row in rows])
    connection.close()


class Owner:
    """One owner of a trained run, its log, and its rows from wherever they are."""

    def __init__(self, trained: InProcess, name: str, folder: Path) -> None:
        self.source: Any = trained.source
        self.party: Any = next(each for each in trained.parties if each.name == name)
        self.name, self.said = name, list[str]()
        self.drift = ServedDrift([], folder / "drift.json", self.said.append)
        self.reader = RowReader(self.source, name)
        self._opened: list[Any] = []

    def from_file(self, path: Path) -> FoundRows:
        rows = FileRows(path, self.source, self.name, None, self.drift, self.said.append)
        self._opened.append(rows)
        return rows.find(self.party, [])

    def served(self, limit_s: float = 20.0, cache_s: float = 0.0, **serve: Any) -> FetchedRows:
        own = {"key": "k", "label": "late", "serve": serve | ({"cache_s": cache_s} if cache_s else {})}
        tables = {self.name: {"file": "never.csv", **own}}
        config = parse_config({"name": "x", "data": {"dataset": {"kind": "tables"}, "tables": tables}})
        table = config.data.tables[self.name]
        assert table.serve is not None
        if table.serve.query is not None:
            connect = query_connections(self.reader.where, table, 1, limit_s)
        else:
            connect = http_connections(self.reader.where, table.serve, self.reader.key)
        rows = FetchedRows(self.reader, connect, limit_s, cache_s, self.drift, self.said.append)
        self._opened.append(rows)
        return rows

    def embedded(self, rows: FoundRows) -> dict[bytes, torch.Tensor]:
        """The embedding of each key, one key at a time."""
        return {each: self.party.embed_new(rows.samples, torch.tensor([place])) for each, place in rows.places.items()}

    def told(self) -> list[str]:
        """What the log says of rows that are wrong."""
        return [line for line in self.said if "key '" in line]

    def close(self) -> None:
        for each in self._opened:
            each.close()


def check_same(owner: Owner, found: FoundRows, whole: FoundRows, keys: list[bytes]) -> None:
    """Every key that came has the file's bits; those that did not are away, and all others are not in the file."""
    expected, mine = owner.embedded(whole), owner.embedded(found)
    for each in keys:
        if each in mine:
            assert torch.equal(mine[each], expected[each])
        else:
            assert each in found.away or each not in expected
    assert not found.away & mine.keys()
