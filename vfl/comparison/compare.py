"""The value of the other owners' columns to the label owner: ``lvfl compare``.

Trained alike, and tested on the same samples: the label owner alone, all owners together (LVFL), and, if all tables are
in this process, what learning in the open would reach: one perceptron and gradient boosting on the joined columns.
Differences have bootstrap intervals over the test samples; they say nothing of other seeds.

Shapes: M test samples, C classes, F numbers, K columns of categories.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# scikit-learn ships no stubs, and torch's and numpy's signatures are partly untyped.

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from vfl.base.costs import amount, sent_bytes
from vfl.base.estimates import Estimate, meeting_line, percentile_estimate
from vfl.base.metrics import CALIBRATION, LOWER_IS_BETTER, title
from vfl.base.process_state import standard_state
from vfl.base.random import generator
from vfl.comparison.importance import column_importance, metric_of
from vfl.comparison.train_on_split import single_party_config, single_party_split, train_on
from vfl.config import ConfigError, ExperimentConfig, vertical
from vfl.config.data import TABLE_KINDS
from vfl.core.joint_model import JointModel
from vfl.core.tasks import Classification, Regression, Task, task_of
from vfl.data.files import LabelData, PartyData
from vfl.data.samples import Samples
from vfl.data.source import Split, open_source, split_samples
from vfl.data.tables.fitting import experiment_of_python
from vfl.data.tables.source import Tables
from vfl.messages.control import ColumnImportance
from vfl.runs.run_folder import choose_run_dir, write_summary
from vfl.runs.stored_run import Run

JOINED = "joined"
"""Name of the one owner of all columns, for the perceptron on the joined rows."""
RESAMPLED = 500
"""Number of bootstrap samples of an interval."""
MOST_CATEGORIES = 255
"""Most categories of a column in scikit-learn's boosting; columns with more are passed as numbers."""


@dataclass(frozen=True)
class Comparison:
    """Scores of all models, and the gain from the other owners."""

    metric: str
    leader: str
    others: tuple[str, ...]
    reached: Mapping[str, float]
    """Score by model: alone, lvfl, perceptron, boosting."""
    gain: Estimate
    """Gain of all owners together over only the label owner; positive is better, as in all fields below."""
    against: Mapping[str, Estimate]
    """Gain of LVFL over each model in the open; empty over processes."""
    owners: Mapping[str, Estimate]
    """Loss of LVFL's joint model when an owner is absent. The others' models were trained with it: this is more than
    its gain."""
    columns: Mapping[str, Mapping[str, float]]
    """Loss in the metric when the owner permutes a column's test values, by owner and column."""
    bytes: int
    macs: int
    calibration: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """Log loss and expected calibration error by model; empty for amounts."""

    meeting: Mapping[str, Any] | None = None
    """With shared labels: what training together adds to owners that learn alone and average; its text, gain, bytes and
    seconds more."""

    own: Mapping[str, float] = field(default_factory=dict[str, float])
    """Metric of each owner's own classifier on its test rows; empty without ``training.auxiliary``."""

    def headline(self) -> str:
        """Return one line: the gain from the other owners, its cost, and a warning if the tested rows are too few."""
        owners, many = " and ".join(self.others), len(self.others) > 1
        name = self.metric.upper() if len(self.metric) < 5 else title(self.metric)
        return (
            f"{owners} add{'' if many else 's'} {self.gain.text()} {name}; "
            f"costs {amount(self.bytes)}B and {amount(self.macs)} multiply-accumulates"
            + ("; with so few tested rows it may be 0" if self.gain.holds(0.0) else "")
        )


@standard_state()
def compare(
    config: str | Path | Mapping[str, str | Path],
    overrides: Mapping[str, object] | None = None,
    *,
    run_dir: str | Path | None = None,
) -> Comparison:
    """Measure what the other owners' tables add to the label owner, as ``lvfl compare`` does.

    Args:
        config: a YAML file, the name of a shipped experiment, as "quickstart_tables", or the tables by owner, as
            {"bank": "bank.yaml", "insurer": "insurer.yaml"}, each as ``lvfl describe`` writes it.
        overrides: settings that override the file's, by dotted key.
        run_dir: folder of the runs; by default the next free one below ``runs``. Its ``lvfl`` is the joint run.

    Raises ValueError, one line, for a setting, data or a folder that cannot be used.
    """
    experiment = vertical(experiment_of_python(config, overrides or {}))
    folder = Path(run_dir) if run_dir else choose_run_dir(f"{experiment.name}-compare", Path("runs"), resume=False)
    return compare_models(experiment, folder, Console(quiet=True))


