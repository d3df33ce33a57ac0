"""The settings of an experiment: those of its mode, and what its file, its base and its owners' files give."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from config_files import DIGITS, refusal, write
from refusals import refused, refuses

from vfl.config import ConfigError, ExperimentConfig, dump_config, load_config, parse_experiment
from vfl.config.components import MODES
from vfl.config.files import experiment_type, lay_over, load_stored_config, read_yaml
from vfl.config.settings import section_of

OF_ONE_MODE: dict[str, tuple[str, object]] = {
    "horizontal.clients": ("horizontal", 20),
    "models.classifier.kind": ("horizontal", "lenet"),
    "lightweighting.alpha": ("vertical", 0.4),
    "wire.bits": ("vertical", 4),
    "simulation.parties.all.macs_per_s": ("vertical", 1e6),
    "models.head.hidden": ("vertical", [3]),
    "data.partition.rows": ("vertical", 1),
    "data.join": ("vertical", "left"),
    "training.labels": ("vertical", "server"),
    "evaluation.subsets": ("vertical", True),
    "network.wait_s": ("vertical", 3),
    "channels_last": ("vertical", True),
    "task": ("vertical", "regression"),
}


@pytest.mark.parametrize(("key", "mode", "value"), [(key, *each) for key, each in OF_ONE_MODE.items()])
def test_a_setting_of_another_mode_is_refused_with_that_mode(key: str, mode: str, value: object):
    (other,) = MODES.keys() - {mode}
    with pytest.raises(ConfigError) as refusal:
        parse_experiment(lay_over({"name": "x", "mode": other}, {key: value}))
    refused = str(refusal.value).split(":")[0]
    assert f"{key}.".startswith(f"{refused}.")
    assert f"mode={mode}" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_all_settings_of_another_mode_are_refused_in_one_sentence_and_what_is_unknown_in_its_own():
    with refused("models.classifier") as refusal:
        parse_experiment({"name": "x", "training": {"lables": 1}, "horizontal": {}, "models": {"classifier": {}}})
    assert str(refusal.value).count("mode=horizontal") == 1
    assert str(refusal.value).startswith("models.classifier, horizontal: ")
    assert str(refusal.value).endswith("; training.lables: unknown key; did you mean 'labels'?")


@pytest.mark.parametrize("wrong", ["diagonal", "horizontl", 3, [1], None])
def test_an_unknown_mode_is_refused(wrong: object):
    for given in ({"name": "x", "mode": wrong}, lay_over({"name": "x"}, {"mode": "vertical"}) | {"mode": wrong}):
        with refused("mode", "vertical"):
            parse_experiment(given)


def earlier_run(mode: str) -> dict[str, Any]:
    """The configuration that a run of version 0.2 lists: all settings of both modes."""

    def joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        both = [key for key in one if isinstance(one[key], dict) and isinstance(other.get(key), dict)]
        return other | one | {key: joined(one[key], other[key]) for key in both}

    modes = (mode, *MODES.keys() - {mode})
    ours, others = (parse_experiment({"name": "x", "mode": each, "seed": 7}) for each in modes)
    return joined(yaml.safe_load(dump_config(ours)), yaml.safe_load(dump_config(others)))


@pytest.mark.parametrize("mode", MODES)
def test_a_run_of_the_version_that_listed_both_modes_is_read(mode: str, tmp_path: Path):
    values = earlier_run(mode)
    assert {"horizontal", "lightweighting"} <= values.keys()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    read = load_stored_config(tmp_path / "config.yaml")
    assert read == parse_experiment({"name": "x", "mode": mode, "seed": 7})
    assert read.warnings() == []
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values | {"trainin": 1}))
    refuses("trainin", lambda: load_stored_config(tmp_path / "config.yaml"), "unknown")


def test_what_an_experiment_of_another_mode_overrides_has_that_modes_sections(tmp_path: Path):
    """So that a mapping for a section of it changes what it names."""
    given = {"horizontal.work": {"kind": "interval"}, "mode": "horizontal", "horizontal.work.interval_s": 2.0}
    config = parse_experiment(lay_over({"name": "x"}, given))
    assert experiment_type("horizontal") is type(config)
    assert yaml.safe_load(dump_config(config))["horizontal"]["work"]["interval_s"] == 2.0


def test_no_section_of_one_mode_has_the_name_of_anothers_setting():
    """The rule for runs of version 0.2 goes by names."""
    one, other = (experiment_type(mode) for mode in MODES)
    for key in set(one.known_keys()) & set(other.known_keys()):
        assert (section_of(one.type_of(key)) is None) == (section_of(other.type_of(key)) is None)
    assert one is ExperimentConfig


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
