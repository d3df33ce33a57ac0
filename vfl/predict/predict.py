"""Predictions of a trained split model, also with absent parties.

Shapes: B batch, N samples, D embedding width, C classes.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's own signatures are partly untyped.

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vfl.base.absence import WhenAbsent
from vfl.base.errors import PeerLost, nearest_name
from vfl.base.metrics import format_metric, title
from vfl.config import ConfigError
from vfl.config.files import read_owners_file, read_section
from vfl.config.prediction import PredictionConfig
from vfl.config.tables import TableConfig, label_owner
from vfl.core.head import own_where_missing
from vfl.core.joint_model import JointModel
from vfl.core.local import LocalFederation, LocalLink
from vfl.core.parties import Parties, PartyProxy
from vfl.core.tasks import Task, task_state
from vfl.data.files import Labels
from vfl.data.prediction_files import labels_or_zeros
from vfl.data.samples import Samples
from vfl.data.source import SERVER, NewSamples, far_cells, load_all_names, open_source, prepare_samples, split_samples
from vfl.data.tables.opened import locate_table
from vfl.models.auxiliary import AuxiliaryHead
from vfl.models.mlp import has_placeholders
from vfl.predict.reasons import Reasons, ReasonsWanted, explain
from vfl.predict.trained_run import open_federation
from vfl.runs.stored_run import Run

Subset = Literal["test", "validation"]


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


def check_word(field: str, word: object) -> None:
    """Raise ConfigError, naming ``field``, for a word that does not say what replaces an absent party."""
    if word not in (known := get_args(WhenAbsent)):
        raise ConfigError(f"{field}: {word!r} is none of {', '.join(known)}")


def check_absent(absent: Collection[str], names: Sequence[str], when_absent: WhenAbsent) -> None:
    """Raise ConfigError for an unknown party or word, PeerLost for an absent party without a replacement."""
    check_word("--when-absent", when_absent)
    for name in absent:
        if name not in names:
            raise ConfigError(f"--absent: no party is called {name!r}{nearest_name(name, names)}")
    if absent and when_absent == "refuse":
        who = f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} absent"
        raise PeerLost(f"{who}; --when-absent placeholder, zeros, mean or own would predict without")
    if len(absent) == len(names):
        raise ConfigError("--absent: no party is left to predict with; name fewer")


def with_replacements(joint: JointModel, away: Collection[str], when_absent: WhenAbsent) -> JointModel:
    """Return the joint model that does not ask some parties, with what replaces missing embeddings."""
    if when_absent == "refuse":
        return joint  # nobody is away: `check_absent`
    masks = joint.masks(0, len(joint.samples.values))
    lacking = [name for name, mask in masks.items() if name in away or not mask.whole]
    instead: Mapping[str, Tensor] = {}
    match when_absent:
        case "mean":
            instead = (joint.stored_means or joint.mean_embeddings)(lacking)
        case "zeros":
            instead = {party.name: torch.zeros(party.receiver.width) for party in joint.roster if party.name in lacking}
        case "placeholder":
            tell_placeholder(joint, lacking)
        case "own":
            joint = replace(joint, head=own_where_missing(joint.head, "--when-absent")) if lacking else joint
    return replace(joint.without(away), instead=instead)


def tell_placeholder(joint: JointModel, lacking: Sequence[str]) -> None:
    """Warn if placeholders shall replace embeddings of some parties, and none was learned."""
    head = joint.head.head
    if lacking and not (has_placeholders(head) or (isinstance(head, AuxiliaryHead) and head.averages)):
        who = ", ".join(lacking)
        what = f"no placeholder was learned, so zeros replace {who}; training.party_dropout above 0 learns one"
        warnings.warn(f"--when-absent: {what}", stacklevel=4)


def scores_of(
    joint: JointModel, predictions_NC: Tensor, absent: Collection[str], when_absent: WhenAbsent
) -> dict[str, str]:
    """Return the scores of predictions in the metric of the task."""
    task, samples = joint.task, joint.samples
    value = format_metric(task.metric, task.metrics(predictions_NC, samples.values, samples.weights)[task.metric])
    without = f" without {', '.join(absent)} ({when_absent})" if absent else ""
    return {f"{title(task.metric)}{without}": value}


def predict_in_process(
    run: Run,
    data: Path | None,
    absent: Collection[str],
    when_absent: WhenAbsent,
    tables: Mapping[str, Path] | None = None,
    split: Subset | None = None,
    reasons: ReasonsWanted | None = None,
) -> Prediction:
    """Predict a split of the samples, those of a file, or new rows of owners' tables, with all parties in this process.

    Without ``split`` the samples are those that the run evaluated: the test's or, with ``data.validation_share``,
    validation's. Parties in ``absent`` are not asked; their mean embedding is computed as the server would have stored
    it. Test samples without a party's row are treated as in evaluations. If labels are known, the score with all
    parties is added for comparison. Raises as ``open_federation``, ``check_absent`` and ``Source.read_samples``.
    """
    # Mean embeddings are of the training rows, and those are not in the run.
    opened = open_federation(run, with_data=when_absent == "mean" or (data is None and not tables))
    joint, config = opened.joint, run.prediction
    check_absent(absent, config.parties, when_absent)
    if tables:
        return predict_new_rows(opened, tables, absent, when_absent, reasons)
    if data is None and check_split(config, split) != config.data.evaluated:
        joint = _take_test(opened)
    if data is not None:
        samples = opened.source.read_samples(data, opened.raw[0], len(joint.task.names))
        joint = take_samples(opened, samples)
    return predict(joint, absent, when_absent, reasons)


def check_split(config: PredictionConfig, split: Subset | None) -> Subset:
    """Return the samples to predict. Raises ConfigError for validation samples of a run without any."""
    if split == "validation" and config.data.evaluated == "test":
        raise ConfigError("--split: the run has no validation samples, data.validation_share is 0; choose test")
    return split or config.data.evaluated


def _take_test(trained: LocalFederation) -> JointModel:
    """Give every party its test samples in place of the validation samples that the run evaluated."""
    config = trained.joint.config
    data = config.data.model_copy(update={"validation_share": 0.0})
    kept = {party.name: {"raw": party.data.raw} for party in trained.parties}
    kept |= {SERVER: {"task": task_state(trained.joint.task)}}
    source = open_source(config.model_copy(update={"data": data}))
    load_all_names(source, kept)
    split = split_samples(source, kept)
    test, parts = split.labels.test, tuple(part.test for part in split.parties)
    joint = take_samples(trained, NewSamples(Samples(test.ids, parts[0].features, test.values), parts))
    return replace(joint, samples=test)


def predict_new_rows(
    trained: LocalFederation,
    tables: Mapping[str, Path],
    absent: Collection[str],
    when_absent: WhenAbsent,
    reasons: ReasonsWanted | None = None,
) -> Prediction:
    """Predict new rows; the embedding of an owner that is absent or has no row is replaced."""
    names = [party.name for party in trained.parties]
    away = [name for name in names if name not in tables or name in absent]
    check_absent(away, names, when_absent)
    config = trained.joint.config
    if any(config.data.tables[owner].keys for owner in config.owners if owner not in names):
        samples_table(config, tables)  # nobody else knows which rows of the others belong together
    samples = trained.source.read_tables({name: path for name, path in tables.items() if name not in away})
    if when_absent == "refuse":
        check_complete(samples)
    for party, part in zip(trained.parties, samples.parts, strict=True):
        if party.name in away:
            continue
        if line := trained.source.warning_of_unseen_values(party.name, party.preparation, part):
            warnings.warn(line, stacklevel=2)
        for line in far_cells(trained.source, party.name, party.preparation, part, samples.row):
            warnings.warn(line, stacklevel=2)
    joint = take_samples(trained, samples, away)
    return replace(predict(joint, away, when_absent, reasons), file_order=samples.file_order)


def predict(
    joint: JointModel, absent: Collection[str], when_absent: WhenAbsent, reasons: ReasonsWanted | None = None
) -> Prediction:
    """Return the predictions of a joint model's samples, wherever its parties are; those in ``absent`` are replaced.

    If labels are known, with scores, also those with all parties where all could be asked; if the samples have keys,
    with the owners of their rows.
    """
    samples, task, scores = joint.samples, joint.task, dict[str, str]()
    filled = with_replacements(joint, absent, when_absent)
    because = None if reasons is None else explain(filled, reasons, when_absent)
    predictions_NC = filled.predictions() if because is None else because.predictions_NC
    if joint.labelled:
        scores = scores_of(joint, predictions_NC, absent, when_absent)
        if absent and len(joint.roster.present) == len(joint.roster.names):
            (scores["with all parties"],) = scores_of(joint, joint.predictions(), (), when_absent).values()
    masks = joint.masks(0, len(samples.ids)) if samples.keys else {}
    owners = {name: mask.present_B for name, mask in masks.items() if name not in absent}
    labels_N = samples.values if joint.labelled else None
    return Prediction(samples.ids, labels_N, predictions_NC, task, scores, samples.keys, owners, reasons=because)


def by_key(prediction: Prediction) -> Prediction:
    """Return the predictions in the order of the samples' keys, as one process has them; unchanged without keys."""
    if not prediction.keys:
        return prediction
    _, *keys = prediction.keys
    order = sorted(range(len(keys)), key=lambda row: tuple(keys[row]))
    return _reordered(prediction, torch.tensor(order))


