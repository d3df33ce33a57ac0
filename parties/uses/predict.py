"""``lvfl predict`` over processes: the parties embed the samples, each its own part."""

from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from vfl.base.absence import WhenAbsent
from vfl.config import ExperimentConfig
from vfl.core.joint_model import JointModel
from vfl.data.files import Labels
from vfl.data.prediction_files import labels_or_zeros, load_sample_labels
from vfl.data.source import Source
from vfl.parties.uses.open_parties import MeanEmbeddings, open_parties
from vfl.predict.predict import Prediction, by_key, check_complete, predict


def serve_predictions(
    config: ExperimentConfig,
    run_dir: Path,
    data: Path | None,
    absent: tuple[str, ...],
    when_absent: WhenAbsent,
    *,
    insecure: bool,
    console: Console,
) -> Prediction:
    """Listen, and predict the test samples, or those whose ids or keys ``data`` has. Raises as ``open_parties``."""
    opened = open_parties(config, run_dir, absent, when_absent, insecure=insecure, console=console)
    samples, labelled = None, True
    if data is not None:
        samples, labelled = _read_samples(opened.source, data, opened.labels.classes, when_absent)
    means = MeanEmbeddings(run_dir, opened.trained)
    if when_absent == "mean":
        means.of(absent)

    def use(joint: JointModel) -> Prediction:
        away = [party.name for party in joint.roster if not party.present]
        means.keep(joint)
        return predict(replace(joint, stored_means=means.of), away, when_absent)

    count = len((samples or opened.labels.test).ids)
    prediction = opened.run_use(use, f"{count} samples are predicted", samples, labelled=labelled)
    return prediction if data is None else by_key(prediction)


def _read_samples(source: Source, path: Path, classes: tuple[str, ...], when_absent: WhenAbsent) -> tuple[Labels, bool]:
    """Read the server's part of the samples to predict, and whether their labels are known; if not, they are zeros.

    Raises ConfigError as ``check_complete``, for matched rows.
    """
    rows = source.own_rows(path)
    if rows is not None:
        if when_absent == "refuse":
            check_complete(rows)
        present_NK = None
        if set(source.parties) <= set(rows.present):  # of a match; otherwise all parties have the same keys
            present_NK = torch.stack([rows.present[name] for name in source.parties], dim=1)
        return Labels(rows.whole.ids, labels_or_zeros(None, len(rows.whole)), present_NK, rows.keys), False
    ids_N, labels_N = load_sample_labels(path, classes)
    return Labels(ids_N, labels_or_zeros(labels_N, len(ids_N))), labels_N is not None
