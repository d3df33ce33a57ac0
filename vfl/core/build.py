"""Building the two sides of an experiment, with the same objects in one process and in many."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Any, cast

import torch
from torch import Tensor, nn

from vfl.base.modules import weights_digest
from vfl.base.random import seeded
from vfl.compression.sparsify import ErrorFeedback
from vfl.config import ConfigError, ExperimentConfig, FeatureModelConfig
from vfl.config.components import FEATURE_MODELS
from vfl.config.models import ModelsConfig
from vfl.config.own_models import load_own
from vfl.config.prediction import PredictionConfig
from vfl.config.registry import is_own, made_by_stranger
from vfl.core.augmentation import check_sizes
from vfl.core.compressors import gradient_compressor
from vfl.core.costs.ledger import Ledger
from vfl.core.embeddings import EmbeddingReceiver, EmbeddingSender, ResidualSender, build_compressor
from vfl.core.exchanges import Exchanges
from vfl.core.feature_models import (
    check_alone,
    check_embedding,
    check_trains,
    mixes_rows,
)
from vfl.core.finished_party import FinishedParty
from vfl.core.head import Head, HeadTrainer, OwnLoss, load_head
from vfl.core.initial_weights import freeze, load_weights
from vfl.core.joint_model import JointModel
from vfl.core.label_protocol import (
    HeadReplica,
    PartyProtocol,
    ReceivedGradient,
    ReturnGradients,
    ServerProtocol,
    ShareEmbeddings,
)
from vfl.core.link import PartyLink
from vfl.core.parties import Parties, PartyProxy
from vfl.core.party import FeatureParty
from vfl.core.presence import Presence
from vfl.core.privacy.defences import party_defence, secret_of, server_defence
from vfl.core.privacy.epsilon import check_installed, movers, tell_moved
from vfl.core.server import HeadServer
from vfl.core.tasks import Task, check_tested, task_of, with_scale
from vfl.core.team import Team
from vfl.data.files import SharedLabels
from vfl.data.samples import Labels
from vfl.data.source import SERVER, Prepared
from vfl.models.auxiliary import JOINT, AuxiliaryHead
from vfl.models.features import Features, ModelSpec
from vfl.models.mlp import MLP, PLACEHOLDER, MemberHeads, PlaceholderMLP, placeholders_of
from vfl.runs.checkpoint import State
from vfl.runs.optim import MakeOptimizer
from vfl.runs.runtime import Runtime

OWN_CONTRACT = "a torch.nn.Module that takes models.feature.options as keyword arguments (docs/extending.md)"


@dataclass(frozen=True, eq=False)
class GivenModules:
    """Python objects that replace the models and the optimizer of the configuration."""

    models: Mapping[str, nn.Module] = field(default_factory=dict[str, nn.Module])
    """Feature models by party."""
    head: nn.Module | None = None
    optimizer: MakeOptimizer | None = None
    """Function that makes an optimizer for the parameters of each party's model and of the head."""
    loss: OwnLoss | None = None


@dataclass(frozen=True, eq=False)
class TrainingLabels:
    """Labels of the training samples, held by the server and, with ``labels: shared``, by the parties."""

    labels_N: Tensor
    """int64 class indices, or float values."""
    task: Task
    present_NK: Tensor | None = None
    """bool [N, K], True if the party has a row for the sample; None: all have all."""
    weights_N: Tensor | None = None
    """float64 [N], weight of each sample; None: all are alike."""
    placeholders: bool = False
    """The head has placeholders also where no embedding is missing: that of the run it began with has."""

    def presence(self, config: ExperimentConfig) -> Presence:
        """Return the parties' participation in all batches."""
        return Presence(self.present_NK, len(config.parties), config.training.party_dropout, config.seed)

    def digest(self, test: Labels) -> str:
        """Return the digest of these labels, those of the test samples, and the parties' missing rows."""
        gaps = {"train_present": self.present_NK, "test_present": test.present}
        gaps |= {"train_weights": self.weights_N, "test_weights": test.weights}
        there = {name: present for name, present in gaps.items() if present is not None}
        return weights_digest({"train": self.labels_N, "test": test.values, **there})


@dataclass(frozen=True, eq=False)
class Start:
    """The part of a finished run that a training with ``training.start_from`` keeps."""

    sections: Mapping[str, State]
    """States by owner: the run's or, once it has any, those of the training itself, which have what is kept as well."""
    fresh: bool
    """The models are those of ``sections``, not those of a checkpoint that is loaded later."""


