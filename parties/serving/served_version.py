"""A version of the model that is served, with references to each party's own, and the parties that answer for it."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vfl.base.errors import PeerLost
from vfl.base.macs import count_macs
from vfl.config import ConfigError, ExperimentConfig
from vfl.core.build import build_joint_model, parties_behind
from vfl.core.joint_model import JointModel
from vfl.core.tasks import Task, restored_task
from vfl.data.drift import Histograms, Window
from vfl.data.samples import Labels
from vfl.messages.control import ReasonsOffer
from vfl.messages.keys import MOST_KEYS
from vfl.messages.messages import Message
from vfl.parties.network.server.connection import RemoteLink
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.serving.request_queue import MOST_ASKED, Key, KeyOutcome
from vfl.parties.uses.dialled_run import MeanEmbeddings
from vfl.predict.open_run import leader_of
from vfl.predict.predict import fill_missing
from vfl.predict.trained_run import read_checkpoint
from vfl.runs.checkpoint import State
from vfl.runs.runtime import Runtime
from vfl.runs.stored_run import Run


@dataclass(frozen=True, eq=False)
class Version:
    """The head of one checkpoint, with references to each party's own checkpoint."""

    digest: str
    joint: JointModel
    references: Mapping[str, State]
    """Reference by party, from which its link restores it."""
    instead: Mapping[str, Tensor]
    """Replacement [D] of a missing embedding, by party."""
    columns: tuple[str, ...]
    """Columns of a key."""
    leader: str
    """The label owner."""
    foreign: tuple[str, ...]
    """Owners who know the label owner's rows by another key, in the order of their names."""
    drift: Window | None
    """Latest scores, beside those of the test samples; None of a run from before they were kept."""

    macs: int
    """Multiply-accumulates of a row at the head."""

    @property
    def task(self) -> Task:
        """Task of the head."""
        return self.joint.task


def load_version(run_dir: Path, config: ExperimentConfig, runtime: Runtime) -> Version:
    """Read the last checkpoint of a run of processes, as its server has it. Raises ConfigError for another folder."""
    trained = read_checkpoint(Run(run_dir))
    own = trained.sections[SERVER]
    if any("model" in trained.sections[name] for name in config.parties):
        raise ConfigError(f"{run_dir}: trained in one process, which has all models; only runs of processes are served")
    leader = leader_of(config)
    table = config.data.tables.get(leader)
    if table is None or table.key is None:
        raise ConfigError(f"data.tables.{leader}.key: is missing; only tables have keys to ask for")
    task, names = restored_task(own["task"]), config.parties
    nothing = Labels(torch.arange(0), torch.zeros(0))
    joint = build_joint_model(parties_behind({}, config), task, nothing, config, runtime, own)
    references = {name: trained.sections[name] for name in names}
    foreign = tuple(sorted(other for other in table.keys if other in names))
    if foreign and leader not in names:
        what = f"{leader} has no features and serves no rows, so nobody tells {', '.join(foreign)}'s keys"
        raise ConfigError(f"data.tables.{leader}.keys: {what}; serve tables of one key")
    if MOST_ASKED * len(foreign) > MOST_KEYS:
        most = MOST_KEYS // MOST_ASKED
        raise ConfigError(f"data.tables.{leader}.keys: names {len(foreign)} owners; at most {most} can be served")
    joint = replace(joint, new=True, stored_means=MeanEmbeddings(run_dir, trained))
    joint = fill_missing(joint, names, config.serving.when_absent, "serving.when_absent")
    instead = {party.name: joint.missing(1, party.receiver.width)[0] for party in joint.parties} | {**joint.instead}
    drift = Window(Histograms.of_state(own["scores"])) if "scores" in own else None
    width = sum(party.receiver.width for party in joint.parties)
    macs = count_macs(joint.head.head, torch.zeros(1, width, device=runtime.device))
    return Version(trained.digest, joint, references, instead, table.key, leader, foreign, drift, macs)


Row = tuple[Tensor, tuple[bytes, ...]]
"""An embedding [D]; at the label owner also the keys by which other owners know the row."""


@dataclass
class Served:
    """A party that is connected."""

    link: RemoteLink
    ready: "Future[None]"
    """Done when it has restored the version's model."""
    asked: "Future[Message] | None" = None
    """The last order; while it is open nothing more is asked."""
    offer: ReasonsOffer | None = None
    """What it discloses of its columns; None until it was asked."""

    @property
    def usable(self) -> bool:
        """Whether it has restored its model and answered what it was asked. Raises PeerLost."""
        if not self.ready.done():
            return False
        self.ready.result()
        return self.asked is None or self.asked.done()

    @property
    def answers(self) -> bool:
        """Whether it is usable; a lost party is not."""
        try:
            return self.usable
        except PeerLost:
            return False

    def send(self, request: Message) -> "Future[Message]":
        """Send a request; the future holds the reply. Both raise PeerLost."""
        self.asked = self.link.send(request)
        return self.asked


@dataclass
class KeyRows:
    """Outcomes and embeddings of some keys at one party."""

    names: Mapping[Key, bytes]
    """Name of each key at the party."""
    of: dict[bytes, KeyOutcome] = field(default_factory=dict[bytes, KeyOutcome])
    rows: dict[bytes, Row] = field(default_factory=dict[bytes, Row])
    asked: list[bytes] = field(default_factory=list[bytes])
    reply: "Future[Message] | None" = None
    """The answer that is out."""
    unnamed: Mapping[Key, KeyOutcome] = field(default_factory=dict[Key, KeyOutcome])
    """Outcomes of the keys without a name at this party."""

    def outcome(self, key: Key) -> KeyOutcome:
        """Return the outcome of a key."""
        return self.of.get(self.names[key], "away") if key in self.names else self.unnamed.get(key, "away")

    def row(self, key: Key) -> Tensor | None:
        """Return a key's embedding [D], if it came."""
        row = self.rows.get(self.names[key]) if key in self.names else None
        return None if row is None else row[0]


async def wait_for_replies(replies: "Iterable[Future[Any]]", until_s: float) -> None:
    """Wait until all replies are here, or until a time. They come in this loop's own thread."""
    out, here = [reply for reply in replies if not reply.done()], asyncio.Event()

    def look(_reply: "Future[Any]") -> None:
        if all(reply.done() for reply in out):
            here.set()

    for reply in out:
        reply.add_done_callback(look)
    if out:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(until_s - time.monotonic(), 0)):
                await here.wait()
