"""Predictions by party processes: they join as for training, restore the last checkpoint, and answer.

Parties need no special mode: they follow the server's orders. Only the server knows that nothing is trained.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from torch import Tensor

from vfl.base.digest import check_same_data
from vfl.base.errors import PeerLost
from vfl.config import ConfigError, ExperimentConfig
from vfl.console import DONE
from vfl.core.build import build_joint_model
from vfl.core.joint_model import JointModel
from vfl.core.server import OWNER
from vfl.data.files import Labels
from vfl.data.prediction_files import labels_or_zeros, load_sample_labels
from vfl.data.samples import ids_digest
from vfl.data.source import Source, open_source
from vfl.parties.network.admission import Expected
from vfl.parties.network.server.hub import Hub
from vfl.parties.network.server.link import RemoteLink
from vfl.parties.network.server.server_process import ServerLabels, server_labels
from vfl.parties.network.server.sessions import Connections, Offences, SessionWork, in_sessions
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.tls.files import TlsFiles
from vfl.parties.network.training_terms import expected_of
from vfl.parties.network.transport.security import load_identity
from vfl.predict.predict import (
    Prediction,
    WhenAbsent,
    by_key,
    check_absent,
    check_complete,
    prediction_of,
    scores_of,
    with_replacements,
)
from vfl.predict.trained_run import RunCheckpoint, check_whole_images, read_checkpoint
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.run_folder import check_run, only_process_in, read_run_id
from vfl.runs.runtime import Runtime, start_runtime

T = TypeVar("T")
MEANS = "mean_embeddings"
"""File in the server's folder with every party's mean embedding, used while it is absent."""


@dataclass(frozen=True, eq=False)
class PredictionServer:
    """Predicts with the parties that are connected."""

    config: ExperimentConfig
    trained: RunCheckpoint
    labels: ServerLabels
    classes: tuple[str, ...]
    samples: Labels
    """Samples to predict."""
    labelled: bool
    """Their labels are known; otherwise they are zeros."""
    runtime: Runtime
    means: "MeanEmbeddings"
    absent: tuple[str, ...]
    """Parties that are not waited for."""
    when_absent: WhenAbsent

    @property
    def expected(self) -> dict[str, Expected]:
        """Requirements of the parties that are not absent: as for training, except for the samples to predict."""
        data = replace(self.labels.digests, test_ids=ids_digest(self.samples.ids))
        expected = expected_of(self.config, data, len(self.samples.ids))
        return {name: each for name, each in expected.items() if name not in self.absent}

    def serve(
        self, run_dir: Path, tls: TlsFiles | None, console: Console, use: Callable[[Connections, int], T], done: str
    ) -> T:
        """Listen; once all parties are here, or without absent ones, return ``use`` of them, and dismiss them.

        A party that is lost meanwhile is waited for again. Raises PeerLost for an absent party without a replacement.
        """
        network, run = self.config.network, read_run_id(run_dir)
        hub = Hub(run, self.expected, network, tls, log=console.print, folder=run_dir)
        with only_process_in(run_dir), hub:
            console.print(f"{self.config.name}: run {run}, folder {run_dir}, listening on {network.listen}")
            gather = partial(self._gather, hub, console)
            work = SessionWork(tuple(self.expected), gather, use, lambda result: (done, DONE))
            return in_sessions(hub, work, Offences(network.max_offences), network, console)

    def _gather(self, hub: Hub, console: Console) -> Connections:
        try:
            return hub.wait_for(tuple(self.expected), self.config.network.wait_s)
        except PeerLost as lost:
            connections = hub.joined()
            if self.when_absent == "refuse" or not connections:
                raise
            console.print(f"warning: {lost}; predicting without")
            return connections

    def predict(self, connections: Connections, session: int) -> Prediction:
        """Predict with the connected parties, and with what replaces the others."""
        names = self.config.parties
        absent = [name for name in names if name not in connections]
        if self.when_absent == "mean":
            self.means.of(absent)
        joint = self.joint(connections, session)
        self.means.keep(joint)
        probabilities_NC = with_replacements(joint, absent, self.when_absent, self.means.of).predictions()
        labels_N = self.samples.values if self.labelled else None
        scores = {} if labels_N is None else scores_of(joint, probabilities_NC, labels_N, absent, self.when_absent)
        return prediction_of(joint, probabilities_NC, self.classes, labels_N, scores, absent)

    def joint(self, connections: Connections, session: int) -> JointModel:
        """Return the trained joint model for the samples to predict."""
        links = {name: RemoteLink(connection, session) for name, connection in connections.items()}
        own, train = self.trained.sections[OWNER], self.labels.train
        check_same_data("the labels", own["data_digest"], train.digest(self.labels.test))
        joint = build_joint_model(links, train.task, self.samples, self.config, self.runtime, own)
        joint.roster.load(self.trained.sections)
        return replace(joint, new=self.samples is not self.labels.test)


class MeanEmbeddings:
    """The parties' mean embeddings [D] of the training samples, as of one checkpoint, in the server's folder."""

    def __init__(self, run_dir: Path, trained: RunCheckpoint) -> None:
        self.store = CheckpointStore(run_dir / MEANS, keep=1)
        self.rounds, self.digest = trained.rounds, trained.digest
        self.known: dict[str, Tensor] = {}
        if self.rounds in self.store.rounds():
            saved = self.store.load(self.rounds)[SERVER]
            self.known = saved["means"] if saved["of"] == self.digest else {}

    def of(self, names: Collection[str]) -> dict[str, Tensor]:
        """Return those of some parties. Raises ConfigError for a party that never answered a prediction."""
        if missing := [name for name in names if name not in self.known]:
            raise ConfigError(
                f"--when-absent: the server has no mean embedding of {', '.join(missing)}; predict once by processes "
                "while it is here, or choose zeros"
            )
        return {name: self.known[name] for name in names}

    def keep(self, joint: JointModel) -> None:
        """Ask the present parties for the mean embeddings that are not stored yet."""
        new = [party.name for party in joint.roster.present if party.name not in self.known]
        if new:
            self.known |= joint.mean_embeddings(new)
            self.store.save(self.rounds, {SERVER: {"of": self.digest, "means": self.known}})


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
    """Listen, and predict the test samples, or those whose ids or keys ``data`` has, with the parties that dial in.

    ``config`` is the server's, ``run_dir`` its folder. Parties in ``absent`` are not waited for, others for
    ``network.wait_s``. Raises ValueError for unusable data or settings, PeerLost for an absent one without replacement.
    """
    server, tls = open_server(config, run_dir, data, absent, when_absent, insecure=insecure)
    done = f"{len(server.samples.ids)} samples are predicted"
    prediction = server.serve(run_dir, tls, console, server.predict, done)
    return prediction if data is None else by_key(prediction)


def open_server(
    config: ExperimentConfig,
    run_dir: Path,
    data: Path | None,
    absent: tuple[str, ...],
    when_absent: WhenAbsent,
    *,
    insecure: bool,
) -> tuple[PredictionServer, TlsFiles | None]:
    """Return the server of a finished run, and its identity. Raises ValueError as ``serve_predictions``."""
    trained = read_checkpoint(run_dir)
    check_run(run_dir, config, resume=True)
    check_whole_images(run_dir, trained.sections[SERVER].get("reports", {}))
    if not read_run_id(run_dir):
        raise ConfigError(f"{run_dir}: trained in one process, which has all models; leave --listen out")
    tls = load_identity(SERVER, config.network, insecure=insecure)
    check_absent(absent, config.parties, when_absent)
    source = open_source(config)
    held = source.held_labels()
    samples, labelled = (held.test, True) if data is None else _read_samples(source, data, held.classes, when_absent)
    means = MeanEmbeddings(run_dir, trained)
    if when_absent == "mean":
        means.of(absent)
    labels, runtime = server_labels(config, held), start_runtime(config)
    return PredictionServer(
        config, trained, labels, held.classes, samples, labelled, runtime, means, absent, when_absent
    ), tls


def _read_samples(source: Source, path: Path, classes: tuple[str, ...], when_absent: WhenAbsent) -> tuple[Labels, bool]:
    """Read the server's part of the samples to predict, and whether their labels are known; if not, they are zeros.

    Raises PeerLost as ``check_complete``, for matched rows.
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