def compare_models(config: ExperimentConfig, folder: Path, console: Console) -> Comparison:
    """Train and test all models below ``folder``; the comparison is added to the joint run's summary.

    Raises ValueError for an experiment that is not on tables of several owners.
    """
    if config.data.dataset.kind not in TABLE_KINDS or len(config.owners) < 2:
        raise ConfigError("CONFIG: comparing needs tables of two or more owners")
    source = cast(Tables, open_source(config))
    split, leader = split_samples(source), source.leader
    own = next((part for part in split.parties if part.party == leader), None)
    lvfl = train_on(config, folder / "lvfl", split, source, console)
    alone_MC = predicted_alone(config, source, folder / "alone", own, split.labels, console)
    everything = single_party_split(_join_columns(split), split)
    perceptron = train_on(
        single_party_config(config, source, JOINED), folder / "perceptron", everything, source, console
    )
    answers = joint_answers(lvfl.joint)
    in_the_open = {
        "perceptron": perceptron.joint.predictions(),
        "boosting": _train_boosting(everything, answers.task, config.seed),
    }
    if config.training.labels == "shared":  # owners need not meet to learn
        in_the_open["apart"] = train_on(
            apart_config(config), folder / "apart", split, source, console
        ).joint.predictions()
    columns = {party.name: party.column_names for party in lvfl.parties}
    return comparison_of(folder / "lvfl", leader, answers, {"alone": alone_MC, **in_the_open}, columns)


def apart_config(config: ExperimentConfig) -> ExperimentConfig:
    """Return the experiment in which the owners never meet: each learns alone, and their answers are averaged."""
    training = config.training.model_copy(update={"local_rounds": config.training.rounds, "auxiliary": 0.0})
    return config.model_copy(update={"training": training})


class JointAnswers(NamedTuple):
    """Predictions of a joint model and the importance of its columns, from its parties' answers."""

    task: Task
    labels_M: Tensor
    joint_MC: Tensor
    without: dict[str, Tensor]
    """Predictions [M, C] without each party."""
    importance: dict[str, ColumnImportance]


def joint_answers(joint: JointModel) -> JointAnswers:
    """Return the joint model's predictions of the test samples, with all parties and without each, and importances."""
    if joint.samples.weights is not None:  # boosting and the intervals have none
        raise ConfigError("data.tables: lvfl compare weighs all samples alike; leave weight out")
    names = joint.names
    without = {name: joint.without([name]).predictions() for name in names}
    return JointAnswers(joint.task, joint.samples.values, joint.predictions(), without, column_importance(joint))


def predicted_alone(
    config: ExperimentConfig, source: Tables, folder: Path, own: PartyData | None, labels: LabelData, console: Console
) -> Tensor:
    """Train only the label owner's model in ``folder``; return its predictions [M, C] of the test samples.

    Without features of its ``own`` they are the best constant for the training labels: class shares, mean or quantile.
    """
    if own is None:
        train_N = labels.train.values
        return task_of(config, labels.classes, train_N).best_constant(train_N).expand(len(labels.test.values), -1)
    split = single_party_split(own, Split((own,), labels))
    return train_on(single_party_config(config, source, own.party), folder, split, source, console).joint.predictions()


def comparison_of(
    run_dir: Path,
    leader: str,
    answers: JointAnswers,
    others: Mapping[str, Tensor],
    columns: Mapping[str, Sequence[str]],
) -> Comparison:
    """Return the comparison of the joint run in ``run_dir`` with other models, and add it to the run's summary.

    ``others`` are the predictions [M, C] of the label owner ``alone`` and of models in the open; ``columns`` are the
    names of each owner's.
    """
    task, joint_MC, labels_M = answers.task, answers.joint_MC, answers.labels_M
    found = {"alone": others["alone"], "lvfl": joint_MC} | dict(others)
    better = {name: _estimate_difference(task, joint_MC, each, labels_M) for name, each in others.items()}
    summary = Run(run_dir).summary
    meeting = None
    if "apart" in better:
        apart = Run(run_dir.parent / "apart").summary
        more_bytes, more_s = sent_bytes(summary) - sent_bytes(apart), summary["wall_time_s"] - apart["wall_time_s"]
        text = meeting_line(better["apart"], title(task.metric), more_bytes, more_s)
        meeting = {"text": text, "gain": asdict(better["apart"]), "bytes": more_bytes, "seconds": more_s}
    comparison = Comparison(
        task.metric,
        leader,
        tuple(name for name in answers.without if name != leader),
        {name: metric_of(task, each, labels_M) for name, each in found.items()},
        better.pop("alone"),
        better,
        {name: _estimate_difference(task, joint_MC, each, labels_M) for name, each in answers.without.items()},
        {owner: dict(zip(columns[owner], each.lost, strict=True)) for owner, each in answers.importance.items()},
        sent_bytes(summary),
        summary["train_macs"],
        {name: _calibration_of(task, each, labels_M) for name, each in found.items()} if task.names else {},
        meeting,
        {name: metrics[task.metric] for name, metrics in summary.get("alone", {}).items()},
    )
    write_summary(run_dir, summary | {"comparison": asdict(comparison) | {"text": comparison.headline()}})
    return comparison


