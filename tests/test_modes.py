"""The settings of an experiment are those of its mode, and of no other."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import refused, refuses

from vfl.config import ConfigError, ExperimentConfig, dump_config, parse_experiment
from vfl.config.components import MODES
from vfl.config.files import experiment_type, lay_over, load_stored_config
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
