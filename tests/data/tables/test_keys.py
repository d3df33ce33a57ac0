"""Keys of a table, read alike from a file and a frame, and the file that a match of them leaves with each owner."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from refusals import refused, refuses

from vfl.api.frames import owner_of
from vfl.config import parse_config
from vfl.data.source import open_source
from vfl.data.tables.arrow import pq
from vfl.data.tables.cells import MISSING
from vfl.data.tables.columns import key_cell, read_table
from vfl.data.tables.matching_result import Match, keys_digest, read_match, write_match
from vfl.data.tables.source import Tables

EDGE = 2**53


def keys_of_file(folder: Path, cells: Any) -> list[str]:
    pq.write_table(pa.table({"k": cells, "x": [1.0] * len(cells)}), folder / "t.parquet")
    return read_table(folder / "t.parquet", {}, [("k",)]).keys[("k",)].to_pylist()


def keys_of_frame(folder: Path, cells: Any) -> list[str]:
    return owner_of("X['bank']", pa.table({"k": cells, "x": [1.0] * len(cells)}), "k").keys.to_pylist()


def decimals(values: list[int], precision: int, scale: int = 0) -> pa.Array:
    return pa.array([Decimal(value) for value in values], pa.decimal128(precision, scale))


WAYS = pytest.mark.parametrize("keys_of", [keys_of_file, keys_of_frame])


@WAYS
@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (pa.array([EDGE + 1, -7, 0]), [str(EDGE + 1), "-7", "0"]),
        (pa.array([EDGE - 1.0, -7.0, 0.0]), [str(EDGE - 1), "-7", "0"]),
        (pa.array([2.0**24 - 1, -7.0], pa.float32()), [str(2**24 - 1), "-7"]),
        (decimals([EDGE + 1, EDGE + 2, -7], 19), [str(EDGE + 1), str(EDGE + 2), "-7"]),
        (decimals([10**17 + 1, 7], 18), [str(10**17 + 1), "7"]),
        (decimals([10**37, 10**37 + 1], 38), [str(10**37), str(10**37 + 1)]),
        (decimals([12, 7], 10, 2), ["12", "7"]),
        (pa.array([" a", "b\u00a0", "e\u0301"]), ["a", "b", "\u00e9"]),
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
    ],
)
def test_a_key_is_its_own_digits_or_text(tmp_path: Path, keys_of: Any, cells: Any, wanted: list[str]):
    assert keys_of(tmp_path, cells) == wanted


@WAYS
@pytest.mark.parametrize(
    ("cells", "line"),
    [
        (pa.array([1.0, EDGE + 1.0]), "is no whole number below 2\\*\\*53"),
        (pa.array([1.0, -float(EDGE)]), "is no whole number below 2\\*\\*53"),
        (pa.array([1.0, 2.0**24], pa.float32()), "is no whole number below 2\\*\\*24"),
        (pa.array([1.0, 2.5]), "2.5 is no whole number"),
        (pa.array([1.0, float("inf")]), "inf is no whole number"),
        (pa.array([1.0, float("nan")]), "is missing|has no value"),
        (pa.array([1, None]), "is missing|has no value"),
        (pa.array(["a", " "]), "is missing|has no value"),
        (pa.array(["a", "b\nc"]), "line end or control character"),
    ],
)
def test_a_key_that_may_stand_for_another_row_is_refused(tmp_path: Path, keys_of: Any, cells: Any, line: str):
    with pytest.raises(ValueError, match=f"column 'k', .*{line}"):
        keys_of(tmp_path, cells)


def test_whole_numbers_and_their_rounded_floats_are_not_matched():
    whole = pd.DataFrame({"k": EDGE + 4 * np.arange(9), "x": 1.0})
    rounded = whole.assign(k=(whole["k"] + 1).astype(np.float64))
    assert owner_of("X", whole, "k").keys.to_pylist()[1] == str(EDGE + 4)
    refuses("X", lambda: owner_of("X", rounded, "k"), "row 0")


def test_a_key_that_is_sent_is_spelled_as_one_in_a_file(tmp_path: Path):
    draw = np.random.default_rng(0)
    spaces, letters = " \t\u00a0\u2003\u3000\u0085", "ae\u0301\u00e9o\u0308k\u030a\u212b\uac001\u1161\u11a8/.-"
    texts = ["".join(draw.choice([*(spaces + letters)], draw.integers(1, 9))) for _ in range(2000)]
    texts += ["2024-01-02 03:04:05.500", "2024-01-02T03:04:05.000Z", "2024-01-02 03:04:05.5", " 007 ", "1.0"]
    texts = [text for text in texts if text.strip() and text.strip() not in MISSING and "\t" not in text.strip()]
    assert [key_cell(text) for text in texts] == keys_of_file(tmp_path, pa.array(texts))


FEATURES = {"bank": ["age"], "shop": ["spent"]}


def experiment(folder, **data):
    (folder / "bank.csv").write_text("id,age,churn\n" + "\n".join(f"k{i},{i},{i % 2}" for i in range(20)))
    (folder / "shop.csv").write_text("id,spent\n" + "\n".join(f"k{i},{100 + i}" for i in range(29, 3, -1)))
    tables = {name: {"file": str(folder / f"{name}.csv"), "key": "id"} for name in FEATURES}
    tables["bank"]["label"] = "churn"
    for name, table in tables.items():
        table |= {"features": dict.fromkeys(FEATURES[name], "number"), "match": str(folder / f"{name}.match")}
    return parse_config({"name": "match", "data": {"dataset": {"kind": "tables"}, "tables": tables, **data}})


@pytest.fixture
def config(tmp_path):
    """Two owners with the files of a match: 16 samples in an order of nobody's, the last four the test."""
    config = experiment(tmp_path)
    numbers = np.random.default_rng(0).permutation(np.arange(4, 20))
    for name, rows in (("bank", numbers), ("shop", 29 - numbers)):
        source = open_source(config)
        assert isinstance(source, Tables)
        keys = keys_digest(source.read(name, ("bank", "shop")))
        write_match(tmp_path / f"{name}.match", Match(name, "ab" * 32, keys, "inner", rows.astype(np.int64), 4))
    return config


