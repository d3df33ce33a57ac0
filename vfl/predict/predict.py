"""Predictions of a trained split model, also with absent parties.

Shapes: B batch, N samples, D embedding width, C classes.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's own signatures are partly untyped.

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vfl.base.errors import ConfigError, ConfigWarning, WhenAbsent, nearest_name
from vfl.base.metrics import format_metric, title
from vfl.config.files import YAML, read_owners_file, read_section
from vfl.config.prediction import PredictionConfig
from vfl.config.tables import TableConfig
from vfl.core.head import own_where_missing
from vfl.core.joint_model import JointModel
from vfl.core.tasks import Task
from vfl.data.tables.cells import TablePlace
from vfl.data.tables.new_rows import find_owners, tables_of
from vfl.data.tables.opened import locate_table
from vfl.models.auxiliary import AuxiliaryHead
from vfl.models.mlp import has_placeholders
from vfl.predict.open_run import Place, SamplesWanted, leader_of
from vfl.predict.reasons import Reasons, ReasonsWanted, explain
from vfl.predict.trained_run import open_federation
from vfl.runs.stored_run import Run


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions of some samples."""

    ids_N: Tensor
    labels_N: Tensor | None
    """Labels; None if unknown."""
    probabilities_NC: Tensor
    task: Task
    scores: Mapping[str, str]
    """Metric by which models are compared, formatted, by the set of parties; empty without labels."""
    keys: tuple[Sequence[str], ...] = ()
    """Tables only: key columns and keys, as in `NewSamples`."""
    present: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Tables only: by owner, bool [N], True for samples for which it has a row."""
    file_order: Tensor | None = None
    """Tables only: order of the samples, as in `NewSamples`."""
    reasons: Reasons | None = None
    """Reasons of the scores, if they were asked for."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty for values."""
        return self.task.names

    @property
    def lacking(self) -> dict[str, int]:
        """Return the number of samples without a row, by owner that lacks some."""
        counts = {owner: int((~held_N).sum()) for owner, held_N in self.present.items()}
        return {owner: count for owner, count in counts.items() if count}

    def rows(self) -> list[list[Any]]:
        """Return a table's heading and lines: each sample's predicted class and all classes' probabilities.

        Nine digits hold all bits of a probability in float32; amounts, float64, have fifteen.
        """
        known = ["label"] if self.labels_N is not None else []
        scores = ["prediction", "probability", *(f"p_{name}" for name in self.classes)] if self.classes else ["value"]
        heading = [*(self.keys[0] if self.keys else ["id"]), *known, *scores, *(["owners"] if self.present else [])]
        heading += self.reasons.heading() if self.reasons else []
        return [heading, *(self._row(row) for row in range(len(self.ids_N)))]

    @cached_property
    def predicted(self) -> Tensor:
        """The predicted classes [N], as in the task's metrics; for regression the values."""
        return self.task.predicted(self.probabilities_NC)

    def _row(self, row: int) -> list[Any]:
        digits = 9 if self.classes else 15
        values = [f"{value:.{digits}g}" for value in self.probabilities_NC[row].tolist()]
        best = int(self.predicted[row])
        name = self.keys[1 + row] if self.keys else [int(self.ids_N[row])]
        label = [] if self.labels_N is None else [self._label(self.labels_N[row])]
        chosen = [self.classes[best], values[best]] if self.classes else []
        owners = ["+".join(owner for owner, held_N in self.present.items() if held_N[row])] if self.present else []
        return [*name, *label, *chosen, *values, *owners, *(self.reasons.cells(row) if self.reasons else [])]

    def _label(self, label: Tensor) -> Any:
        return self.classes[int(label)] if self.classes else float(label)


def with_replacements(joint: JointModel, away: Collection[str], when_absent: WhenAbsent) -> JointModel:
    """Return the joint model that does not ask some parties, with what replaces missing embeddings."""
    if when_absent == "refuse":
        return joint  # nobody is away: `check_absent`
    masks = joint.masks(0, len(joint.samples.values))
    lacking = [name for name, mask in masks.items() if name in away or not mask.whole]
    if when_absent == "placeholder":
        tell_placeholder(joint, lacking)
    return fill_missing(joint, lacking, when_absent, "--when-absent").without(away)


def fill_missing(joint: JointModel, lacking: Collection[str], when_absent: WhenAbsent, setting: str) -> JointModel:
    """Return the joint model with what replaces embeddings of some parties. Raises ConfigError, naming the setting."""
    if not lacking:
        return joint
    match when_absent:
        case "mean":
            return replace(joint, instead=joint.replacing_means(lacking))
        case "zeros":
            widths = {party.name: party.receiver.width for party in joint.parties}
            return replace(joint, instead={name: torch.zeros(widths[name]) for name in lacking})
        case "own":
            return replace(joint, head=own_where_missing(joint.head, setting))
        case "placeholder" | "refuse":
            return joint


def tell_placeholder(joint: JointModel, lacking: Sequence[str]) -> None:
    """Warn if placeholders shall replace embeddings of some parties, and none was learned."""
    head = joint.head.head
    if lacking and not (has_placeholders(head) or (isinstance(head, AuxiliaryHead) and head.averages)):
        who = ", ".join(lacking)
        what = f"no placeholder was learned, so zeros replace {who}; training.party_dropout above 0 learns one"
        warnings.warn(ConfigWarning(f"--when-absent: {what}"), stacklevel=4)


