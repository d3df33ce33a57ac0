"""A bank's rows for a database and as Parquet, and the split of an experiment on them and a shop's file."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from vfl.config import ExperimentConfig, parse_config
from vfl.data.source import Split, open_source
from vfl.data.tables.arrow import pa, pq

ROWS = 90


def write_bank(folder: Path) -> Any:
    """Write the bank's rows, numbers with gaps among them, as Parquet, and the shop's as CSV; return the bank's."""
    draw = np.random.default_rng(4)
    rows = [
        (k, None if k % 7 == 0 else float(draw.normal()), int(draw.integers(9)), f"j{k % 3}'", k * 5 % 2)
        for k in range(ROWS)
    ]
    table = pa.table(dict(zip(("k", "age", "visits", "job", "late"), map(list, zip(*rows, strict=True)), strict=True)))
    pq.write_table(table, folder / "bank.parquet")
    (folder / "shop.csv").write_text("\n".join(["k,spent", *(f"{k},{k * 11 % 17}" for k in range(ROWS))]))
    return table


def config_of(folder: Path, **rows: str) -> ExperimentConfig:
    tables = {
        "bank": {"key": "k", "label": "late", **rows},
        "shop": {"file": str(folder / "shop.csv"), "key": "k"},
    }
    return parse_config({"name": "x", "data": {"dataset": {"kind": "tables"}, "tables": tables}})


def split_of(folder: Path, **rows: str) -> Split:
    with warnings.catch_warnings(action="ignore"):
        return open_source(config_of(folder, **rows)).split()


def check_bits_of_file(folder: Path, query: str, database: str) -> None:
    """Assert that a query gives the bits of the Parquet file."""
    by_query = split_of(folder, query=query, database=database)
    by_file = split_of(folder, file=str(folder / "bank.parquet"))
    for one, other in zip(by_query.parties, by_file.parties, strict=True):
        assert one.train.features.nan_to_num(99.0).equal(other.train.features.nan_to_num(99.0))
        assert one.test.more[0].equal(other.test.more[0])
        assert one.train.ids.equal(other.train.ids)
    assert by_query.labels.train.values.equal(by_file.labels.train.values)
