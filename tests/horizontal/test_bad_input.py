"""What cannot be run is refused in one line that names the field and the fix, before anything is written."""

from pathlib import Path

import pytest
from refusals import refused
from shorthand import load_horizontal, parse_horizontal

from vfl.config.files import lay_over, parse_overrides
from vfl.horizontal.devices import Devices
from vfl.runs.checkpoint import CheckpointStore

ROOT = Path(__file__).parents[2]
MOMENTUM, DECAY = "training.optimizer.momentum=0.9", "training.optimizer.weight_decay=0.1"
NESTEROV = f"{MOMENTUM} training.optimizer.nesterov=true"
SPEED = "horizontal.devices.speed"
PARTIAL = "horizontal.work.kind=partial"
LONGER = "work.max_missing_epochs"
REFUSED = {
    "horizontal.clients_per_round=7": ("horizontal.clients_per_round", "7", "clients = 6"),
    "horizontal.algorithm=scafold": ("horizontal.algorithm", "'scafold'", "'scaffold'"),
    "horizontal.fedprox.nu=1.0": ("horizontal.fedprox.nu", "'mu'"),
    f"{SPEED}.kind=gausian": (f"{SPEED}.kind", "'gausian'", "'gaussian'"),
    f"horizontal.algorithm=scaffold {MOMENTUM}": ("training.optimizer", "SCAFFOLD"),
    f"horizontal.algorithm=scaffold {DECAY}": ("training.optimizer", "SCAFFOLD"),
    f"horizontal.algorithm=fedlga {MOMENTUM}": ("training.optimizer", "FedLGA"),
    f"horizontal.algorithm=dms {MOMENTUM}": ("training.optimizer", "horizontal.dms.gradient_bound"),
    f"horizontal.algorithm=fednova {NESTEROV}": ("training.optimizer.nesterov",),
    "horizontal.algorithm=fednova horizontal.fednova.mu=40.0 training.optimizer.learning_rate=0.05": (
        "horizontal.fednova.mu",
        "40",
        "0.05",
    ),
    f"horizontal.algorithm=fedsgd {NESTEROV}": ("training.optimizer.nesterov",),
    "horizontal.algorithm=dms horizontal.dms.weights=theorem3 horizontal.dms.lipschitz=3.0": (
        "horizontal.dms.weights",
        "learning_rate * lipschitz * (1 + theta)",
        "1.2",
    ),
    f"{PARTIAL} horizontal.local_steps=3": ("horizontal", "work.kind", "local_steps"),
    f"{PARTIAL} horizontal.local_epochs=1": ("horizontal", LONGER, "local_epochs"),
    f"{PARTIAL} horizontal.{LONGER}=3 horizontal.local_epochs=3": ("horizontal", LONGER),
    "horizontal.selection.group_weights=[1,2,3,4,5,6,7]": ("horizontal", "selection.group_weights", "7"),
    f"{SPEED}.kind=groups {SPEED}.groups=[1,2,3,4,5,6,7]": ("horizontal", "devices.speed.groups", "7"),
    f"{SPEED}.kind=uniform {SPEED}.mean=1.0 {SPEED}.std=1.0": (SPEED, "std", "mean = 1"),
    f"{SPEED}.kind=exponential {SPEED}.mean=0.5": (SPEED, "mean"),
    "horizontal.devices.availability=0": ("horizontal.devices.availability",),
    "horizontal.devices.dropout=1": ("horizontal.devices.dropout",),
    "horizontal.fedasync.mixing=1.5": ("horizontal.fedasync.mixing",),
    "horizontal.feddyn.alpha=0": ("horizontal.feddyn.alpha",),
    "horizontal.scaffold.option=3": ("horizontal.scaffold.option",),
    "horizontal.wireless.bandwidth_hz=0": ("horizontal.wireless.bandwidth_hz",),
    "horizontal.wireless.transmit_power_w=-0.1": ("horizontal.wireless.transmit_power_w",),
    "horizontal.wireless.distance_min_m=900": ("horizontal.wireless.distance_min_m",),
    "horizontal.wireless.cpu_min_hz=5e9": ("horizontal.wireless.cpu_min_hz",),
    "horizontal.wireless.policy=best": ("horizontal.wireless.policy",),
    "horizontal.algorithm=flare horizontal.flare.lipschitz=0": ("horizontal.flare.lipschitz",),
    "horizontal.algorithm=flare horizontal.flare.tau_bar=max": ("horizontal.flare.tau_bar",),
}


