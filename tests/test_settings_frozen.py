"""The list of a vertical experiment's settings, frozen: a new one is a decision, as it can never be taken back."""

from collections.abc import Iterator

from vfl.config import ExperimentConfig, parse_config
from vfl.config.settings import Section, agreed_values, marked_fields, section_of
from vfl.config.tables import TableConfig

SETTINGS = {
    "": "name seed mode threads task device precision channels_last",
    "data.dataset": "kind root image_size options",
    "data": "train_samples test_samples tables join test_share test_file group validation_share positive_class "
    "numbers file labels_file",
    "data.partition": "rows columns",
    "data.augmentation": "shift",
    "models.feature": "kind embedding_size width batch_norm dropout options weights freeze",
    "models": "parties members linear_path",
    "models.head": "hidden",
    "training": "rounds steps_per_round batch_size local_iterations labels head_sync staleness party_dropout "
    "auxiliary local_rounds patience loss class_weights label_smoothing start_from",
    "training.optimizer": "kind learning_rate schedule warm_up momentum weight_decay nesterov clip_gradient",
    "lightweighting": "alpha beta resolution controller seconds_per_exchange alpha_max beta_max error_feedback",
    "lightweighting.pruning": "importance round_to refit",
    "simulation": "parties",
    "wire": "values compressor bits step coding rounding",
    "wire.gradients": "beta bits step error_feedback",
    "privacy": "gradients embeddings noise_seed record",
    "evaluation": "every batch_size subsets sparsified metric tell_parties threshold decision",
    "checkpoint": "every keep",
    "network": "server listen metrics use_proxy heartbeat_s silence_s wait_s on_party_loss max_offences max_message_mb",
    "network.tls": "ca certificate key deny allow",
    "network.consent": "run rounds alpha beta resolution evaluation_rows importance reasons keys scored_keys "
    "until accepted",
    "serving": "listen token certificate key client_ca timeout_ms cache_s idle_s when_absent key_secret outcomes",
}
"""Names by section, without the sections that owners name. What nobody would be told to change is a
named constant beside the code that uses it, not a setting."""

TABLE = (
    "file query database key label weight features missing not_missing thousands keys duplicates match "
    "serve.file serve.query serve.database serve.url serve.cache_s serve.token serve.ca serve.certificate serve.key"
)
"""Names of an owner's table (`data.tables.OWNER`)."""


def settings_of(section: type[Section], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of a section's settings, and of those inside it."""
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        if inner is None:
            yield f"{prefix}{name}"
        else:
            yield from settings_of(inner, f"{prefix}{name}.")


def test_a_new_setting_is_a_decision():
    listed = {f"{section}.{name}".lstrip(".") for section, names in SETTINGS.items() for name in names.split()}
    assert set(settings_of(ExperimentConfig)) == listed
    assert len(listed) <= 136


def test_a_new_setting_of_a_table_is_a_decision():
    assert {*settings_of(TableConfig)} == {*TABLE.split()}


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
        "wire.rounding",
        "wire.step",
        "wire.values",
    }
    replayed = {"models.head", "models.linear_path", "models.members", "precision", "task"}
    replayed |= {"training.class_weights", "training.head_sync", "training.label_smoothing", "training.loss"}
    replayed |= {"training.optimizer", "training.party_dropout"}
    assert set(agreed_values(config, replayed=True)) == shared | replayed
    assert agreed_values(config, replayed=True)["models.head"] == {"hidden": list(config.models.head.hidden)}
