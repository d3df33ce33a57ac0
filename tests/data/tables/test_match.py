"""The file that a match leaves with each owner: what training reads of it, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused, refuses

from vfl.config import parse_config
from vfl.data.source import open_source
from vfl.data.tables.matching_result import Match, keys_digest, read_match, write_match
from vfl.data.tables.source import Tables

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
