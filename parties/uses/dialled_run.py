"""A finished run whose parties are processes, which join as for training and restore its end; and their comparison.

Parties need no special mode: they follow the server's orders. Only the server knows that nothing is trained.
"""

import tempfile
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from torch import Tensor

from vfl.base.errors import PeerLost, WhenAbsent
from vfl.base.modules import blaming, check_same_data
from vfl.comparison.compare import Comparison, comparison_of, joint_answers, predicted_alone
from vfl.config import ConfigError, ExperimentConfig
from vfl.console import DONE
from vfl.core.build import Start, build_joint_model, parties_behind
from vfl.core.joint_model import JointModel
from vfl.core.parties import Parties
from vfl.data.files import LabelData, PartyData, in_classes
from vfl.data.prediction_files import load_sample_labels
from vfl.data.samples import Labels, check_aligned, ids_digest
from vfl.data.source import Source, open_source
from vfl.data.split import party_file
from vfl.data.tables.new_rows import read_own_rows
from vfl.data.tables.source import Tables
from vfl.parties.network.server.connection import RemoteLink
from vfl.parties.network.server.hub import Connections, Hub, in_sessions
from vfl.parties.network.server.server_process import ServerLabels, server_labels
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.tls.files import TlsFiles
from vfl.parties.network.training_terms import expected_of
from vfl.parties.network.transport.security import load_identity
from vfl.predict.open_run import SamplesWanted, check_absent, check_complete
from vfl.predict.trained_run import RunCheckpoint, check_whole_images, read_checkpoint
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.run_folder import check_folder, only_process_in, read_run_id
from vfl.runs.runtime import Runtime, start_runtime
from vfl.runs.stored_run import Run

T = TypeVar("T")
MEANS = "mean_embeddings"
"""File in the server's folder with every party's mean embedding, used while it is absent."""


@dataclass(frozen=True, eq=False)
class DialledRun:
    """A finished run at its server, whose parties dial in to be asked."""

    config: ExperimentConfig
    run_dir: Path
    trained: RunCheckpoint
    source: Source
    labels: LabelData
    held: ServerLabels
    """The same labels, as the training has them."""
    samples: Labels
    """What the parties are asked of: the test samples, or others, whose labels may be unknown."""
    labelled: bool
    wanted: SamplesWanted
    runtime: Runtime
    tls: TlsFiles | None
    console: Console

    def ask(self, use: Callable[[JointModel], T]) -> T:
        """Listen; once all parties are here, or without absent ones, return ``use`` of their joint model.

        A party that is lost meanwhile is waited for, and the use starts over. Its result dismisses the parties. Raises
        PeerLost for an absent party without a replacement.
        """
        config, network, run = self.config, self.config.network, read_run_id(self.run_dir)
        data = replace(self.held.digests, test_ids=ids_digest(self.samples.ids))
        expected = expected_of(config, data, len(self.samples.ids))
        awaited = {name: each for name, each in expected.items() if name not in self.wanted.absent}
        hub = Hub(run, awaited, network, self.tls, log=self.console.print, folder=self.run_dir)
        with hub:
            self.console.print(f"{config.name}: run {run}, folder {self.run_dir}, listening on {network.listen}")
            return in_sessions(hub, partial(self._gather, hub), partial(self._use, use), self._last_word)

    def _use(self, use: Callable[[JointModel], T], connections: Connections, session: int) -> T:
        config, held, own = self.config, self.held, self.trained.sections[SERVER]
        links = {name: RemoteLink(connection, session) for name, connection in connections.items()}
        parties = parties_behind(links, config)
        with blaming(str(self.run_dir)):
            check_same_data("the labels", own["data_digest"], held.train.digest(held.test))
        joint = build_joint_model(parties, held.train.task, self.samples, config, self.runtime, own)
        Parties(parties).load(self.trained.sections)
        away, new = [name for name in config.parties if name not in links], self.wanted.data is not None
        means = MeanEmbeddings(self.run_dir, self.trained)
        return use(replace(joint, new=new, labelled=self.labelled, away=away, stored_means=means))

    def _last_word(self, _result: object) -> tuple[str, int]:
        return f"{len(self.samples.ids)} samples are predicted", DONE

    def _gather(self, hub: Hub) -> Connections:
        try:
            return hub.wait_for(tuple(hub.expected), self.config.network.wait_s)
        except PeerLost as lost:
            connections = hub.joined()
            if self.wanted.when_absent == "refuse" or not connections:
                raise
            self.console.print(f"warning: {lost}; predicting without")
            return connections