def in_file_order(prediction: Prediction) -> Prediction:
    """Return the predictions in the order of the label owner's new rows."""
    order = prediction.file_order
    return prediction if order is None else _reordered(prediction, order)


def _reordered(prediction: Prediction, order_N: Tensor) -> Prediction:
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


def owned_tables(run: Run, given: Sequence[str], *, serve: bool = False) -> dict[str, Path]:
    """Return ``--table``'s files by owner: OWNER=FILE, or one file whose owner is certain.

    If parties keep their tables (``serve``), a file without an owner is the label owner's. Raises ConfigError for an
    unknown owner, TableError for a file whose owner is uncertain.
    """
    names = run.prediction.owners if given else ()
    tables: dict[str, Path] = {}
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


def table_named(config: PredictionConfig, owner: str, path: Path) -> Path:
    """Return an owner's table of new rows: the file, or that of a YAML file of ``lvfl describe``.

    Raises ConfigError for YAML that names no file, or another key than the run's.
    """
    if path.suffix not in (".yaml", ".yml"):
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


def _unnamed(run: Run, path: Path, serve: bool) -> dict[str, Path]:
    if serve or len(run.prediction.owners) == 1:
        return {leader_of(run.prediction): path}
    return dict.fromkeys(open_federation(run, with_data=False).source.whose_table(path), path)