def training_labels(held: SharedLabels, config: ExperimentConfig, kept: State | None = None) -> TrainingLabels:
    """Return the training labels with the task. Raises ValueError if the labels do not fit it.

    ``kept`` is the state, with head and task, of a run whose scale of values and placeholders are kept.
    """
    train = held.train
    if train.weights is not None and config.training.labels == "shared":
        raise ConfigError("training.labels: parties that hold the labels would need their weights; set it to server")
    task = task_of(config, held.classes, train.values, train.weights)
    if kept is None:
        return TrainingLabels(train.values, task, train.present, train.weights)
    placeholders = bool(placeholders_of(kept["head"]["weights"]))
    return TrainingLabels(train.values, with_scale(task, kept["task"]), train.present, train.weights, placeholders)


def build_head_server(
    roster: Parties,
    train: TrainingLabels,
    test: Labels,
    config: ExperimentConfig,
    runtime: Runtime,
    on_exchange: Callable[[int, int], None] = lambda done, total: None,
    secret: bytes | None = None,
    given: GivenModules | None = None,
) -> HeadServer:
    """Build the server for the parties of a roster. ``secret``, if given, is the key of its noise.

    Raises ConfigError if epsilon of the configured noise cannot be computed, or the test has only one class of two.
    """
    check_installed(config)
    check_tested(train.task, test.values)
    _warn_of_untrained(train, test.values)
    trainer = build_head(config, train, runtime, given)
    if "gradients" in config.privacy.noisy:
        tell_moved(movers(config, trainer, weighted=train.weights_N is not None))
    joint = JointModel(roster.parties, trainer, config, test)
    protocol = build_server_protocol(config, len(train.labels_N), secret or shared_secret(config, SERVER))
    presence = train.presence(config)
    exchanges = Exchanges(roster, trainer, protocol, train.labels_N, presence, config, train.weights_N)
    return HeadServer(exchanges, joint, train.digest(test), on_exchange)


def _warn_of_untrained(train: TrainingLabels, tested_N: Tensor) -> None:
    """Warn of classes that only tested rows have; their rows stay in the metrics, where they count as wrong."""
    known, tested = (set(cast(list[int], cast(Any, labels_N).tolist())) for labels_N in (train.labels_N, tested_N))
    lacking = sorted(tested - known) if train.task.names else []
    counts = {train.task.names[code]: int((tested_N == code).sum()) for code in lacking}
    if counts:
        told = ", ".join(f"{name!r} ({count} rows)" for name, count in counts.items())
        what = f"only tested rows are of class {told}; these rows count as wrong"
        warnings.warn(f"labels: {what}; train on some of them, or leave them out", stacklevel=3)


def build_joint_model(
    parties: Sequence[PartyProxy], task: Task, samples: Labels, config: PredictionConfig, runtime: Runtime, own: State
) -> JointModel:
    """Build the joint model of the parties and the head in the server's ``own`` state of a run.

    It is asked for the embeddings of ``samples``.
    """
    placeholders = classifiers = False
    for name in own["head"]["weights"]:
        placeholders |= name.rpartition(".")[2] == PLACEHOLDER
        classifiers |= name.startswith(JOINT)
    model = build_head_model(config, task, placeholders=placeholders, classifiers=classifiers)
    load_head(model, own["head"])
    return JointModel(parties, Head(model.eval(), task, runtime), config, samples)


def parties_behind(links: Mapping[str, PartyLink], config: PredictionConfig) -> list[PartyProxy]:
    """Return a finished run's parties behind ``links``; those without a link are absent."""
    sizes = embedding_sizes(config)
    return [PartyProxy(EmbeddingReceiver(name, size), links.get(name), None) for name, size in sizes.items()]


def build_roster(
    links: Mapping[str, PartyLink],
    train: TrainingLabels,
    config: ExperimentConfig,
    handle: Callable[[EmbeddingReceiver, PartyLink | None, Ledger], PartyProxy] = PartyProxy,
) -> Parties:
    """Build the roster of all parties, with ``links`` by name; parties without one are absent."""
    ledger, samples = Ledger(config.parties), len(train.labels_N)
    parties = [handle(build_receiver(name, samples, config), links.get(name), ledger) for name in config.parties]
    return Parties(parties, ledger)


