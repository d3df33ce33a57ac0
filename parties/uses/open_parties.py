"""The joint model of a finished run whose parties are processes, which join as for training and restore its end.

Parties need no special mode: they follow the server's orders. Only the server knows that nothing is trained.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from torch import Tensor

from vfl.base.absence import WhenAbsent
from vfl.base.errors import PeerLost
from vfl.base.modules import blaming, check_same_data
from vfl.config import ConfigError, ExperimentConfig
from vfl.console import DONE
from vfl.core.build import Start, build_joint_model
from vfl.core.joint_model import JointModel
from vfl.core.server import OWNER
from vfl.data.files import LabelData, Labels, in_classes
from vfl.data.samples import ids_digest
from vfl.data.source import Source, open_source
from vfl.parties.network.server.hub import Hub
from vfl.parties.network.server.link import RemoteLink
from vfl.parties.network.server.server_process import ServerLabels, server_labels
from vfl.parties.network.server.sessions import Connections, Offences, SessionWork, in_sessions
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.tls.files import TlsFiles
from vfl.parties.network.training_terms import expected_of
from vfl.parties.network.transport.security import load_identity
from vfl.predict.predict import check_absent
from vfl.predict.trained_run import RunCheckpoint, check_whole_images, read_checkpoint
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.run_folder import check_folder, only_process_in, read_run_id
from vfl.runs.runtime import Runtime, start_runtime
from vfl.runs.stored_run import Run

T = TypeVar("T")
MEANS = "mean_embeddings"
"""File in the server's folder with every party's mean embedding, used while it is absent."""


@dataclass(frozen=True, eq=False)
class DiallingParties:
    """A finished run at its server, whose parties dial in to be asked."""

    config: ExperimentConfig
    run_dir: Path
    trained: RunCheckpoint
    source: Source
    labels: LabelData
    held: ServerLabels
    """The same labels, as the training has them."""
    runtime: Runtime
    tls: TlsFiles | None
    console: Console
    absent: tuple[str, ...]
    """Parties that are not waited for."""
    when_absent: WhenAbsent

    def run_use(
        self, use: Callable[[JointModel], T], done: str, samples: Labels | None = None, *, labelled: bool = True
    ) -> T:
        """Listen; once all parties are here, or without absent ones, return ``use`` of their joint model.

        A party that is lost meanwhile is waited for, and the joint model used again: so it is not opened by ``with``.
        It is asked of the test samples, or of ``samples``, whose labels may be unknown; ``done`` dismisses the parties.
        Raises PeerLost for an absent party without a replacement.
        """
        config, network, run = self.config, self.config.network, read_run_id(self.run_dir)
        held, own = self.held, self.trained.sections[OWNER]
        wanted = samples or held.test
        data = replace(held.digests, test_ids=ids_digest(wanted.ids))
        expected = expected_of(config, data, len(wanted.ids))
        awaited = {name: each for name, each in expected.items() if name not in self.absent}

        def use_joint(connections: Connections, session: int) -> T:
            links = {name: RemoteLink(connection, session) for name, connection in connections.items()}
            with blaming(str(self.run_dir)):
                check_same_data("the labels", own["data_digest"], held.train.digest(held.test))
            joint = build_joint_model(links, held.train.task, wanted, config, self.runtime, own)
            joint.roster.load(self.trained.sections)
            return use(replace(joint, new=samples is not None, labelled=labelled))

        hub = Hub(run, awaited, network, self.tls, log=self.console.print, folder=self.run_dir)
        with only_process_in(self.run_dir), hub:
            self.console.print(f"{config.name}: run {run}, folder {self.run_dir}, listening on {network.listen}")
            names = tuple(awaited)
            work = SessionWork(names, partial(self._gather, hub, names), use_joint, lambda result: (done, DONE))
            return in_sessions(hub, work, Offences(network.max_offences), network, self.console)

    def _gather(self, hub: Hub, names: tuple[str, ...]) -> Connections:
        try:
            return hub.wait_for(names, self.config.network.wait_s)
        except PeerLost as lost:
            connections = hub.joined()
            if self.when_absent == "refuse" or not connections:
                raise
            self.console.print(f"warning: {lost}; predicting without")
            return connections


def open_parties(
    config: ExperimentConfig,
    run_dir: Path,
    absent: tuple[str, ...] = (),
    when_absent: WhenAbsent = "refuse",
    *,
    insecure: bool,
    console: Console,
) -> DiallingParties:
    """Open a finished run at its server: ``config`` is the server's, ``run_dir`` its folder.

    Parties in ``absent`` are not waited for, others for ``network.wait_s``. Raises ValueError for unusable data or
    settings, PeerLost for an absent party without a replacement.
    """
    run = Run(run_dir)
    trained = read_checkpoint(run)
    check_folder(run_dir, config, "--listen")
    check_whole_images(run, trained.sections[OWNER].get("reports", {}))
    if not read_run_id(run_dir):
        raise ConfigError(f"{run_dir}: trained in one process, which has all models; leave --listen out")
    tls = load_identity(SERVER, config.network, insecure=insecure)
    check_absent(absent, config.parties, when_absent)
    source = open_source(config)
    labels, start = source.held_labels(), None
    if config.training.start_from is not None:
        labels, start = in_classes(labels, trained.sections[OWNER]["task"]), Start(trained.sections, fresh=False)
    held, runtime = server_labels(config, labels, start), start_runtime(config)
    return DiallingParties(config, run_dir, trained, source, labels, held, runtime, tls, console, absent, when_absent)


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
