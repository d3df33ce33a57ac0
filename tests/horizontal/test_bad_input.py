"""What cannot be run is refused in one line that names the field and the fix, before anything is written."""

from pathlib import Path

import pytest
from shorthand import load_horizontal, parse_horizontal

from vfl.config import ConfigError
from vfl.horizontal.components import ALGORITHMS
from vfl.horizontal.devices import Devices
from vfl.runs.checkpoint import CheckpointStore

ROOT = Path(__file__).parents[2]
MOMENTUM = {"training": {"optimizer": {"momentum": 0.9}}}
DECAY = {"training": {"optimizer": {"weight_decay": 0.1}}}

REFUSED = {
    "more clients per round than clients": (
        {"horizontal": {"clients": 6, "clients_per_round": 7}},
        "horizontal.clients_per_round: 7 is more than clients = 6; lower it",
    ),
    "unknown algorithm": (
        {"horizontal": {"algorithm": "scafold"}},
        "horizontal.algorithm: unknown algorithm 'scafold'; did you mean 'scaffold'?",
    ),
    "unknown setting": (
        {"horizontal": {"fedprox": {"nu": 1.0}}},
        "horizontal.fedprox.nu: unknown key; did you mean 'mu'?",
    ),
    "unknown speed": (
        {"horizontal": {"devices": {"speed": {"kind": "gausian"}}}},
        "(got 'gausian'); did you mean 'gaussian'?",
    ),
    "scaffold option 2 with momentum": (
        {"horizontal": {"algorithm": "scaffold"}} | MOMENTUM,
        "SCAFFOLD's option 2 takes the step for the gradient and needs plain SGD",
    ),
    "scaffold option 2 with decay": ({"horizontal": {"algorithm": "scaffold"}} | DECAY, "SCAFFOLD's option 2"),
    "fedlga with momentum": ({"horizontal": {"algorithm": "fedlga"}} | MOMENTUM, "FedLGA takes the mean step"),
    "dms with momentum": ({"horizontal": {"algorithm": "dms"}} | MOMENTUM, "or give horizontal.dms.gradient_bound"),
    "fednova with nesterov": (
        {"horizontal": {"algorithm": "fednova"}, "training": {"optimizer": {"momentum": 0.9, "nesterov": True}}},
        "training.optimizer.nesterov",
    ),
    "fednova's proximal term that diverges": (
        {
            "horizontal": {"algorithm": "fednova", "fednova": {"mu": 40.0}},
            "training": {"optimizer": {"learning_rate": 0.05}},
        },
        "horizontal.fednova.mu: 40 times the learning rate 0.05 is 2 or more, so that steps diverge; take less than 40",
    ),
    "fedsgd with nesterov": (
        {"horizontal": {"algorithm": "fedsgd"}, "training": {"optimizer": {"momentum": 0.9, "nesterov": True}}},
        "training.optimizer.nesterov",
    ),
    "theorem 3 beyond its bound": (
        {"horizontal": {"algorithm": "dms", "dms": {"weights": "theorem3", "lipschitz": 3.0}}},
        r"theorem3 needs learning_rate \* lipschitz \* \(1 \+ theta\) below 1 \(got 1.2",
    ),
    "partial work with local steps": (
        {"horizontal": {"work": {"kind": "partial"}, "local_steps": 3}},
        "work.kind: partial counts epochs; leave local_steps out",
    ),
    "partial work of one epoch": (
        {"horizontal": {"work": {"kind": "partial"}, "local_epochs": 1}},
        "work.max_missing_epochs: partial work leaves out 1 to local_epochs - 1 = 0 epochs",
    ),
    "partial work as long as complete work": (
        {"horizontal": {"work": {"kind": "partial", "max_missing_epochs": 3}, "local_epochs": 3}},
        "work.max_missing_epochs",
    ),
    "more groups of chances than clients": (
        {"horizontal": {"selection": {"group_weights": [1, 2, 3, 4, 5, 6, 7]}}},
        "horizontal: selection.group_weights: 7 groups are more than clients = 6; name fewer",
    ),
    "more groups of speeds than clients": (
        {"horizontal": {"devices": {"speed": {"kind": "groups", "groups": [1, 2, 3, 4, 5, 6, 7]}}}},
        "horizontal: devices.speed.groups: 7 groups are more than clients = 6; name fewer",
    ),
    "uniform speeds around 0": (
        {"horizontal": {"devices": {"speed": {"kind": "uniform", "mean": 1.0, "std": 1.0}}}},
        "horizontal.devices.speed: std must be below mean = 1 for uniform speeds",
    ),
    "exponential speeds below 1": (
        {"horizontal": {"devices": {"speed": {"kind": "exponential", "mean": 0.5}}}},
        "mean must be at least 1 step per second",
    ),
    "nobody ever there": ({"horizontal": {"devices": {"availability": 0}}}, "horizontal.devices.availability"),
    "everybody lost": ({"horizontal": {"devices": {"dropout": 1}}}, "horizontal.devices.dropout"),
    "mixing above 1": ({"horizontal": {"fedasync": {"mixing": 1.5}}}, "horizontal.fedasync.mixing"),
    "feddyn without alpha": ({"horizontal": {"feddyn": {"alpha": 0}}}, "horizontal.feddyn.alpha"),
    "third scaffold option": ({"horizontal": {"scaffold": {"option": 3}}}, "horizontal.scaffold.option"),
}