def scores_of(
    joint: JointModel, predictions_NC: Tensor, absent: Collection[str], when_absent: WhenAbsent
) -> dict[str, str]:
    """Return the scores of predictions in the metric of the task."""
    task, samples = joint.task, joint.samples
    value = format_metric(task.metric, task.metrics(predictions_NC, samples.values, samples.weights)[task.metric])
    without = f" without {', '.join(absent)} ({when_absent})" if absent else ""
    return {f"{title(task.metric)}{without}": value}


def predict_run(run: Run, where: Place, wanted: SamplesWanted, reasons: ReasonsWanted | None = None) -> Prediction:
    """Predict samples with a finished run, wherever its parties are. Raises as `Place.open_run`."""
    with where.open_run(run, wanted) as opened:
        prediction = opened.ask(partial(predict, when_absent=wanted.when_absent, reasons=reasons))
        return prediction if wanted.data is None else by_key(prediction)


def predict(joint: JointModel, when_absent: WhenAbsent, reasons: ReasonsWanted | None = None) -> Prediction:
    """Return the predictions of a joint model's samples, wherever its parties are; those that are away are replaced.

    If labels are known, with scores, also those with all parties where all could be asked; if the samples have keys,
    with the owners of their rows.
    """
    samples, task, scores, absent = joint.samples, joint.task, dict[str, str](), joint.away
    if joint.stored_means is not None:
        joint.stored_means.keep(joint)
    filled = with_replacements(joint, absent, when_absent)
    because = None if reasons is None else explain(filled, reasons, when_absent)
    predictions_NC = filled.predictions() if because is None else because.predictions_NC
    if joint.labelled:
        scores = scores_of(joint, predictions_NC, absent, when_absent)
        if absent and len(joint.present) == len(joint.names):
            (scores["with all parties"],) = scores_of(joint, joint.predictions(), (), when_absent).values()
    masks = joint.masks(0, len(samples.ids)) if samples.keys else {}
    owners = {name: mask.present_B for name, mask in masks.items() if name not in absent}
    labels_N = samples.values if joint.labelled else None
    return Prediction(
        samples.ids, labels_N, predictions_NC, task, scores, samples.keys, owners, joint.file_order, because
    )


def by_key(prediction: Prediction) -> Prediction:
    """Return the predictions in the order of the samples' keys, as one process has them; unchanged without keys."""
    if not prediction.keys:
        return prediction
    _, *keys = prediction.keys
    order = sorted(range(len(keys)), key=lambda row: tuple(keys[row]))
    return reorder(prediction, torch.tensor(order))


def reorder(prediction: Prediction, order_N: Tensor) -> Prediction:
    """Return the predictions, of samples with keys, in another order."""
    (heading, *keys), labels_N = prediction.keys, prediction.labels_N
    return replace(
        prediction,
        ids_N=prediction.ids_N[order_N],
        labels_N=None if labels_N is None else labels_N[order_N],
        probabilities_NC=prediction.probabilities_NC[order_N],
        keys=(heading, *(keys[row] for row in order_N.tolist())),
        present={name: held_N[order_N] for name, held_N in prediction.present.items()},
        file_order=None,
        reasons=prediction.reasons and prediction.reasons.take(order_N),
    )


def owned_tables(run: Run, given: Sequence[str], *, serve: bool = False) -> dict[str, TablePlace]:
    """Return ``--table``'s files by owner: OWNER=FILE, or one file whose owner is certain.

    If parties keep their tables (``serve``), a file without an owner is the label owner's. Raises ConfigError for an
    unknown owner, TableError for a file whose owner is uncertain.
    """
    names = run.prediction.owners if given else ()
    tables: dict[str, TablePlace] = {}
    for text in given:
        owner, named, path = text.partition("=")
        if not named and len(given) == 1:
            return _unnamed(run, Path(text), serve)
        if not named or owner in tables:
            raise ConfigError(f"--table: {text!r}: write OWNER=FILE, once for each of {', '.join(names)}")
        if owner not in names:
            raise ConfigError(f"--table: unknown party {owner!r}{nearest_name(owner, names)}")
        tables[owner] = table_named(run.prediction, owner, Path(path))
    return tables


def table_named(config: PredictionConfig, owner: str, path: Path) -> TablePlace:
    """Return an owner's table of new rows: the file, or that of a YAML file of ``lvfl describe``.

    Raises ConfigError for YAML that names no file, or another key than the run's.
    """
    if path.suffix not in YAML:
        return path
    settings = read_owners_file(path)
    settings.pop("positive_class", None)
    own = read_section(TableConfig, settings)
    trained = config.data.tables[owner].key
    if not own.has_rows:
        raise ConfigError(f"--table: {path}: names no file; write its table as file: FILE, or a query")
    if trained is not None and own.key not in (None, trained):
        there, here = ", ".join(trained), ", ".join(own.key or ())
        raise ConfigError(f"--table: {path}: its key is {here}, and the run's {owner} goes by {there}")
    return locate_table(owner, own.model_copy(update={"key": trained}))


def _unnamed(run: Run, path: Path, serve: bool) -> dict[str, TablePlace]:
    if serve or len(run.prediction.owners) == 1:
        leader = leader_of(run.prediction)
        return {leader: table_named(run.prediction, leader, path)}
    if path.suffix in YAML:
        raise ConfigError(f"--table: {path}: a YAML file stands for one owner's table; write OWNER={path}")
    source = open_federation(run, with_data=False).source
    return dict.fromkeys(find_owners(tables_of(source), path), path)