@dataclass(frozen=True, eq=False)
class Dialled:
    """Every party is a process that dials this one, the server of their training."""

    config: ExperimentConfig
    """The server's."""
    console: Console
    insecure: bool

    @contextmanager
    def open_run(self, run: Run, wanted: SamplesWanted) -> Generator[DialledRun]:
        """Open the run in the server's folder for its test samples, or those whose ids or keys ``data`` has.

        Parties in ``absent`` are not waited for, others for ``network.wait_s``. Raises ValueError for unusable data or
        settings, PeerLost for an absent party without a replacement.
        """
        config, run_dir = self.config, run.folder
        trained = read_checkpoint(run)
        check_folder(run_dir, config, "--listen")
        check_whole_images(run, trained.sections[SERVER].get("reports", {}))
        if not read_run_id(run_dir):
            raise ConfigError(f"{run_dir}: trained in one process, which has all models; leave --listen out")
        tls = load_identity(SERVER, config.network, insecure=self.insecure)
        check_absent(wanted.absent, config.parties, wanted.when_absent)
        source = open_source(config)
        labels, start = source.held_labels(), None
        if config.training.start_from is not None:
            labels, start = in_classes(labels, trained.sections[SERVER]["task"]), Start(trained.sections, fresh=False)
        held, runtime = server_labels(config, labels, start), start_runtime(config)
        samples, labelled = held.test, True
        if isinstance(wanted.data, Path):
            samples, labelled = _read_samples(source, wanted.data, labels.classes, wanted.when_absent)
        if wanted.when_absent == "mean":
            MeanEmbeddings(run_dir, trained).of(wanted.absent)
        with only_process_in(run_dir):
            yield DialledRun(
                config, run_dir, trained, source, labels, held, samples, labelled, wanted, runtime, tls, self.console
            )


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
        new = [party.name for party in joint.present if party.name not in self.known]
        if new:
            self.known |= joint.mean_embeddings(new)
            self.store.save(self.rounds, {SERVER: {"of": self.digest, "means": self.known}})


def _read_samples(source: Source, path: Path, classes: tuple[str, ...], when_absent: WhenAbsent) -> tuple[Labels, bool]:
    """Read the server's part of the samples to predict, and whether their labels are known; if not, they are zeros.

    Raises ConfigError as ``check_complete``, for matched rows.
    """
    rows = read_own_rows(source, path)
    if rows is not None:
        if when_absent == "refuse":
            check_complete(rows)
        present_NK = None
        if set(source.parties) <= set(rows.present):  # of a match; otherwise all parties have the same keys
            present_NK = torch.stack([rows.present[name] for name in source.parties], dim=1)
        return Labels(rows.whole.ids, torch.zeros(len(rows.whole), dtype=torch.int64), present_NK, rows.keys), False
    ids_N, labels_N = load_sample_labels(path, classes)
    known = torch.zeros(len(ids_N), dtype=torch.int64) if labels_N is None else labels_N
    return Labels(ids_N, known), labels_N is not None


def compare_run(run: Run, where: Dialled) -> Comparison:
    """Train the label owner alone, then listen, and compare with the joint model of the parties that dial in.

    The comparison is added to the run's summary. Raises ValueError for unusable data or settings, PeerLost for a party
    that does not come or has not agreed.
    """
    config = where.config
    with where.open_run(run, SamplesWanted()) as opened, tempfile.TemporaryDirectory() as folder:
        source, labels = opened.source, opened.labels
        if not isinstance(source, Tables):
            raise ConfigError("RUN: comparing needs tables of two or more owners")
        leader = source.leader
        own = _held_beside(config, leader, labels) if leader in config.parties else None
        alone_MC = predicted_alone(config, source, Path(folder) / "alone", own, labels, where.console)
        answers = opened.ask(joint_answers)
    # The server knows no name of a column, not even if the label owner runs it.
    numbered = {name: [f"column {each}" for each in range(len(own.lost))] for name, own in answers.importance.items()}
    return comparison_of(run.folder, leader, answers, {"alone": alone_MC}, numbered)


def _held_beside(config: ExperimentConfig, leader: str, labels: LabelData) -> PartyData:
    """Return the label owner's samples, from its table, or its file beside the server's ``data.file``."""
    file = config.data.file
    data = config.data.model_copy(update={"file": None if file is None else file.with_name(party_file(leader))})
    own = open_source(config.model_copy(update={"data": data})).held_by(leader)
    for subset, ids in labels.ids_digests().items():
        check_aligned({leader: own.ids_digests()[subset], "labels": ids})
    return own
