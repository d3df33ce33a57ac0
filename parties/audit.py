"""The audit of a finished run: what its parties and the server could have learned from each other's messages.

The run is rebuilt from a checkpoint, in memory, and trained for one more round, whose messages are recorded. From any
checkpoint but the last one this is exactly the round that followed. Nothing is sent and nothing in the run changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from parties.build import feature_config, model_spec
from parties.feature_party import FeatureParty
from parties.local import InProcess
from parties.trained import load_trained
from vfl.config import ExperimentConfig
from vfl.errors import ConfigError
from vfl.leakage.audit import NORM, Finding, Seen, attacks_on_features, attacks_on_labels, attacks_with_gradients
from vfl.lightweighting.schedule import Ratios
from vfl.runs.checkpoint import CheckpointStore, State
from vfl.vertical.feature_models import build_feature_model
from vfl.vertical.labels import PartyProtocol, ReceivedGradient
from vfl.vertical.presence import Share
from vfl.wire.messages import Message

MOST_ROWS, FEWEST_ROWS = 2000, 100
"""Bounds of the number of rows on which attacks are measured."""


@dataclass(frozen=True)
class Audit:
    """Result of an audit."""

    rounds: int
    """Rounds that the run had done."""
    findings: tuple[Finding, ...]
    by_round: Mapping[int, Sequence[Finding]]
    """Findings from the lengths of gradients, by the rounds done when a checkpoint was saved."""
    left_out: tuple[str, ...]
    """A line for each group of attacks that this run does not allow, with the reason."""

    def as_json(self) -> dict[str, Any]:
        """Return the audit as JSON values."""
        return {
            "rounds": self.rounds,
            "findings": [finding.as_row() for finding in self.findings],
            "by_round": {done: [finding.as_row() for finding in leaks] for done, leaks in self.by_round.items()},
            "left_out": self.left_out,
        }


@dataclass(eq=False)
class Onlooker:
    """A party's side of the label protocol that also records messages by training row, as sent and received."""

    protocol: PartyProtocol
    rows: list[Tensor] = field(default_factory=list[Tensor], init=False)
    embeddings: list[Tensor] = field(default_factory=list[Tensor], init=False)
    gradients: list[Tensor] = field(default_factory=list[Tensor], init=False)
    """Received gradients; empty if labels are shared."""
    _rows_by_exchange: list[Tensor] = field(default_factory=list[Tensor], init=False)

    def start_round(self, message: Message, head_digest: str | None, batches: Sequence[Tensor]) -> list[Share]:
        """Begin a round, and record the rows in which the party takes part."""
        shares = self.protocol.start_round(message, head_digest, batches)
        self._rows_by_exchange = [share.rows_of(rows_B) for share, rows_B in zip(shares, batches, strict=True)]
        return shares

    def receive(self, message: Message, exchange: int, sent_nD: Tensor) -> None:
        """Receive an update, and record it with the embedding that it answers."""
        self.protocol.receive(message, exchange, sent_nD)
        self.rows.append(self._rows_by_exchange[exchange])
        self.embeddings.append(sent_nD.cpu().clone())
        if isinstance(self.protocol, ReceivedGradient) and len(sent_nD):
            self.gradients.append(self.protocol.gradient(sent_nD).cpu().clone())

    def gradient(self, embedding_nD: Tensor) -> Tensor:
        """Return the gradient at the party's embedding."""
        return self.protocol.gradient(embedding_nD)

    def finish(self, iterations: int) -> None:
        """End an exchange."""
        self.protocol.finish(iterations)

    def drift(self) -> float | None:
        """Return the drift of the party's head."""
        return self.protocol.drift()

    def state_dict(self) -> State:
        """Return the protocol's state."""
        return self.protocol.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Continue from a state."""
        self.protocol.load_state_dict(state)


def audit(run_dir: Path, rows: int = MOST_ROWS) -> Audit:
    """Attack a finished run with the data that its parties and its server have seen, on at most ``rows`` rows.

    Raises as ``load_trained``, and ConfigError for a number of rows that leaves nothing to measure on.
    """
    if rows < FEWEST_ROWS:
        raise ConfigError(f"--rows: {rows} are too few for the attacks; use {FEWEST_ROWS} or more")
    *earlier, last = CheckpointStore(run_dir / "checkpoints").rounds() or [0]
    trained = load_trained(run_dir)
    inferring, left_out = label_attacks(trained.server.config)
    seed = trained.server.config.seed
    findings = list[Finding]()
    for seen in watch(trained, last, rows):
        if inferring:
            findings += attacks_with_gradients(seen, seed) + attacks_on_labels(seen, seed)
        findings += attacks_on_features(seen, seed)
    by_round = {last: [finding for finding in findings if finding.attack == NORM]}
    for done in earlier if inferring else ():
        watched = watch(load_trained(run_dir, done), done, rows)
        by_round[done] = [leak for seen in watched for leak in attacks_with_gradients(seen, seed, only=(NORM,))]
    if inferring and not earlier:
        left_out += ("gradients by round: checkpoint.keep of as many rounds as are to be compared",)
    return Audit(last, tuple(findings), by_round, left_out)


def label_attacks(config: ExperimentConfig) -> tuple[bool, tuple[str, ...]]:
    """Return whether labels can be attacked in a run, and if not the settings that would be necessary."""
    if config.task == "regression":
        return False, ("inference of labels: task=classification; amounts have no classes to tell",)
    if config.training.labels == "shared":
        return False, ("inference of labels: training.labels=server; here all parties hold the labels",)
    return True, ()


def watch(trained: InProcess, round_index: int, rows: int) -> list[Seen]:
    """Train one more round in memory and return the messages between the server and each party, on at most ``rows``."""
    server = trained.server
    reached = {name: Ratios(report.alpha, report.beta) for name, report in server.reports.last.items()}
    server.recorded = {round_index: reached}  # in the place of a schedule or controller, whose rounds may be over
    onlookers = [Onlooker(party.protocol) for party in trained.parties]
    for party, onlooker in zip(trained.parties, onlookers, strict=True):
        party.protocol = cast(PartyProtocol, onlooker)  # it does what either side's protocol does
    server.train_round(round_index)
    labels_N, hidden = trained.split.labels.train.values, trained.server.config.models.head.hidden
    return [
        _seen(trained, party, onlooker, labels_N, hidden, rows)
        for party, onlooker in zip(trained.parties, onlookers, strict=True)
    ]


def _seen(
    trained: InProcess, party: FeatureParty, onlooker: Onlooker, labels_N: Tensor, hidden: Sequence[int], most: int
) -> Seen:
    rows_N = torch.cat(onlooker.rows)[:most]
    settings, features = feature_config(trained.server.config, party.name), party.preparation.features
    return Seen(
        party.name,
        labels_N[rows_N].numpy(),
        len(trained.split.labels.classes),
        torch.cat(onlooker.embeddings)[:most].numpy(),
        torch.cat(onlooker.gradients)[:most].numpy() if onlooker.gradients else None,
        party.train.take(rows_N).inputs,
        features.kind == "table",
        partial(build_feature_model, settings.kind, model_spec(settings, features)),
        hidden,
    )
