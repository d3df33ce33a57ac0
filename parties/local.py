"""All parties in one process: the link, and the building of an experiment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from parties.build import build_head_server, build_party, training_labels
from parties.feature_party import FeatureParty
from parties.head_server import HeadServer
from vfl.checkpoint import State
from vfl.config import ExperimentConfig
from vfl.data.source import Source, Split, open_source, prepare_party, split_samples
from vfl.runtime import Runtime
from vfl.vertical.link import PartyLink
from vfl.wire.messages import Message

T = TypeVar("T")


class LocalLink(PartyLink):
    """A party in the same process: handed the messages, in which tensors are frames as over a network, at once."""

    def __init__(self, party: FeatureParty) -> None:
        self.party = party
        self.name = party.name

    def send(self, request: Message, take: Callable[[Message], T]) -> Callable[[], T]:
        """Let the party answer; an error of the party is raised here."""
        reply = self.party.handle(request)
        return lambda: take(reply)

    def save(self) -> Callable[[], State]:
        """Return the party's whole state."""
        return self.party.state_dict

    def load(self, state: State) -> Callable[[], None]:
        """Restore the party's whole state. Raises ValueError where the party kept its state for itself."""
        if "model" not in state:
            raise ValueError(
                f"--resume: {self.name} was a process of its own and kept its state; resume with processes again"
            )
        return lambda: self.party.load_state_dict(state)


@dataclass(frozen=True, eq=False)
class InProcess:
    """An experiment with all its parties in this process."""

    server: HeadServer
    parties: list[FeatureParty]
    source: Source
    split: Split
    """Everybody's raw samples."""


def build_in_process(
    config: ExperimentConfig, runtime: Runtime, on_exchange: Callable[[int, int], None] = lambda done, total: None
) -> InProcess:
    """Load the data, split it, and build the head server and all its parties.

    Raises ValueError for data that is not there or does not fit.
    """
    source = open_source(config)
    split = split_samples(source)
    prepared = {data.party: prepare_party(source, data) for data in split.parties}
    labels = training_labels(split.labels, config)
    shared_labels = labels if config.training.labels == "shared" else None
    parties = [build_party(name, data, shared_labels, config, runtime) for name, data in prepared.items()]
    links = [LocalLink(party) for party in parties]
    server = build_head_server(links, labels, split.labels.test, config, runtime, on_exchange)
    return InProcess(server, parties, source, split)