def leader_of(config: PredictionConfig) -> str:
    """Return the owner who names new samples: the label owner, or the first party."""
    return label_owner(config.data.tables) or config.parties[0]


def samples_table(config: PredictionConfig, tables: Mapping[str, Path]) -> Path:
    """Return the table that names new samples, the label owner's. Raises ConfigError if it is missing."""
    leader = leader_of(config)
    if leader not in tables:
        raise ConfigError(f"--table: {leader}'s is missing; it names the samples")
    return tables[leader]


def check_complete(samples: NewSamples) -> None:
    """Raise ConfigError if an owner has no row for some samples and no replacement: nobody is lost, a file lacks it."""
    for name, held_N in samples.present.items():
        if not bool(held_N.all()):
            first = " ".join(samples.keys[1 + int(held_N.int().argmin())])
            raise ConfigError(
                f"{name} has no row for {int((~held_N).sum())} of {len(held_N)} keys (first {first}); "
                "--when-absent placeholder, zeros, mean or own would predict without"
            )


def take_samples(trained: LocalFederation, samples: NewSamples, away: Collection[str] = ()) -> JointModel:
    """Give every party but those in ``away`` its part of other samples in place of its test samples.

    They are prepared as its training samples were. Returns the joint model for these samples.
    """
    joint, asked = trained.joint, list[PartyProxy]()
    for proxy, party, part in zip(joint.roster, trained.parties, samples.parts, strict=True):
        prepared = None if party.name in away else prepare_samples(party.preparation, part)
        asked.append(PartyProxy(proxy.receiver, LocalLink(party, prepared), None))
    whole, present_NK = samples.whole, None
    if samples.present:
        nowhere_N = torch.zeros(len(whole), dtype=torch.bool)
        present_NK = torch.stack([samples.present.get(party.name, nowhere_N) for party in trained.parties], dim=1)
    labels_N = labels_or_zeros(whole.labels, len(whole))
    return replace(
        joint,
        roster=Parties(asked),
        samples=Labels(whole.ids, labels_N, present_NK, samples.keys),
        new=True,
        labelled=whole.labels is not None,
    )