def test_one_process_and_each_owner_alone_find_the_order_of_the_match(config, tmp_path):
    source = open_source(config)
    split = source.split()
    bank, shop = split.parties
    numbers = read_match(tmp_path / "bank.match", "bank").rows
    assert torch.cat([bank.train.features, bank.test.features])[:, 0].tolist() == numbers.tolist()
    assert torch.cat([shop.train.features, shop.test.features])[:, 0].tolist() == (100 + numbers).tolist()
    assert (len(bank.train), len(bank.test)) == (12, 4)
    for whole in split.parties:
        alone = open_source(config).held_by(whole.party)
        assert alone.ids_digests() == whole.ids_digests()
        assert torch.equal(alone.train.features, whole.train.features)
    labels = open_source(config).held_labels()
    assert labels.ids_digests() == bank.ids_digests()
    assert labels.test.values.tolist() == [number % 2 for number in numbers[12:]]


def test_the_seed_draws_the_test_samples_where_the_match_did_not(config, tmp_path):
    for name in FEATURES:
        match = read_match(tmp_path / f"{name}.match", name)
        write_match(tmp_path / f"{name}.match", replace(match, test=None))
    split = open_source(config).split()
    assert len(split.labels.test.ids) == round(0.2 * 16)
    assert open_source(config).held_by("shop").ids_digests() == split.parties[0].ids_digests()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda match: replace(match, order="cd" * 32), ("data.tables", "matches")),
        (lambda match: replace(match, keys="0" * 64), ("data.tables.shop.match", "shop.csv")),
        (lambda match: replace(match, party="bank"), ("data.tables.shop.match", "'bank'", "'shop'")),
        (lambda match: replace(match, rows=match.rows[:9]), ("data.tables", "matches")),
    ],
)
def test_a_match_that_does_not_fit_is_refused(config, tmp_path, change, what):
    write_match(tmp_path / "shop.match", change(read_match(tmp_path / "shop.match", "shop")))
    with refused(*what):
        open_source(config).split()


def test_a_match_of_another_join_or_of_some_owners_alone_is_refused(config, tmp_path):
    refuses("data.join", lambda: open_source(experiment(tmp_path, join="left")).split(), "bank.match")
    tables = config.data.tables | {"shop": config.data.tables["shop"].model_copy(update={"match": None})}
    data = config.data.model_copy(update={"tables": tables})
    with refused("data.tables.shop.match", "missing"):
        open_source(config.model_copy(update={"data": data})).split()


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\0\0\0\0\0\0\0{}      "])
def test_other_files_are_refused(config, tmp_path, content):
    (tmp_path / "shop.match").write_bytes(content)
    refuses("data.tables.shop.match", lambda: open_source(config).split())
