"""A version of the model that is served: the head of one checkpoint, with references to each party's own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vfl.base.macs import count_macs
from vfl.config import ConfigError, ExperimentConfig
from vfl.core.build import build_joint_model, parties_behind
from vfl.core.joint_model import JointModel
from vfl.core.tasks import Task, restored_task
from vfl.data.drift import Histograms, Window
from vfl.data.samples import Labels
from vfl.messages.keys import MOST_KEYS
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.serving.request_queue import MOST_ASKED
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
