"""Settings and data that a party and the server of a training must share."""
# Beside admission, which a match uses too and which imports no PyTorch.

import json
from pathlib import Path

import torch

from vfl.base.modules import weights_digest
from vfl.config import ExperimentConfig
from vfl.config.settings import agreed_values
from vfl.core.build import TrainingLabels, feature_config
from vfl.messages.messages import Kind, Message
from vfl.parties.network.admission import SERVED, DataDigests, Expected, Terms
from vfl.parties.network.wire.session import Hello
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.run_folder import read_run_id


def agreement(config: ExperimentConfig) -> str:
    """Return the settings that both sides must share, as JSON: {dotted key: value}."""
    replayed = config.training.labels == "shared"
    values = agreed_values(config, replayed=replayed)
    if replayed:
        values["embedding sizes"] = [feature_config(config, party).embedding_size for party in config.parties]
    if config.training.start_from is not None:  # each has a folder of its own; RESTORE names its checkpoint
        values["training.start_from"] = "a run"
    return json.dumps(values, sort_keys=True)


def serving_agreement(config: ExperimentConfig) -> str:
    """Return what both sides must share to serve scores: a training's settings, and how keys travel."""
    return json.dumps(json.loads(agreement(config)) | {SERVED: config.serving.keys}, sort_keys=True)


def expected_to_serve(config: ExperimentConfig) -> dict[str, Expected]:
    """Return what the server that scores expects of every party: no samples, as each has rows of its own."""
    shared = serving_agreement(config)
    return {
        name: Expected(feature_config(config, name).embedding_size, shared, DataDigests()) for name in config.parties
    }


def expected_of(config: ExperimentConfig, data: DataDigests, evaluated: int) -> dict[str, Expected]:
    """Return the server's requirements of every party and its offers, for ``evaluated`` samples to evaluate."""
    shared = agreement(config)
    return {
        name: Expected(
            feature_config(config, name).embedding_size, shared, data, Terms.of(config, name, evaluated).text()
        )
        for name in config.parties
    }


def labels_digest(labels: TrainingLabels | None) -> str:
    """Return the sha256 of training labels, number of classes and the parties' missing rows; "" without labels."""
    if labels is None:
        return ""
    gaps = {} if labels.present_NK is None else {"present": labels.present_NK}
    return weights_digest({"labels": labels.labels_N, "classes": torch.tensor(labels.task.outputs), **gaps})


def make_hello(
    config: ExperimentConfig, name: str, run_dir: Path, instance: str, agreed: str, digests: DataDigests | None = None
) -> Message:
    """Return a party's first message: its name, the values that must agree with the server's, and its checkpoints.

    ``agreed`` are the settings that both sides share, and ``digests`` those of their data, if they share some.
    """
    digests = digests or DataDigests()
    hello = Hello(
        party=name,
        instance=instance,
        embedding_width=feature_config(config, name).embedding_size,
        agreement=agreed,
        train_ids=digests.train_ids,
        test_ids=digests.test_ids,
        labels=digests.labels,
        rounds=tuple(CheckpointStore(run_dir / "checkpoints", config.checkpoint.keep).rounds()),
    )
    return Message(Kind.HELLO, parts=(hello.part(),), run=read_run_id(run_dir))