def build_party(
    name: str,
    data: Prepared,
    labels: TrainingLabels | None,
    config: ExperimentConfig,
    runtime: Runtime,
    team: Team | None = None,
    secret: bytes | None = None,
    given: GivenModules | None = None,
) -> FeatureParty:
    """Build a party on its prepared samples; its initial weights depend only on the seed and its name.

    ``labels`` are those of its training samples with ``labels: shared``, None otherwise; ``team`` are its processes;
    ``secret``, if given, is the key of its noise.
    """
    settings, given = feature_config(config, name), given or GivenModules()
    model, weights_file = build_initial_model(name, data, config, given)
    pair = data.train.held_rows()[:2]
    noisy, joined = config.privacy.noisy, len(config.parties) > 1
    counted = "embeddings" in noisy or ("gradients" in noisy and joined)
    if counted and not settings.batch_norm and mixes_rows(model, data.train.take(pair).inputs):
        what = "has BatchNorm or mixes rows otherwise, which epsilon must count"
        raise ConfigError(f"models: {name}'s model {what}; set its batch_norm to true")
    if (name in given.models or settings.kind not in FEATURE_MODELS.built_in) and len(pair):
        inputs = data.train.take(pair).inputs
        check_alone(model, inputs)
        if len(pair) == 2:  # BatchNorm cannot train on less
            check_trains(model, inputs)
    check_sizes(config, name, data, model, settings.embedding_size)
    sender = EmbeddingSender(build_receiver(name, len(data.train), config))
    protocol = build_party_protocol(name, labels, config, runtime)
    defence = party_defence(config.privacy, secret or shared_secret(config, name))
    party = FeatureParty(name, model, data, protocol, sender, config, runtime, team, defence, given.optimizer)
    party.weights_file = weights_file
    return party


def build_finished_party(
    name: str, data: Prepared, state: State, config: PredictionConfig, runtime: Runtime
) -> FinishedParty:
    """Build a party that answers with the finished model in its ``state`` of a run, on its prepared samples."""
    settings = feature_config(config, name)
    compressor = build_compressor(config.wire) if config.evaluation.sparsified else None
    sender = EmbeddingSender(EmbeddingReceiver(name, settings.embedding_size, compressor))
    noisy = config.privacy.embeddings is not None
    defence = party_defence(config.privacy, shared_secret(config, name)) if noisy else None
    # A model of this program's own is one that trained: only code that may have changed since is tried anew.
    build = new_feature_model if settings.kind in FEATURE_MODELS.built_in else build_dense_model
    model = build(name, data, config)
    if settings.freeze:
        freeze(model, settings.freeze, name)
    party = FinishedParty(name, model, data, sender, config, runtime, defence)
    party.load_finished(state)
    party.model.eval()
    return party


def new_feature_model(name: str, data: Prepared, config: PredictionConfig) -> nn.Module:
    """Return a party's feature model with new weights, as the configuration names it."""
    settings = feature_config(config, name)
    with seeded(config.seed, "init", owner=name):
        return build_feature_model(settings.kind, model_spec(settings, data.preparation.features, config.models))


def build_feature_model(kind: str, spec: ModelSpec) -> nn.Module:
    """Return a freshly initialized feature model of the given kind: [B, ...] -> [B, D].

    Raises ValueError for an unknown kind, one that does not make a module, and unsuitable features or settings.
    """
    if not is_own(kind):
        return FEATURE_MODELS.make(kind, spec, of=nn.Module)
    make = load_own(kind, spec.options)
    return made_by_stranger(lambda: make(**spec.options), f"feature model {kind!r}", OWN_CONTRACT, nn.Module)


def build_initial_model(
    name: str, data: Prepared, config: ExperimentConfig, given: GivenModules | None = None
) -> tuple[nn.Module, str | None]:
    """Return a party's model with its own weights and frozen parts, and the sha256 of the file of weights, if any."""
    settings = feature_config(config, name)
    model = build_dense_model(name, data, config, given)
    weights_file = settings.weights and load_weights(model, settings.weights, name, settings.embedding_size)
    freeze(model, settings.freeze, name)
    return model, weights_file


def build_dense_model(
    name: str, data: Prepared, config: PredictionConfig, given: GivenModules | None = None
) -> nn.Module:
    """Return a party's feature model as training begins with it, or the one that is given."""
    settings = feature_config(config, name)
    with seeded(config.seed, "init", owner=name):
        model = given.models.get(name) if given else None
        if model is None:
            model = new_feature_model(name, data, config)
        row = [each[torch.tensor([0])] for each in data.train.inputs]
        width = check_embedding(model, row, None if is_own(settings.kind) else settings.embedding_size).shape[1]
    if width != settings.embedding_size:  # code of an owner's does not know the setting
        raise ConfigError(f"models: {name}'s {settings.kind} gives {width} values; set its embedding_size to {width}")
    return model


def shared_secret(config: PredictionConfig, owner: str) -> bytes:
    """Return the key of an owner's noise if all are in one process, or the owner has set ``noise_seed``."""
    seed = config.privacy.noise_seed
    return secret_of(config.seed if seed is None else seed, owner)


