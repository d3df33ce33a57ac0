"""What both sides of a federation agree on: said at every field, and no more than what they compute with."""

from vfl.config import ExperimentConfig, parse_config
from vfl.config.settings import agreed_values, marked_fields


def test_every_field_says_whether_both_sides_must_agree_on_it():
    unsaid = [name for name, mark in marked_fields(ExperimentConfig) if mark is None]
    assert unsaid == [], "mark it SHARED, REPLAYED or OWN (vfl/config/settings.py)"


def test_what_both_sides_agree_on_is_what_they_compute_with():
    config = parse_config({"name": "small"})
    shared = set(agreed_values(config, replayed=False))
    assert shared == {
        "data.partition",
        "evaluation.sparsified",
        "lightweighting.error_feedback",
        "seed",
        "training.auxiliary",
        "training.batch_size",
        "training.labels",
        "training.local_iterations",
        "training.local_rounds",
        "training.staleness",
        "training.steps_per_round",
        "wire.bits",
        "wire.coding",
        "wire.compressor",
        "wire.gradients",
        "wire.options",
        "wire.rounding",
        "wire.step",
        "wire.values",
    }
    replayed = {"models.head", "models.linear_path", "models.members", "precision", "task"}
    replayed |= {"training.class_weights", "training.head_sync", "training.label_smoothing", "training.loss"}
    replayed |= {"training.optimizer", "training.party_dropout"}
    assert set(agreed_values(config, replayed=True)) == shared | replayed
    assert agreed_values(config, replayed=True)["models.head"] == {"hidden": list(config.models.head.hidden)}