def _calibration_of(task: Task, predictions_MC: Tensor, labels_M: Tensor) -> dict[str, float]:
    values = task.metrics(predictions_MC, labels_M)
    return {name: values[name] for name in CALIBRATION}


def _join_columns(split: Split) -> PartyData:
    def together(samples: Sequence[Samples]) -> Samples:
        # What an owner has no row for is missing.
        numbers = [torch.where(_present_mask(each), each.features, torch.nan) for each in samples]
        hashes = [torch.where(_present_mask(each), each.more[0], -1) for each in samples]
        return Samples(samples[0].ids, torch.cat(numbers, 1), more=(torch.cat(hashes, 1),))

    parts = split.parties
    return PartyData(JOINED, together([each.train for each in parts]), together([each.test for each in parts]))


def _present_mask(samples: Samples) -> Tensor:
    present = torch.ones(len(samples), dtype=torch.bool) if samples.present is None else samples.present
    return present[:, None]


def _train_boosting(split: Split, task: Task, seed: int) -> Tensor:
    """Return the predictions [M, C] of scikit-learn's gradient boosting at its defaults."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    (part,) = split.parties
    codes = _encode_categories(part.train.more[0].numpy(), part.test.more[0].numpy())
    sides = zip((part.train, part.test), codes, strict=True)
    train, test = (np.concatenate([samples.features.numpy(), own], axis=1) for samples, own in sides)
    numbers = part.train.features.shape[1]
    few = [numbers + place for place in range(codes[0].shape[1]) if codes[0][:, place].max() < MOST_CATEGORIES]
    own = {} if isinstance(task, Classification) else loss_of_boosting(task)
    kind: Any = HistGradientBoostingClassifier if isinstance(task, Classification) else HistGradientBoostingRegressor
    model = kind(random_state=seed, categorical_features=few or None, **own)
    model.fit(train, split.labels.train.values.numpy())
    if isinstance(task, Classification):
        told_MC = torch.zeros(len(test), task.classes, dtype=torch.float64)  # it knows no class without training rows
        told_MC[:, model.classes_] = torch.from_numpy(model.predict_proba(test))
        return told_MC
    return torch.from_numpy(model.predict(test))[:, None]


def loss_of_boosting(task: Regression) -> dict[str, Any]:
    """Return the arguments by which scikit-learn's boosting trains for the same; it has no Huber loss."""
    if task.by.kind == "pinball":
        return {"loss": "quantile", "quantile": task.by.quantile}
    return {"loss": "absolute_error"} if task.by.kind == "absolute" else {}


def _encode_categories(
    train: NDArray[np.int64], test: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return categories as indices among the training rows' own; missing if those lack them."""
    coded: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    for column in range(train.shape[1]):
        categories, own = np.unique(train[:, column], return_inverse=True)
        place = np.searchsorted(categories, test[:, column]).clip(max=len(categories) - 1)
        new = np.where(categories[place] == test[:, column], place, np.nan)
        coded.append((own.astype(np.float64), new))
    empty = [np.empty((len(each), 0)) for each in (train, test)]
    return tuple(
        np.column_stack([no_columns, *(pair[side] for pair in coded)]) for side, no_columns in enumerate(empty)
    )  # pyright: ignore[reportReturnType]


def _estimate_difference(task: Task, better_MC: Tensor, than_MC: Tensor, labels_M: Tensor) -> Estimate:
    """Return by how much one's predictions are better; the interval's ends are paired bootstrap quantiles."""
    sign = -1.0 if task.metric in LOWER_IS_BETTER else 1.0

    def of(rows: Tensor) -> float:
        better, than = (metric_of(task, each[rows], labels_M[rows]) for each in (better_MC, than_MC))
        return sign * (better - than)

    stream = generator(0, "bootstrap")
    count, resampled = len(labels_M), list[float]()
    # AUC needs both of two classes; all of many rare ones would hardly ever be drawn.
    both = isinstance(task, Classification) and len(labels_M.unique()) == 2
    while len(resampled) < RESAMPLED:
        rows = torch.randint(count, (count,), generator=stream)
        if not both or len(labels_M[rows].unique()) == 2:
            resampled.append(of(rows))
    return percentile_estimate(of(torch.arange(count)), resampled)