def build_head(
    config: ExperimentConfig, labels: TrainingLabels, runtime: Runtime, given: GivenModules | None = None
) -> HeadTrainer:
    """Build the head, with placeholders if embeddings may be missing; server and replicas start with equal weights."""
    given, task = given or GivenModules(), labels.task
    if given.loss is not None and config.training.loss is not None:
        raise ConfigError("training.loss: names a loss, and Python gives one of its own; leave one of them out")
    placeholders = labels.placeholders or not labels.presence(config).whole
    training = config.training
    classifiers = bool(training.auxiliary or training.local_rounds)
    head = build_head_model(config, task, placeholders=placeholders, classifiers=classifiers, joint=given.head)
    return HeadTrainer(head, task, training.optimizer, runtime, given.optimizer, given.loss, training.auxiliary)


def build_head_model(
    config: PredictionConfig, task: Task, *, placeholders: bool, classifiers: bool, joint: nn.Module | None = None
) -> nn.Module:
    """Return the head as training begins with it: ``joint`` or perceptrons, and auxiliary classifiers."""
    members, widths = config.models.members, [*embedding_sizes(config).values()]
    if joint is None:
        perceptron = PlaceholderMLP if placeholders else MLP
        with seeded(config.seed, "init", owner="head"):
            size, hidden, path = sum(widths) // members, config.models.head.hidden, config.models.linear_path
            own = [perceptron(size, hidden, task.outputs, linear_path=path) for _ in range(members)]
            joint = own[0] if members == 1 else MemberHeads(own, widths)
    if not classifiers:
        return joint
    with seeded(config.seed, "init", owner="auxiliary"):
        return AuxiliaryHead(joint, widths, task.outputs, members)


def macs_of_head(config: ExperimentConfig) -> int:
    """Return the multiply-accumulates of a sample in the hidden layers of the head's perceptrons."""
    members, width = config.models.members, sum(embedding_sizes(config).values())
    widths = [width // members, *config.models.head.hidden]
    return members * sum(map(mul, widths, widths[1:]))


def build_receiver(sender: str, samples: int, config: ExperimentConfig) -> EmbeddingReceiver:
    """Build the receiving end for one party's training embeddings."""
    width = feature_config(config, sender).embedding_size
    feedback = ErrorFeedback(samples, width) if config.lightweighting.error_feedback else None
    return EmbeddingReceiver(sender, width, build_compressor(config.wire), feedback)


def build_server_protocol(config: ExperimentConfig, samples: int, secret: bytes) -> ServerProtocol:
    """Build the server's side of the label protocol, for ``samples`` training samples."""
    if config.training.labels == "server":
        gradients = config.wire.gradients
        widths = embedding_sizes(config).values()
        residuals = [torch.zeros(samples, width) if gradients.error_feedback else None for width in widths]
        compressor = gradient_compressor(config.wire)
        senders = [ResidualSender(compressor, gradients.beta, residual_ND) for residual_ND in residuals]
        return ReturnGradients(senders, server_defence(config.privacy, secret))
    return ShareEmbeddings(config.training.head_sync)


def build_party_protocol(
    name: str, labels: TrainingLabels | None, config: ExperimentConfig, runtime: Runtime
) -> PartyProtocol:
    """Build a party's side of the label protocol; only ``labels: shared`` gives it labels."""
    if labels is None:
        return ReceivedGradient(gradient_compressor(config.wire), runtime.device)
    names = config.parties
    others = [build_receiver(other, len(labels.labels_N), config) for other in names if other != name]
    return HeadReplica(
        build_head(config, labels, runtime),
        labels.labels_N.to(runtime.device),
        names.index(name),
        others,
        config.training.head_sync,
        labels.presence(config),
    )


def model_spec(settings: FeatureModelConfig, features: Features, models: ModelsConfig) -> ModelSpec:
    """Return the specification of a feature model with its settings, and those that all models share."""
    return ModelSpec(
        features,
        settings.embedding_size,
        settings.width,
        settings.batch_norm,
        settings.dropout,
        models.members,
        models.linear_path,
        settings.options,
    )


def embedding_sizes(config: PredictionConfig) -> dict[str, int]:
    """Return the width of each party's embedding, in the order in which the head concatenates them."""
    return {name: feature_config(config, name).embedding_size for name in config.parties}


def feature_config(config: PredictionConfig, party: str) -> FeatureModelConfig:
    """Return the settings of a party's feature model."""
    return config.models.parties.get(party, config.models.feature)