def sections_of(settings):
    return lay_over({}, parse_overrides(settings.split()))


@pytest.mark.parametrize(("settings", "line"), REFUSED.items())
def test_refused_with_one_line(configure, settings, line):
    with refused(*line):
        configure(**sections_of(settings))


ALLOWED = [
    f"horizontal.algorithm=scaffold horizontal.scaffold.option=1 {MOMENTUM}",
    f"horizontal.algorithm=dms horizontal.dms.slope=0.1 {MOMENTUM}",
    f"horizontal.algorithm=dms horizontal.dms.gradient_bound=1.0 horizontal.dms.gradient_std=1.0 {MOMENTUM}",
    f"horizontal.algorithm=fednova horizontal.fednova.mu=0.1 {MOMENTUM}",
]


@pytest.mark.parametrize("settings", ALLOWED)
def test_what_is_near_to_it_runs(configure, build, problem, engine, settings):
    metrics = build(configure(**sections_of(settings)), problem, engine).train_round(0)
    assert metrics["clients/reporting"] == 3


def test_a_device_without_samples_is_named(configure):
    with refused("horizontal.partition", "client_3", "horizontal.clients"):
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
    with refused(field):
        Devices(config.horizontal, (6, 8, 3, 10, 4, 7), 4, 3, (0, 0))


IGNORED = {
    "algorithm=fedavg fedprox.mu=1": "fedprox: ignored",
    "algorithm=scaffold weights=all": "weights: ignored",
    "algorithm=feddyn server_learning_rate=0.5": "server_learning_rate: ignored",
    "local_epochs=7 local_steps=null work.kind=interval work.interval_s=4.0": (
        "local_epochs: ignored, horizontal.work.kind is interval"
    ),
    "algorithm=fedsgd local_epochs=5": "local_epochs: ignored",
    "algorithm=dms dms.weights=theorem3 dms.slope=1.0": "dms.slope: ignored",
    "algorithm=dms dms.gradient_std=1.0 dms.slope=1.0": "dms.gradient_std: ignored",
    "algorithm=fedasync selection.group_weights=[1,2]": "selection.group_weights: ignored, fedasync draws",
    "algorithm=fedasync weights=equal": "weights: ignored",
    "algorithm=dms weights=equal": "weights: ignored, dms has weights",
    "work.max_missing_epochs=2": "work.max_missing_epochs: ignored, horizontal.work.kind is fixed",
    "work.incomplete_share=0.3": "work.incomplete_share: ignored",
    "work.interval_s=2.0": "work.interval_s: ignored",
    "algorithm=fedlga": (
        "algorithm: ignored, fedlga is fedavg with weights: equal where horizontal.work.kind is fixed"
    ),
    "devices.speed.kind=fixed devices.speed.groups=[1,4]": (
        "devices.speed.groups: ignored, horizontal.devices.speed.kind is fixed"
    ),
    "devices.speed.std=0.5": "devices.speed.std: ignored",
    "local_steps=3 local_epochs=2": "local_epochs: ignored",
    "algorithm=fedasync fedasync.hinge_slope=2.0": (
        "fedasync.hinge_slope: ignored, horizontal.fedasync.staleness is polynomial"
    ),
}
"""Settings of the section horizontal, and how a warning begins behind that name."""


@pytest.mark.parametrize(("settings", "line"), IGNORED.items())
def test_a_setting_that_is_ignored_is_warned_of(configure, settings, line):
    warnings = configure(horizontal=sections_of(settings)).warnings()
    assert any(warning.startswith(f"horizontal.{line}") for warning in warnings)


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
    with refused("horizontal.fedmom.reference", "checkpoint"):
        fedmom(tmp_path)
    CheckpointStore(tmp_path / "vertical" / "checkpoints").save(1, {"server": {"head": {}}})
    with refused("horizontal.fedmom.reference", "horizontal run"):
        fedmom(tmp_path / "vertical")
    other = fedmom(problem=point(*[(1.0, 2.0)] * 6))
    CheckpointStore(tmp_path / "checkpoints").save(1, other.state_dict())
    with refused("horizontal.fedmom.reference", "16", "models.classifier"):
        fedmom(tmp_path)
