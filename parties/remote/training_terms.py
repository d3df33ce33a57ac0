"""What a party and the server of a training must have in common."""

import json

import torch

from parties.build import TrainingLabels, feature_config
from vfl.agreement import agreed_values
from vfl.config import ExperimentConfig
from vfl.digest import weights_digest


def agreement(config: ExperimentConfig) -> str:
    """Return the settings that both sides must share, as JSON: {dotted key: value}."""
    replayed = config.training.labels == "shared"
    values = agreed_values(config, replayed=replayed)
    if replayed:
        values["embedding sizes"] = [feature_config(config, party).embedding_size for party in config.parties]
    return json.dumps(values, sort_keys=True)


def labels_digest(labels: TrainingLabels | None) -> str:
    """Return the sha256 of training labels, number of classes and, where rows are missing, whose; empty for none."""
    if labels is None:
        return ""
    gaps = {} if labels.present_NK is None else {"present": labels.present_NK}
    return weights_digest({"labels": labels.labels_N, "classes": torch.tensor(labels.task.outputs), **gaps})
