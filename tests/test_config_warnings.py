"""Every setting that is ignored, or only partly followed, is said in one line."""

import pytest

from vfl.config import ExperimentConfig, parse_config, parse_experiment
from vfl.config.files import lay_over, parse_overrides

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
        ({"wire": {"options": {"a": 1}}}, "digits", "vertical"),
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
