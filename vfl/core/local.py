"""All parties in one process: their links, and building an experiment."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NoReturn

from vfl.base.modules import combined_digest, weights_digest
from vfl.config import ConfigError, ExperimentConfig
from vfl.core.build import (
    GivenModules,
    Start,
    build_head_server,
    build_party,
    build_roster,
    macs_of_head,
    training_labels,
)
from vfl.core.finished_party import FinishedParty
from vfl.core.joint_model import JointModel
from vfl.core.link import PartyLink, done
from vfl.core.party import FeatureParty
from vfl.core.server import HeadServer
from vfl.data.samples import Samples
from vfl.data.source import SERVER, Source, Split, open_source, prepare_party, split_samples
from vfl.messages.messages import Message
from vfl.runs.checkpoint import State
from vfl.runs.runtime import Runtime, use_threads_for


class LocalLink(PartyLink):
    """A party in the same process: gets the messages directly, with tensors encoded as for a network."""

    def __init__(self, party: FeatureParty) -> None:
        self.party = party
        self.name = party.name

    def send(self, request: Message) -> "Future[Message]":
        """Let the party answer; its error is raised here."""
        return done(self.party.handle(request))

    def reject_reply(self, error: Exception) -> NoReturn:
        """Raise the error: both sides are this process."""
        raise error

    def save(self) -> "Future[State]":
        """Return the party's complete state."""
        return done(self.party.state_dict())

    def load(self, state: State) -> "Future[None]":
        """Restore the party's complete state. Raises ValueError if the state was kept by a party's own process."""
        if "model" not in state:
            raise ValueError(
                f"--resume: {self.name} was a process of its own and kept its state; resume with processes again"
            )
        return done(self.party.load_state_dict(state))


@dataclass(frozen=True, eq=False)
class LocalFederation:
    """All parties of an experiment in this process, and their joint model."""

    joint: JointModel
    parties: Sequence[FinishedParty]
    source: Source
    raw: Sequence[Samples]
    """Raw training samples of each party; random ones of the same form if a run is loaded without its data."""

    def digests(self) -> dict[str, str]:
        """Return the digests of the head with the parties' weights, and with their finished models."""
        head = {SERVER: weights_digest(self.joint.head.head.state_dict())}
        weights = {party.name: weights_digest(party.model.state_dict()) for party in self.parties}
        finished = {party.name: party.evaluated.digest() for party in self.parties}
        return {
            "model_digest": combined_digest(head | weights),
            "finished_model_digest": combined_digest(head | finished),
        }


@dataclass(frozen=True, eq=False)
class InProcess(LocalFederation):
    """A federation that trains: its parties take steps, and the server has the joint model's head."""

    parties: Sequence[FeatureParty]
    split: Split
    """All raw samples and the labels."""
    server: HeadServer


def build_in_process(
    config: ExperimentConfig,
    runtime: Runtime,
    on_exchange: Callable[[int, int], None] = lambda done, total: None,
    source: Source | None = None,
    given: GivenModules | None = None,
    start: Start | None = None,
) -> InProcess:
    """Load the data, split it, and build the head server and all its parties.

    ``source`` replaces the configuration's, and the objects in ``given`` replace what it names; ``start`` is that of
    ``training.start_from``. Raises ValueError for data that is missing or does not fit.
    """
    if config.training.start_from is not None and start is None:
        raise ConfigError("training.start_from: is for trainings and what is asked of them; leave it out here")
    kept: Mapping[str, State] = start.sections if start else {}
    source = source or open_source(config)
    split = split_samples(source, kept)
    prepared = {data.party: prepare_party(source, data, kept.get(data.party)) for data in split.parties}
    labels = training_labels(split.labels, config, kept.get(SERVER))
    shared_labels = labels if config.training.labels == "shared" else None
    parties = [build_party(name, data, shared_labels, config, runtime, given=given) for name, data in prepared.items()]
    use_threads_for(config, max(macs_of_head(config), *(party.macs for party in parties)))
    roster = build_roster(links_to(parties), labels, config)
    server = build_head_server(roster, labels, split.labels.test, config, runtime, on_exchange, given=given)
    if start and start.fresh:
        server.begin_with(kept[SERVER])
        for party in parties:
            party.begin_with(kept[party.name])
    return InProcess(server.joint, parties, source, [part.train for part in split.parties], split, server)


def links_to(parties: Sequence[FeatureParty]) -> dict[str, LocalLink]:
    """Return the links to this process's parties by name."""
    return {party.name: LocalLink(party) for party in parties}
