"""All parties in one process: the link, and the building of an experiment."""

from collections.abc import Callable
from concurrent.futures import Future

from torch import nn

from models.mlp import MLP
from models.registry import build_feature_model
from parties.feature_party import FeatureParty
from parties.head_server import HeadServer
from vfl.checkpoint import State
from vfl.config import ExperimentConfig, FeatureModelConfig
from vfl.data.datasets import Dataset, load_dataset
from vfl.data.samples import Samples
from vfl.data.vertical import check_aligned, grid_partition, standardise
from vfl.lightweighting.sparsify import ErrorFeedback
from vfl.random import seeded
from vfl.runtime import Runtime
from vfl.vertical.channel import EmbeddingReceiver, EmbeddingSender
from vfl.vertical.head import HeadTrainer
from vfl.vertical.labels import (
    HeadReplica,
    PartyProtocol,
    ReceivedGradient,
    ReturnGradients,
    ServerProtocol,
    ShareEmbeddings,
)


class LocalLink:
    """A party in the same process: the same bytes as over a network, handled at once."""

    def __init__(self, party: FeatureParty) -> None:
        self.party = party
        self.name = party.name

    def send(self, request: bytes) -> Future[bytes]:
        """Let the party answer; an error of the party is raised here."""
        reply = Future[bytes]()
        reply.set_result(self.party.handle(request))
        return reply

    def save(self) -> State:
        """Return the party's whole state."""
        return self.party.state_dict()

    def load(self, state: State) -> None:
        """Restore the party's whole state."""
        self.party.load_state_dict(state)

    def close(self) -> None:
        """Nothing to release."""


def build_in_process(
    config: ExperimentConfig, runtime: Runtime, on_exchange: Callable[[int, int], None] = lambda done, total: None
) -> HeadServer:
    """Load the data, split it, and build the head server with all its parties.

    Raises ValueError for data that is not there or does not fit.
    """
    data = load_data(config)
    assert data.train.labels is not None
    assert data.test.labels is not None
    grid = config.data.partition
    features = [
        standardise(train, test)
        for train, test in zip(
            grid_partition(data.train, grid.rows, grid.columns),
            grid_partition(data.test, grid.rows, grid.columns),
            strict=True,
        )
    ]
    check_aligned({name: part.ids_digest() for name, (part, _) in zip(grid.parties, features, strict=True)})
    parties = [
        build_party(position, train, test, data, config, runtime) for position, (train, test) in enumerate(features)
    ]
    return HeadServer(
        [LocalLink(party) for party in parties],
        [build_receiver(name, len(data.train), config) for name in grid.parties],
        build_head(config, len(data.classes), runtime),
        build_server_protocol(config),
        data.train.labels,
        data.test.labels,
        config,
        on_exchange,
    )


def load_data(config: ExperimentConfig) -> Dataset:
    """Load an experiment's samples. Raises ValueError for data that is not there or does not fit."""
    return load_dataset(
        config.data.dataset.kind,
        config.data.dataset.root,
        train_samples=config.data.train_samples,
        test_samples=config.data.test_samples,
        seed=config.seed,
        image_size=config.data.dataset.image_size,
    )


def build_party(
    position: int, train: Samples, test: Samples, data: Dataset, config: ExperimentConfig, runtime: Runtime
) -> FeatureParty:
    """Build the party at ``position``; its initial weights depend on the seed and its name alone."""
    name = config.data.partition.parties[position]
    settings = feature_config(config, name)
    channels, height, width = train.features.shape[1:]
    with seeded(config.seed, "init", owner=name):
        model: nn.Module = build_feature_model(
            settings.kind,
            in_channels=channels,
            image_size=(height, width),
            embedding_size=settings.embedding_size,
            width=settings.width,
            batch_norm=settings.batch_norm,
        )
    sender = EmbeddingSender(build_receiver(name, len(train), config), config.wire.values)
    protocol = build_party_protocol(position, data, config, runtime)
    return FeatureParty(name, model, train, test, protocol, sender, config, runtime)


def build_head(config: ExperimentConfig, classes: int, runtime: Runtime) -> HeadTrainer:
    """Build the head; the server and every replica start from the same weights."""
    width = sum(feature_config(config, name).embedding_size for name in config.data.partition.parties)
    with seeded(config.seed, "init", owner="head"):
        head = MLP(width, config.models.head.hidden, classes)
    return HeadTrainer(head, config.training.optimizer, runtime)


def build_receiver(sender: str, samples: int, config: ExperimentConfig) -> EmbeddingReceiver:
    """Build the receiving end for one party's training embeddings."""
    width = feature_config(config, sender).embedding_size
    feedback = ErrorFeedback(samples, width) if config.lightweighting.error_feedback else None
    return EmbeddingReceiver(sender, width, feedback)


def build_server_protocol(config: ExperimentConfig) -> ServerProtocol:
    """Build the server's side of the label protocol."""
    if config.training.labels == "server":
        return ReturnGradients(config.wire.values)
    return ShareEmbeddings(config.training.head_sync)


def build_party_protocol(position: int, data: Dataset, config: ExperimentConfig, runtime: Runtime) -> PartyProtocol:
    """Build a party's side of the label protocol; only ``labels: shared`` gives it labels."""
    if config.training.labels == "server":
        return ReceivedGradient(runtime.device)
    assert data.train.labels is not None
    names = config.data.partition.parties
    others = [build_receiver(name, len(data.train), config) for name in names if name != names[position]]
    return HeadReplica(
        build_head(config, len(data.classes), runtime),
        data.train.labels.to(runtime.device),
        position,
        others,
        config.training.head_sync,
    )


def feature_config(config: ExperimentConfig, party: str) -> FeatureModelConfig:
    """Return the settings of a party's feature model."""
    return config.models.parties.get(party, config.models.feature)
