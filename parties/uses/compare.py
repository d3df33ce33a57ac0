"""``lvfl compare`` over processes: the gain from the other owners, whose tables stay with them."""

import tempfile
from pathlib import Path

from rich.console import Console

from vfl.comparison.compare import Comparison, comparison_of, joint_answers, predicted_alone
from vfl.config import ConfigError, ExperimentConfig
from vfl.data.files import LabelData, PartyData
from vfl.data.samples import check_aligned
from vfl.data.source import open_source
from vfl.data.split import party_file
from vfl.data.tables.source import Tables
from vfl.parties.uses.open_parties import open_parties


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
