"""Every setting that is ignored, or only partly followed, is said in one line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from refusals import refused
from tiny_training import Ended

from vfl.__main__ import COMMANDS, REMOVED_COMMANDS
from vfl.base.errors import ConfigWarning
from vfl.config import (
    ConfigError,
    ExperimentConfig,
    changed_keys,
    dump_config,
    load_config,
    parse_config,
    parse_experiment,
)
from vfl.config.files import lay_over, load_stored_config, parse_overrides
from vfl.config.removed import REMOVED, Removed
from vfl.runs.run_folder import begin_run, check_run

DIGITS = {"name": "small", "data": {"train_samples": 100}, "training": {"batch_size": 10}}


def configured(*overrides: str) -> ExperimentConfig:
    return parse_config(lay_over(DIGITS, parse_overrides(overrides)))


def test_a_falling_alpha_warns_once_for_the_parties_that_fall_alike():
    alike = configured("lightweighting.alpha={0: 0.5, 3: 0.2}")
    assert alike.warnings() == [
        "lightweighting.alpha: falls from 0.5 to 0.2 at {3: ...} (party_1, party_2, party_3, party_4); "
        "nothing is un-pruned, the larger ratio stays"
    ]
    apart = "lightweighting.alpha={party_1: {0: 0.5, 3: 0.2}, party_2: {1: 0.3, 2: 0.1}, party_3: {0: 0.1, 1: 0.2}}"
    assert [line.split(";")[0] for line in configured(apart).warnings()] == [
        "lightweighting.alpha: falls from 0.3 to 0.1 at {2: ...} (party_2)",
        "lightweighting.alpha: falls from 0.5 to 0.2 at {3: ...} (party_1)",
    ]


def test_settings_that_are_ignored_are_warned_of_and_others_are_not():
    assert configured("lightweighting.beta={0: 0.5, 3: 0.2}").warnings() == []  # beta may fall
    served = configured("training.labels=server")
    assert served.warnings() == parse_config(served.model_dump()).warnings() == []  # what it has anyway is not given
    ignored = configured(
        "training.labels=server",
        "training.head_sync=broadcast",
        "training.rounds=3",
        "lightweighting.alpha={party_1: {2: 0.1, 3: 0.2}}",
        "lightweighting.error_feedback=true",
        "evaluation.sparsified=true",
    )
    tables = {"bank": {"label": "left"}, "shop": {}}
    data = {"dataset": {"kind": "tables"}, "tables": tables, "partition": {"rows": 1}}
    assert parse_config({"name": "cut", "data": data}).warnings() == [
        "data.partition: ignored, tables are not cut, their owners are the parties"
    ]
    assert [line.split(":")[0] for line in ignored.warnings()] == [
        "training.head_sync",
        "lightweighting.alpha",
        "evaluation.sparsified",
    ]


@pytest.mark.parametrize("schedule", ["one_cycle", "cosine"])
def test_rounds_after_the_end_of_a_named_rate_are_said_to_train_nothing(schedule: str):
    begun = configured(f"training.optimizer.schedule={schedule}", "training.rounds=5")
    assert begun.warnings() == []
    longer = parse_config(lay_over(begun.model_dump(), {"training.rounds": 8}))  # as a resume has it
    (line,) = longer.warnings()
    assert line.startswith(
        f"training.optimizer.schedule: the rate of {schedule} is 0 after 5 rounds, training.rounds is 8;"
    )
    assert longer.training.optimizer.rate_at(5, 0, 3) == 0 < longer.training.optimizer.rate_at(4, 2, 3)


def test_steps_and_codings_that_do_not_go_together_are_refused_or_said():
    for overrides, line in (
        (["wire.step=1.0"], "wire.step: needs wire.coding=entropy"),
        (["wire.gradients.step=1.0"], "wire.gradients.step: needs wire.coding=entropy"),
        (["wire.step=1.0", "wire.bits=4", "wire.coding=entropy"], "wire.step: wire.bits is given as well"),
        (["wire.step=0.3", "wire.coding=entropy"], "0.36"),
    ):
        with pytest.raises(ValueError, match=line):
            configured("training.labels=server", *overrides)
    assert configured("wire.coding=entropy").warnings() == [
        "wire.coding: ignored, no bits and no step is given in wire or wire.gradients"
    ]
    fed_back = "lightweighting.error_feedback=true"
    coarse = configured("wire.step=2.0", "wire.coding=entropy", "lightweighting.beta=0.5", fed_back)
    assert [line.split(";")[0] for line in coarse.warnings()] == [
        "wire.rounding: dithered to steps of 2 or to 2 bits errs by more than the value"
    ]


OF_TABLES = {"join": "left", "test_share": 0.5, "test_file": "keys.csv", "validation_share": 0.3}
PARTITION = {"data": {"partition": {"rows": 1}}}


@pytest.mark.parametrize(
    ("settings", "kind", "mode"),
    [
        *(({"data": {name: value}}, "digits", "vertical") for name, value in OF_TABLES.items()),
        (PARTITION, "breast_cancer", "vertical"),
        ({"data": {"dataset": {"image_size": 8}}}, "breast_cancer", "vertical"),
        *(({"data": {"dataset": {"options": {"a": 1}}}}, "digits", mode) for mode in ("vertical", "horizontal")),
        ({"data": {"join": "left"}}, "breast_cancer", "vertical"),
        ({"models": {"feature": {"options": {"a": 1}}}}, "digits", "vertical"),
        ({"wire": {"rounding": "nearest"}}, "digits", "vertical"),
        ({"task": "regression", "evaluation": {"threshold": 0.3}}, "breast_cancer", "vertical"),
    ],
)
def test_each_setting_of_another_kind_is_said_to_be_ignored(settings, kind, mode):
    base = {"name": "x", "mode": mode, "data": {"dataset": {"kind": kind}}}
    config = parse_experiment(lay_over(base, settings))
    (line,) = config.warnings()
    key = line.split(": ignored, ")[0]
    given = settings
    for part in key.split("."):
        given = given[part]
    assert parse_experiment(config.model_dump()).warnings() == [line]
    assert parse_experiment(base).warnings() == []


SMALL = {"name": "small"}

WRONG = {
    "a silence too short for heartbeats": (
        {"network": {"heartbeat_s": 5, "silence_s": 19}},
        ("network.silence_s", "19"),
    ),
    "an address without a port": (
        {"network": {"server": "somewhere"}},
        ("network.server", "'somewhere'", "127.0.0.1", "8080"),
    ),
    "an address with a port that cannot be": (
        {"network": {"listen": "127.0.0.1:70000"}},
        ("network.listen", "'127.0.0.1:70000'", "65535"),
    ),
    "no time to wait": ({"network": {"wait_s": 0}}, ("network.wait_s",)),
    "another policy": ({"network": {"on_party_loss": "ignore"}}, ("network.on_party_loss",)),
    "a typing error": ({"network": {"heartbeats_s": 1}}, ("network.heartbeats_s", "'heartbeat_s'")),
    "another defence": (
        {"privacy": {"gradients": "laplace"}},
        ("privacy.gradients", "must be max_norm, gaussian", "laplace"),
    ),
    "a setting of another defence": (
        {"privacy": {"gradients": {"kind": "max_norm", "clip": 3}}},
        ("privacy.gradients.clip", "kind max_norm has none"),
    ),
    "a defence without a kind": ({"privacy": {"gradients": {"strength": 3}}}, ("privacy.gradients", "needs a kind")),
    "a defence that is a number": ({"privacy": {"embeddings": 3}}, ("privacy.embeddings", "must be a kind")),
    "a setting of a compressor without": (
        {"wire": {"compressor": {"kind": "magnitude", "a": 1}}},
        ("wire.compressor", "magnitude has no setting 'a'"),
    ),
    "half a pixel": ({"data": {"augmentation": {"shift": 2.5}}}, ("data.augmentation.shift", "whole number of pixels")),
    "a loss of another task": (
        {"training": {"loss": {"kind": "pinball", "quantile": 0.5}}},
        ("training.loss", "cross_entropy"),
    ),
    "a negative gamma": ({"training": {"loss": {"kind": "focal", "gamma": -1}}}, ("training.loss.gamma", "equal")),
    "no quantile": ({"training": {"loss": "pinball"}}, ("training.loss.quantile", "missing")),
    "a quantile of 1": ({"training": {"loss": {"kind": "pinball", "quantile": 1}}}, ("training.loss.quantile", "less")),
    "a delta of 0": ({"training": {"loss": {"kind": "huber", "delta": 0}}}, ("training.loss.delta", "greater")),
    "drop with error feedback": (
        {"network": {"on_party_loss": "drop"}, "lightweighting": {"error_feedback": True}},
        ("network.on_party_loss", "lightweighting.error_feedback=false"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case: str):
    values, message = WRONG[case]
    with refused(*message):
        parse_config(SMALL | values)


def test_settings_come_back_from_yaml(tmp_path: Path):
    config = parse_config(
        SMALL
        | {
            "network": {"server": "[::1]:7000", "tls": {"ca": "keys/ca.pem"}, "on_party_loss": "drop"},
            "data": {"file": "data/party_1.safetensors"},
        }
    )
    path = tmp_path / "small.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config
    assert load_config(path, ["network.tls.key=other.pem"]).network.tls.ca == Path("keys/ca.pem")


def test_a_run_goes_on_at_another_address_but_not_with_other_data(tmp_path: Path):
    config = parse_config(SMALL)
    begin_run(tmp_path, config)
    moved = parse_config(SMALL | {"network": {"server": "elsewhere:1234", "wait_s": 5}})
    check_run(tmp_path, moved, resume=True)
    begin_run(tmp_path, moved)
    assert changed_keys(config, moved) != []
    with refused("--resume", "data.file", "/other"):
        check_run(tmp_path, parse_config(SMALL | {"data": {"file": "other"}}), resume=True)


REFUSED = [each for each in REMOVED if each.always is None]
IGNORED = [each for each in REMOVED if each.always is not None]


def nested(key: str, value: object) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return {"name": "old"} | cast(dict[str, Any], value)


def id_of(removed: Removed) -> str:
    return f"{removed.key}={removed.value}"


@pytest.mark.parametrize("removed", REFUSED, ids=id_of)
def test_a_removed_setting_is_refused_in_a_file_and_on_the_command_line(removed: Removed):
    words = f"{removed.value} was removed" if removed.value else "removed"
    told = f"^{removed.key}: {re.escape(words)}; "
    with pytest.raises(ConfigError, match=told) as refused:
        load_config(Path("quickstart"), [f"{removed.key}={removed.value or 0.5}"])
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match=told):
        parse_config(nested(removed.key, removed.value or {"share": 0.5}))


@pytest.mark.parametrize("removed", IGNORED, ids=id_of)
def test_a_setting_that_became_a_constant_is_ignored_with_a_line(removed: Removed):
    for read in (
        lambda: load_config(Path("quickstart"), [f"{removed.key}=17"]).model_copy(update={"name": "old"}),
        lambda: parse_config(nested(removed.key, 17)),
    ):
        with pytest.warns(ConfigWarning, match=f"^{removed.key}: ignored, it is always ") as told:
            read()
        assert len(told) == 1
    constant = removed.always if removed.default is None else removed.default
    assert parse_config(nested(removed.key, constant)) == parse_config(nested(removed.key, None))
    assert parse_config(nested(removed.key, None)) == parse_config({"name": "old"})


@pytest.mark.parametrize("removed", REMOVED, ids=id_of)
def test_a_removed_setting_is_no_setting(removed: Removed):
    """Else the table would refuse or ignore what works."""
    at: object = parse_config({"name": "new"})
    *sections, name = removed.key.split(".")
    for section in sections:
        at = getattr(at, section)
    assert removed.value or not hasattr(at, name)


@pytest.mark.parametrize("mode", ["vertical", "horizontal"])
def test_an_old_run_whose_configuration_names_what_is_constant_now_is_read(tmp_path: Path, mode: str):
    values = parse_experiment({"name": "old", "seed": 5, "mode": mode}).model_dump(mode="json")
    for each in IGNORED:
        at, (*sections, name) = values, each.key.split(".")
        for section in sections:
            at = at.setdefault(section, {})
        at[name] = each.always if each.default is None else each.default
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    assert load_stored_config(tmp_path / "config.yaml") == parse_experiment({"name": "old", "seed": 5, "mode": mode})


def moved(text: str) -> ExperimentConfig:
    return parse_config(yaml.safe_load(text) | {"name": "old"})


def test_settings_that_became_one_value_are_read_where_they_were():
    old = moved(
        "privacy: {gradients: max_norm, gradient_strength: 2.0, gradient_clip: 1.0, embeddings: gaussian,"
        " embedding_strength: 0.5, embedding_clip: 3.0}\n"
        "training: {loss: {kind: focal, gamma: 3.0, delta: null, quantile: null},"
        " optimizer: {schedule: cosine, rounds: 30}}\n"
        "data: {augmentation: {shift: 2, from: 8}}\n"
        "simulation: {device: {macs_per_s: 1.0e+9}, parties: {party_1: {latency_s: 1.0}}}\n"
    )
    new = moved(
        "privacy: {gradients: {kind: max_norm, strength: 2}, embeddings: {kind: gaussian, strength: 0.5, clip: 3}}\n"
        "training: {loss: {kind: focal, gamma: 3}, optimizer: {schedule: {kind: cosine, rounds: 30}}}\n"
        "data: {augmentation: {shift: {8: 2}}}\n"
        "simulation: {parties: {all: {macs_per_s: 1.0e+9}, party_1: {latency_s: 1.0}}}\n"
    )
    assert old == new == parse_config(new.model_dump())
    assert old.simulation.of("party_2").macs_per_s == 1e9
    assert old.simulation.of("party_1").macs_per_s is None


def test_a_run_of_before_that_says_nothing_there_is_as_by_default():
    said = moved(
        "privacy: {gradients: null, gradient_strength: 1.0, gradient_clip: 1.0, embeddings: null}\n"
        "training: {loss: {kind: null, gamma: null, delta: null, quantile: null},"
        " optimizer: {schedule: steps, rounds: null}}\n"
        "data: {augmentation: {shift: 0, from: 0}}\n"
        "simulation: {device: {latency_s: 0.0, uplink_bytes_per_s: null, macs_per_s: null}, parties: {}}\n"
    )
    assert said == parse_config({"name": "old"})


@pytest.mark.parametrize("name", REMOVED_COMMANDS)
def test_a_removed_command_is_refused(call: Callable[..., Ended], name: str):
    assert name not in COMMANDS
    code, _, said = call("lvfl", name, "runs/bank")
    assert code == 2
    assert said.startswith(f"error: {name}: removed in 0.2.0; ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("chosen", [{}, {"gradients": "max_norm"}])
def test_a_former_setting_of_another_kind_is_reported(chosen: dict[str, Any]):
    with pytest.warns(ConfigWarning, match=r"^privacy\.gradient_clip: "):
        config = parse_config({"name": "x", "privacy": chosen | {"gradient_clip": 2.0}})
    assert config == parse_config({"name": "x", "privacy": chosen})
