"""The audit of a finished run: what its parties and the server could have learned from each other's messages.

The run is rebuilt from a checkpoint, in memory, and trained on, for a round at most, whose messages are recorded.
From any checkpoint but the last one this is how the run went on. Nothing is sent and nothing in the run changes.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vfl.audit.audit import (
    NORM,
    Finding,
    ObservedMessages,
    attacks_on_features,
    attacks_on_labels,
    attacks_with_gradients,
)
from vfl.base.errors import ConfigError
from vfl.config import ExperimentConfig
from vfl.config.schedules import value_at
from vfl.core.augmentation import shift_images
from vfl.core.build import build_feature_model, feature_config, model_spec
from vfl.core.costs.forecast import Ratios
from vfl.core.local import InProcess, build_in_process
from vfl.core.party import FeatureParty
from vfl.core.privacy.message_recorder import MessageRecorder, Recording, read_recording
from vfl.predict.start_from import config_to_build, start_of
from vfl.predict.trained_run import load_run_with_data
from vfl.reports.leakage import FEWEST_ROWS
from vfl.runs.runtime import start_runtime, use_threads_for
from vfl.runs.stored_run import Run

MOST_ROWS = 2000
"""Training rows on which attacks are measured, unless said otherwise."""


@dataclass(frozen=True)
class LeakageAudit:
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


def audit(run_dir: Path, rows: int = MOST_ROWS, places: Sequence[str] = ()) -> LeakageAudit:
    """Attack a finished run with the data that its parties and its server have seen, on at most ``rows`` rows.

    ``places`` are those of `Run`.

    Raises as ``load_run_with_data``, and ConfigError for a number of rows that leaves nothing to measure on.
    """
    _check_rows(rows)
    run = Run(run_dir, places)
    trained = load_run_with_data(run)
    *earlier, last = run.checkpoints.rounds()
    config = trained.server.config
    inferring, left_out = label_attacks(config)
    watched = watch(trained, last, rows)
    _use_cores(trained)
    findings = attack(watched, config)
    by_round = {last: [finding for finding in findings if finding.attack == NORM]}
    for done in earlier if inferring else ():
        watched = watch(load_run_with_data(run, done), done, rows)
        by_round[done] = [
            leak for messages in watched for leak in attacks_with_gradients(messages, config.seed, only=(NORM,))
        ]
    if inferring and not earlier:
        left_out += ("gradients by round: checkpoint.keep of as many rounds as are to be compared",)
    return LeakageAudit(last, tuple(findings), by_round, left_out)


def audit_recorded(
    run_dir: Path, folders: Sequence[Path], rows: int = MOST_ROWS, places: Sequence[str] = ()
) -> LeakageAudit:
    """Attack with what party processes recorded of their own last round (``privacy.record``), in ``folders``.

    Only configuration and data of the run are read, nobody's model. Raises ConfigError for folders without a
    recording, or of another run, and as ``load_config`` and the data's source.
    """
    _check_rows(rows)
    config = Run(run_dir, places).vertical
    recorded = [read_recording(folder) for folder in folders]
    if not recorded:
        raise ConfigError(f"{run_dir}: no party process recorded here; train with privacy.record=true, or name FOLDERs")
    if len({each.round_index for each in recorded}) != 1:
        raise ConfigError(
            f"--processes: recordings of one round are needed, got {[each.round_index for each in recorded]}"
        )
    built = build_in_process(config_to_build(config, run_dir), start_runtime(config), start=start_of(config, run_dir))
    parties = {party.name: party for party in built.parties}
    if unknown := [each.party for each in recorded if each.party not in parties]:
        raise ConfigError(f"--processes: {unknown[0]} is no party of {run_dir}; name folders of its parties")
    for each in recorded:
        sizes = config.lightweighting.resolution_of(each.party)
        parties[each.party].resize(value_at(sizes, each.round_index))  # what was embedded then
        _check_recording(each, parties[each.party].train.inputs[0])
    inferring, left_out = label_attacks(config)
    _use_cores(built)
    findings = attack([_collect_messages(built, parties[each.party], each, rows) for each in recorded], config)
    absent = [
        f"{name}: privacy.record=true in that party's own settings"
        for name in parties.keys() - {each.party for each in recorded}
    ]
    done = recorded[0].round_index
    by_round = {done: [finding for finding in findings if finding.attack == NORM]} if inferring else {}
    return LeakageAudit(done + 1, tuple(findings), by_round, (*left_out, *sorted(absent)))


def attack(watched: Sequence[ObservedMessages], config: ExperimentConfig) -> list[Finding]:
    """Return the findings of all attacks that the run allows."""
    inferring, findings = label_attacks(config)[0], list[Finding]()
    for messages in watched:
        if inferring:
            findings += attacks_with_gradients(messages, config.seed) + attacks_on_labels(messages, config.seed)
        findings += attacks_on_features(messages, config.seed)
    return findings


def _use_cores(trained: InProcess) -> None:
    """Attack with all cores where a step is heavy: no bit of the run depends on it."""
    torch.set_num_threads(os.cpu_count() or 1)
    config = trained.server.config.model_copy(update={"threads": None})
    use_threads_for(config, max(party.macs for party in trained.parties))


def _check_rows(rows: int) -> None:
    if rows < FEWEST_ROWS:
        raise ConfigError(f"--rows: {rows} are too few for the attacks; use {FEWEST_ROWS} or more")


def label_attacks(config: ExperimentConfig) -> tuple[bool, tuple[str, ...]]:
    """Return whether labels can be attacked in a run, and if not the settings that would be necessary."""
    if config.task == "regression":
        return False, ("inference of labels: task=classification; amounts have no classes to tell",)
    if config.training.labels == "shared":
        return False, ("inference of labels: training.labels=server; here all parties hold the labels",)
    return True, ()


def watch(trained: InProcess, round_index: int, rows: int) -> list[ObservedMessages]:
    """Train on in memory, until each party has sent ``rows`` or for a round; return the messages on these, by party."""
    server = trained.server
    last_ratios = {name: Ratios(report.alpha, report.beta) for name, report in server.reports.last.items()}
    server.assign = lambda _, __: last_ratios  # a schedule's or controller's rounds may be over
    recorders = [MessageRecorder(party.views) for party in trained.parties]
    for party, recorder in zip(trained.parties, recorders, strict=True):
        party.recorder = recorder
    server.start_round(round_index)
    exchanges = server.exchanges
    # By exchange, what the party has sent that takes part in the fewest rows.
    sent_E = np.cumsum([[mask.count for mask in masks] for masks in exchanges.masks], axis=0).min(axis=1)
    for exchange in range(min(exchanges.steps, 1 + int(np.searchsorted(sent_E, rows)))):
        exchanges.run(exchange)
    for order in chain.from_iterable(exchanges.under_way):  # the parties may still compute
        order.wait()
    return [
        _collect_messages(trained, party, recorder.recording(party.name), rows)
        for party, recorder in zip(trained.parties, recorders, strict=True)
    ]


def _check_recording(recorded: Recording, features: Tensor) -> None:
    """Raise ConfigError unless a recording's tensors fit each other and its party's training features [N, ...].

    The file comes from another party: rows that do not exist, or shifts that pad images without bound, end here.
    """
    rows_N, shifts_N2, sides = recorded.rows_N, recorded.shifts_N2, features.shape[2:]
    messages = [each for each in (recorded.embeddings_ND, recorded.gradients_ND) if each is not None]
    fits = rows_N.dim() == 1 and rows_N.dtype == torch.int64 and len(rows_N) > 0
    fits = fits and int(rows_N.min()) >= 0 and int(rows_N.max()) < len(features)
    fits = fits and all(each.dim() == 2 and len(each) == len(rows_N) and each.is_floating_point() for each in messages)
    if shifts_N2 is not None:
        fits = fits and shifts_N2.shape == (len(rows_N), 2) and shifts_N2.dtype == torch.int64 and len(sides) == 2
        fits = fits and -min(sides) < int(shifts_N2.min()) and int(shifts_N2.max()) < min(sides)
    if not fits:
        raise ConfigError(f"{recorded.party}: its recording is of other data; copy it again from the party")


def _collect_messages(trained: InProcess, party: FeatureParty, recorded: Recording, most: int) -> ObservedMessages:
    rows_N, gradients_ND = recorded.rows_N[:most], recorded.gradients_ND
    config, features = trained.server.config, party.preparation.features
    settings = feature_config(config, party.name)
    inputs = tuple(tensor[rows_N] for tensor in party.train.inputs)
    if recorded.shifts_N2 is not None:  # what was embedded is the view of an image
        inputs = (shift_images(inputs[0], recorded.shifts_N2[:most]), *inputs[1:])
    return ObservedMessages(
        party.name,
        trained.split.labels.train.values[rows_N].numpy(),
        len(trained.split.labels.classes),
        recorded.embeddings_ND[:most].numpy(),
        None if gradients_ND is None else gradients_ND[:most].numpy(),
        inputs,
        features.kind == "table",
        partial(build_feature_model, settings.kind, model_spec(settings, features, config.models)),
        config.models.head.hidden,
    )
