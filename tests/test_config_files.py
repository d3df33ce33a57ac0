"""An experiment's files: one that names another as its base, owners' own files, and what is no configuration."""

from pathlib import Path

import pytest
from config_files import DIGITS, refusal, write
from refusals import refused

from vfl.config import load_config
from vfl.config.files import read_yaml


def test_an_owners_own_file_stands_for_its_table_also_on_the_command_line(tmp_path, monkeypatch):
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / "own.yaml").write_text("file: bank.csv\nkey: id\nlabel: late")
    (tmp_path / "unfinished.yaml").write_text("file:\nkey: id\nlabel: late")
    tables = "data:\n  dataset: {kind: tables}\n  tables: {bank: bank/own.yaml, shop: {}}\n"
    (tmp_path / "x.yaml").write_text(f"name: x\n{tables}")
    monkeypatch.chdir(tmp_path)
    config = load_config(Path("x.yaml"))
    assert config.data.tables["bank"].file == Path("bank/bank.csv")
    assert load_config(Path("x.yaml"), ["data.tables.bank=bank/own.yaml"]) == config
    assert load_config(Path("x.yaml"), ["data.tables.bank=unfinished.yaml"]).data.tables["bank"].file is None
    with refused("data.tables.bank", "nowhere.yaml"):
        load_config(Path("x.yaml"), ["data.tables.bank=nowhere.yaml"])


def test_paths_in_an_owners_file_are_relative_to_it(tmp_path: Path):
    (tmp_path / "bank").mkdir()
    write(tmp_path, {"file": "t.csv", "match": "t.match", "key": "k"}, "bank/own.yaml")
    tables = {"bank": "bank/own.yaml", "shop": {"match": "shop.match"}}
    bank, shop = load_config(write(tmp_path, {"name": "n", "data": {"tables": tables}})).data.tables.values()
    assert (bank.file, bank.match) == (tmp_path / "bank" / "t.csv", tmp_path / "bank" / "t.match")
    assert (shop.file, shop.match) == (None, Path("shop.match"))


def test_a_base_gives_what_the_file_does_not(tmp_path: Path):
    base = DIGITS | {
        "seed": 4,
        "training": {"rounds": 9, "batch_size": 10, "optimizer": {"learning_rate": {0: 0.1, 5: 0.01}, "momentum": 0.5}},
        "lightweighting": {"alpha": {1: 0.2, 4: 0.4}, "beta": {"party_1": 0.5}, "error_feedback": True},
        "models": {"parties": {"party_1": {"kind": "mlp"}}, "head": {"hidden": [8, 4]}},
    }
    (tmp_path / "bases").mkdir()
    write(tmp_path / "bases", base, "far.yaml")
    write(tmp_path / "bases", {"base": "far.yaml", "seed": 5}, "near.yaml")  # relative to itself
    child = {
        "base": "bases/near.yaml",
        "name": "child",
        "training": {"optimizer": {"learning_rate": {0: 0.2}}},
        "lightweighting": {"alpha": {2: 0.3}, "beta": {"party_2": 0.1}},
        "models": {"parties": {"party_2": {"kind": "cnn"}}, "head": {"hidden": [2]}},
        "wire": {"values": "float16"},
    }
    config = load_config(write(tmp_path, child), ["training.rounds=2"])
    assert (config.name, config.seed, config.wire.values) == ("child", 5, "float16")
    assert (config.training.rounds, config.training.batch_size) == (2, 10)
    assert (config.training.optimizer.momentum, config.training.optimizer.learning_rate) == (0.5, {0: 0.2})
    assert config.lightweighting.error_feedback is True
    # Schedules, parties and lists are values: a round of the base in the child's schedule would be a surprise.
    assert config.lightweighting.alpha == {2: 0.3}
    assert config.lightweighting.beta == {"party_2": 0.1}
    assert list(config.models.parties) == ["party_2"]
    assert config.models.head.hidden == (2,)


@pytest.mark.parametrize("section", ["fast", 5, None, [1]])
def test_a_section_takes_the_place_of_something_else_in_the_base(tmp_path: Path, section: object):
    write(tmp_path, DIGITS | {"training": section}, "base.yaml")
    child = write(tmp_path, {"base": "base.yaml", "training": {"batch_size": 5}})
    assert load_config(child).training.batch_size == 5


def test_a_base_that_refers_back_is_refused(tmp_path: Path):
    own = write(tmp_path, {"base": "experiment.yaml"})
    assert refusal(own) == f"{own}: base refers back to itself"
    write(tmp_path, {"base": "second.yaml"}, "first.yaml")
    write(tmp_path, {"base": "./first.yaml"}, "second.yaml")
    assert refusal(tmp_path / "first.yaml").endswith("first.yaml: base refers back to itself")


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    missing = tmp_path / "missing.yaml"
    assert refusal(missing) == f"{missing}: cannot be read (No such file or directory)"
    assert refusal(tmp_path) == f"{tmp_path}: is a folder without a run's config.yaml; name a YAML file or a run"
    assert refusal(write(tmp_path, {"base": "missing.yaml"})).startswith(
        f"{tmp_path}/experiment.yaml: base: {missing}: cannot be read"
    )


@pytest.mark.parametrize(
    "content",
    ["a: [1, 2", "a: b: c", "\tx: 1", "{a: 1}}", "x: 2020-99-99", "--- 1\n--- 2", "a: !b c", "{[1]: 2}"],
)
def test_a_file_that_is_not_yaml_is_named(tmp_path: Path, content: str):
    path = write(tmp_path, content)
    assert refusal(path).startswith(f"{path}: is not YAML (")


def test_a_key_given_twice_is_named_and_merged_ones_are_not(tmp_path: Path):
    path = write(tmp_path, "seed: 1\nseed: 2")
    assert refusal(path) == f"{path}: is not YAML ('seed' is given twice, line 2)"
    path = write(tmp_path, "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, x: 3}")
    assert read_yaml(path)["c"] == {"x": 3}


@pytest.mark.parametrize("content", ["", "just text", "[1, 2]", "5"])
def test_a_file_without_settings_is_refused(tmp_path: Path, content: str):
    path = write(tmp_path, content)
    assert refusal(path) == f"{path}: must hold 'key: value' settings"


def test_a_binary_file_is_refused(tmp_path: Path):
    path = tmp_path / "model.yaml"
    path.write_bytes(b"\x80\xff\x00\x93")
    assert refusal(path).startswith(f"{path}: is not YAML (")


def test_a_file_nested_too_deeply_is_one_line(tmp_path: Path):
    (tmp_path / "deep.yaml").write_text("name: " + "[" * 600 + "]" * 600)
    assert refusal(tmp_path / "deep.yaml").endswith("deep.yaml: is nested too deeply to be a configuration")
