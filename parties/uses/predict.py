"""``lvfl predict`` over processes: the parties embed the samples, each its own part."""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from vfl.base.absence import WhenAbsent
from vfl.comparison.compare import Comparison, comparison_of, joint_answers, predicted_alone
from vfl.config import ConfigError, ExperimentConfig
from vfl.core.joint_model import JointModel
from vfl.data.files import LabelData, Labels, PartyData
from vfl.data.prediction_files import labels_or_zeros, load_sample_labels
from vfl.data.samples import check_aligned
from vfl.data.source import Source, open_source
from vfl.data.split import party_file
from vfl.data.tables.source import Tables
from vfl.parties.uses.open_parties import MeanEmbeddings, open_parties
from vfl.predict.predict import Prediction, by_key, check_complete, predict
from vfl.predict.reasons import ReasonsWanted


def serve_predictions(
    config: ExperimentConfig,
    run_dir: Path,
    data: Path | None,
    absent: tuple[str, ...],
    when_absent: WhenAbsent,
    *,
    insecure: bool,
    console: Console,
    reasons: ReasonsWanted | None = None,
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
        return predict(replace(joint, stored_means=means.of), away, when_absent, reasons)

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


def serve_comparison(config: ExperimentConfig, run_dir: Path, *, insecure: bool, console: Console) -> Comparison:
    """Train the label owner alone, then listen, and compare with the joint model of the parties that dial in.

    ``config`` is the server's, ``run_dir`` its folder, to whose summary the comparison is added. Raises ValueError for
    unusable data or settings, PeerLost for a party that does not come or has not agreed.
    """
    opened = open_parties(config, run_dir, insecure=insecure, console=console)
    source, labels = opened.source, opened.labels
    if not isinstance(source, Tables):
        raise ConfigError("RUN: comparing needs tables of two or more owners")
    leader = source.leader
    own = _held_beside(config, leader, labels) if leader in config.parties else None
    with tempfile.TemporaryDirectory() as folder:
        alone_MC = predicted_alone(config, source, Path(folder) / "alone", own, labels, console)
    answers = opened.run_use(joint_answers, "the owners are compared")
    # The server knows no name of a column, not even if the label owner runs it.
    numbered = {name: [f"column {each}" for each in range(len(own.lost))] for name, own in answers.importance.items()}
    return comparison_of(run_dir, leader, answers, {"alone": alone_MC}, numbered)


def _held_beside(config: ExperimentConfig, leader: str, labels: LabelData) -> PartyData:
    """Return the label owner's samples, from its table, or its file beside the server's ``data.file``."""
    file = config.data.file
    data = config.data.model_copy(update={"file": None if file is None else file.with_name(party_file(leader))})
    own = open_source(config.model_copy(update={"data": data})).held_by(leader)
    for subset, ids in labels.ids_digests().items():
        check_aligned({leader: own.ids_digests()[subset], "labels": ids})
    return own