@pytest.mark.parametrize(("sections", "line"), REFUSED.values(), ids=REFUSED)
def test_refused_with_one_line(configure, sections, line):
    with pytest.raises(ConfigError, match=line if "\\" in line else None) as refusal:
        configure(**sections)
    text = str(refusal.value)
    assert "\n" not in text
    assert "\\" in line or line in text


ALLOWED = {
    "scaffold option 1 with momentum": {"horizontal": {"algorithm": "scaffold", "scaffold": {"option": 1}}} | MOMENTUM,
    "dms with a slope and momentum": {"horizontal": {"algorithm": "dms", "dms": {"slope": 0.1}}} | MOMENTUM,
    "dms with bounds and momentum": {
        "horizontal": {"algorithm": "dms", "dms": {"gradient_bound": 1.0, "gradient_std": 1.0}}
    }
    | MOMENTUM,
    "fednova with momentum": {"horizontal": {"algorithm": "fednova", "fednova": {"mu": 0.1}}} | MOMENTUM,
}


@pytest.mark.parametrize("sections", ALLOWED.values(), ids=ALLOWED)
def test_what_is_near_to_it_runs(configure, build, problem, engine, sections):
    metrics = build(configure(**sections), problem, engine).train_round(0)
    assert metrics["clients/reporting"] == 3


def test_every_algorithm_of_the_configuration_is_there(configure):
    for name in ALGORITHMS.built_in:
        assert configure(horizontal={"algorithm": name}).horizontal.algorithm == name
    with pytest.raises(ConfigError, match=r"horizontal\.algorithm: unknown algorithm '\?'; known: ") as refusal:
        configure(horizontal={"algorithm": "?"})
    assert all(f" {name}" in str(refusal.value) for name in ALGORITHMS.built_in)


def test_a_device_without_samples_is_named(configure):
    with pytest.raises(ConfigError, match=r"horizontal\.partition: client_3 has no samples; lower horizontal\.clients"):
        Devices(configure().horizontal, (6, 8, 0, 10, 4, 7), 4, 3, (0, 0))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"selection": {"min_steps": 9}}, "horizontal.selection.min_steps"),
        ({"work": {"kind": "interval", "interval_s": 0.5}}, "horizontal.work.interval_s"),
    ],
)
def test_work_that_no_client_can_do_is_refused_before_the_first_round(configure, settings, field):
    config = configure(horizontal=settings)
    with pytest.raises(ConfigError, match=f"{field}: no client can be chosen"):
        Devices(config.horizontal, (6, 8, 3, 10, 4, 7), 4, 3, (0, 0))


IGNORED = {
    "another algorithm's section": ({"algorithm": "fedavg", "fedprox": {"mu": 1}}, "horizontal.fedprox: ignored"),
    "weights": ({"algorithm": "scaffold", "weights": "all"}, "horizontal.weights: ignored"),
    "server rate": ({"algorithm": "feddyn", "server_learning_rate": 0.5}, "horizontal.server_learning_rate: ignored"),
    "epochs of an interval": (
        {"local_epochs": 7, "local_steps": None, "work": {"kind": "interval", "interval_s": 4.0}},
        "horizontal.local_epochs: ignored, horizontal.work.kind is interval",
    ),
    "epochs of fedsgd": ({"algorithm": "fedsgd", "local_epochs": 5}, "horizontal.local_epochs: ignored"),
    "slope of theorem 3": (
        {"algorithm": "dms", "dms": {"weights": "theorem3", "slope": 1.0}},
        "horizontal.dms.slope: ignored",
    ),
    "bounds beside a slope": (
        {"algorithm": "dms", "dms": {"gradient_std": 1.0, "slope": 1.0}},
        "horizontal.dms.gradient_std: ignored",
    ),
    "chances of an asynchronous server": (
        {"algorithm": "fedasync", "selection": {"group_weights": [1, 2]}},
        "horizontal.selection.group_weights: ignored, fedasync draws",
    ),
    "weights of an asynchronous server": ({"algorithm": "fedasync", "weights": "equal"}, "horizontal.weights: ignored"),
    "weights of dms": ({"algorithm": "dms", "weights": "equal"}, "horizontal.weights: ignored, dms has weights"),
    "missing epochs of fixed work": (
        {"work": {"max_missing_epochs": 2}},
        "horizontal.work.max_missing_epochs: ignored, horizontal.work.kind is fixed",
    ),
    "share of fixed work": ({"work": {"incomplete_share": 0.3}}, "horizontal.work.incomplete_share: ignored"),
    "interval of fixed work": ({"work": {"interval_s": 2.0}}, "horizontal.work.interval_s: ignored"),
    "fedlga of fixed work": (
        {"algorithm": "fedlga"},
        "horizontal.algorithm: ignored, fedlga is fedavg with weights: equal where horizontal.work.kind is fixed",
    ),
    "groups of a fixed speed": (
        {"devices": {"speed": {"kind": "fixed", "groups": [1, 4]}}},
        "horizontal.devices.speed.groups: ignored, horizontal.devices.speed.kind is fixed",
    ),
    "spread of a fixed speed": ({"devices": {"speed": {"std": 0.5}}}, "horizontal.devices.speed.std: ignored"),
    "epochs beside steps": ({"local_steps": 3, "local_epochs": 2}, "horizontal.local_epochs: ignored"),
    "hinge of polynomial staleness": (
        {"algorithm": "fedasync", "fedasync": {"hinge_slope": 2.0}},
        "horizontal.fedasync.hinge_slope: ignored, horizontal.fedasync.staleness is polynomial",
    ),
}


@pytest.mark.parametrize(("settings", "line"), IGNORED.values(), ids=IGNORED)
def test_a_setting_that_is_ignored_is_warned_of(configure, settings, line):
    assert any(warning.startswith(line) for warning in configure(horizontal=settings).warnings())


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "dms", "dms": {"lipschitz": 2.0}},
        {"algorithm": "fedmom", "weights": "equal"},
        {"algorithm": "fedlga", "weights": "equal", "work": {"kind": "partial"}, "local_epochs": 3},
    ],
)
def test_nothing_is_warned_of_where_all_is_used(configure, settings):
    assert configure(horizontal=settings).warnings() == []


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "horizontal").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_shipped_experiment_has_a_setting_that_is_ignored_nor_has_its_resolved_form(path):
    config = load_horizontal(path)
    assert config.warnings() == parse_horizontal(config.model_dump()).warnings() == []


def test_training_that_diverges_says_what_to_lower(configure, build, problem, engine):
    config = configure(training={"optimizer": {"learning_rate": 1e20}}, horizontal={"local_epochs": 4})
    server = build(config, problem, engine)
    with pytest.raises(ValueError, match=r"not finite: lower training\.optimizer\.learning_rate"):
        server.train_round(0)


@pytest.fixture
def fedmom(configure, build, problem, engine):
    def make(reference=None, problem=problem, **settings):
        chosen = {"algorithm": "fedmom", "fedmom": {"reference": str(reference) if reference else None} | settings}
        return build(configure(horizontal=chosen), problem, engine)

    return make


def test_fedmoms_reference_must_be_a_horizontal_run_of_the_same_model(fedmom, point, tmp_path):
    with pytest.raises(ConfigError, match=r"horizontal\.fedmom\.reference: .* holds no checkpoint"):
        fedmom(tmp_path)
    CheckpointStore(tmp_path / "vertical" / "checkpoints").save(1, {"server": {"head": {}}})
    with pytest.raises(ConfigError, match=r"horizontal\.fedmom\.reference: .* is no horizontal run"):
        fedmom(tmp_path / "vertical")
    other = fedmom(problem=point(*[(1.0, 2.0)] * 6))
    CheckpointStore(tmp_path / "checkpoints").save(1, other.state_dict())
    with pytest.raises(ConfigError, match=r"have 16 entries, this model's \d+; name a run of the same models"):
        fedmom(tmp_path)
