"""The value of the other owners' columns to the label owner: ``lvfl compare``.

Trained alike, and tested on the same samples: the label owner alone, all owners together (LVFL), and, as all tables are
in this process, what learning in the open would reach: one perceptron and gradient boosting on the joined columns.
Differences have bootstrap intervals over the test samples; they say nothing of other seeds.

Shapes: M test samples, C classes, F numbers, K columns of categories.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# scikit-learn ships no stubs, and torch's and numpy's signatures are partly untyped.

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from scipy.stats import rankdata
from torch import Tensor

from parties.alone import of_one, only, train_on
from parties.local import InProcess
from parties.predict import predict, take_samples
from vfl.amounts import amount
from vfl.config import ConfigError, ExperimentConfig, parse_config
from vfl.config.data import TABLE_KINDS
from vfl.config.files import lay_over, parse_overrides, read_settings
from vfl.config.presets import table_settings
from vfl.data.files import PartyData
from vfl.data.samples import Samples
from vfl.data.source import NewSamples, Split, open_source, split_samples
from vfl.data.tables.describe import describe_table
from vfl.data.tables.source import Tables
from vfl.metrics import LOWER_IS_BETTER, title
from vfl.random import generator
from vfl.runs.run_folder import choose_run_dir, read_summary, write_summary
from vfl.vertical.tasks import Classification, Task

JOINED = "joined"
"""Name of the one owner of all columns, for the perceptron on the joined rows."""
RESAMPLED = 500
"""Number of bootstrap samples of an interval."""
NORMAL = 1.96
"""Half the width of a 95 % interval, in standard errors."""
TINY = 1e-12
"""Least probability whose logarithm is taken."""
MOST_CATEGORIES = 255
"""Most categories of a column in scikit-learn's boosting; columns with more are passed as numbers."""


@dataclass(frozen=True)
class Difference:
    """Difference between two models' metrics on the same test samples, with its 95 % interval; positive is better."""

    value: float
    low: float
    high: float

    def text(self) -> str:
        """Return the difference as text, ``0.024 (0.018 to 0.030)``."""
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Comparison:
    """Scores of all models, and the gain from the other owners."""

    metric: str
    leader: str
    others: tuple[str, ...]
    reached: Mapping[str, float]
    """Score by model: alone, lvfl, perceptron, boosting."""
    gain: Difference
    """Gain of all owners together over the label owner alone."""
    against: Mapping[str, Difference]
    """Gain of LVFL over each model in the open."""
    columns: Mapping[str, Mapping[str, float]]
    """Loss in the metric when the owner permutes a column's test values, by owner and column."""
    idle: Mapping[str, tuple[str, ...]]
    """Columns by owner that are proposed for dropping: permuting them does not raise the test loss (`is_idle`)."""
    bytes: int
    macs: int

    def headline(self) -> str:
        """Return one line with the gain from the other owners, and its cost."""
        who, many = " and ".join(self.others), len(self.others) > 1
        name = self.metric.upper() if len(self.metric) < 5 else title(self.metric)
        return (
            f"{who} add{'' if many else 's'} {self.gain.text()} {name}; "
            f"costs {amount(self.bytes)}B and {amount(self.macs)} multiply-accumulates"
        )


def compare(
    config: str | Path,
    overrides: Mapping[str, object] | None = None,
    *,
    run_dir: str | Path | None = None,
) -> Comparison:
    """Tell what the other owners' tables add to the label owner alone, as ``lvfl compare`` does.

    Args:
        config: a YAML file, or the name of a shipped experiment, as "quickstart_tables".
        overrides: settings that override the file's, by dotted key.
        run_dir: folder of the runs; by default the next free one below ``runs``. Its ``lvfl`` is the joint run.

    Raises ValueError, one line, for a setting, data or a folder that cannot be used.
    """
    experiment = parse_config(lay_over(read_settings(Path(config)), overrides or {}))
    folder = Path(run_dir) if run_dir else choose_run_dir(f"{experiment.name}-compare", Path("runs"), resume=False)
    return compare_models(experiment, folder, Console(quiet=True))


def experiment_of(
    tables: Mapping[str, Path], label: str, key: str | None, overrides: Sequence[str]
) -> ExperimentConfig:
    """Return an experiment on tables by owner, with settings that need no search; the first has the column ``label``.

    ``key`` None: the first column of each table that looks like a key. Raises ConfigError, one line.
    """
    proposed: dict[str, dict[str, object]] = {}
    leader, rows = next(iter(tables)), 1
    for owner, file in tables.items():
        columns = describe_table(file)
        names = [each.name for each in columns]
        keys = [each.name for each in columns if each.name != label and each.looks_like_key()] if key is None else [key]
        if not keys or keys[0] not in names:
            what = "no column that looks like a key" if key is None else f"no column {key!r}"
            raise ConfigError(f"--key: {file} has {what}; name the column by which its rows are known")
        if owner == leader and label not in names:
            raise ConfigError(f"--label: {file} has no column {label!r}; name its owner's --table first")
        proposed[owner] = {"file": str(file), "key": keys[0], **({"label": label} if owner == leader else {})}
        rows = columns[0].rows if owner == leader else rows
    values = table_settings(rows)
    values["name"] = label if re.fullmatch(r"[\w.-]+", label, re.ASCII) else "tables"
    values["data"] |= {"dataset": {"kind": "tables"}, "tables": proposed}
    return parse_config(lay_over(values, parse_overrides(overrides)))


def compare_models(config: ExperimentConfig, folder: Path, console: Console) -> Comparison:
    """Train and test all models below ``folder``; the comparison is added to the joint run's summary.

    Raises ValueError for an experiment that is not on tables of several owners.
    """
    if config.mode != "vertical" or config.data.dataset.kind not in TABLE_KINDS or len(config.parties) < 2:
        raise ConfigError("CONFIG: comparing needs tables of two or more owners")
    source = cast(Tables, open_source(config))
    split, leader = split_samples(source), source.leader
    own = next(part for part in split.parties if part.party == leader)
    lvfl = train_on(config, folder / "lvfl", split, source, console)
    alone = train_on(only(config, source, leader), folder / "alone", of_one(own, split), source, console)
    everything = of_one(_joined(split), split)
    perceptron = train_on(only(config, source, JOINED), folder / "perceptron", everything, source, console)
    task, labels_M = lvfl.server.joint.trainer.task, split.labels.test.values
    found = {
        "alone": predict(alone.server.joint),
        "lvfl": predict(lvfl.server.joint),
        "perceptron": predict(perceptron.server.joint),
        "boosting": _boosted(everything, task, config.seed),
    }
    reached = {name: _value(task, each, labels_M) for name, each in found.items()}
    against = {name: _difference(task, found["lvfl"], found[name], labels_M) for name in ("perceptron", "boosting")}
    summary, columns = read_summary(folder / "lvfl"), column_importance(lvfl, source)
    comparison = Comparison(
        task.metric,
        leader,
        tuple(name for name in config.parties if name != leader),
        reached,
        _difference(task, found["lvfl"], found["alone"], labels_M),
        against,
        columns.lost,
        columns.idle,
        summary["uplink_bytes"] + summary["downlink_bytes"],
        summary["train_macs"],
    )
    write_summary(folder / "lvfl", summary | {"comparison": asdict(comparison) | {"text": comparison.headline()}})
    return comparison


class Importance(NamedTuple):
    """Loss in the metric without each column, by owner, and the columns that are proposed for dropping."""

    lost: dict[str, dict[str, float]]
    idle: dict[str, tuple[str, ...]]


def column_importance(trained: InProcess, source: Tables) -> Importance:
    """Return the loss in the metric when a column's test values are permuted, by owner and column (Breiman 2001).

    Each owner permutes its own values, by a seeded draw, and its model embeds them; it sees nothing of other owners.
    """
    task, parts = trained.server.joint.trainer.task, [part.test for part in trained.split.parties]
    test = trained.split.labels.test
    whole = Samples(test.ids, parts[0].features, test.values)

    def predicted(parts: Sequence[Samples]) -> Tensor:
        joint = replace(take_samples(trained, NewSamples(whole, tuple(parts))), samples=test)
        return predict(joint)

    before_MC, sign = predicted(parts), -1.0 if task.metric in LOWER_IS_BETTER else 1.0
    before = _value(task, before_MC, test.values)
    lost: dict[str, dict[str, float]] = {}
    idle: dict[str, tuple[str, ...]] = {}
    for place, part in enumerate(trained.split.parties):
        numbers, categories = source.columns(part.party)
        lost[part.party], without = {}, list[str]()
        for column, name in enumerate((*numbers, *categories)):
            stream = generator(source.seed, "column_importance", owner=f"{part.party} {column}")
            held = part.test.held_rows()
            order = held[torch.randperm(len(held), generator=stream)]
            features, (hashes,) = part.test.features.clone(), part.test.more
            hashes = hashes.clone()
            values = features[:, column] if column < len(numbers) else hashes[:, column - len(numbers)]
            values[held] = values[order].clone()
            permuted = replace(part.test, features=features, more=(hashes,))
            permuted_MC = predicted([*parts[:place], permuted, *parts[place + 1 :]])
            lost[part.party][name] = sign * (before - _value(task, permuted_MC, test.values))
            if is_idle(before_MC, permuted_MC, test.values):
                without.append(name)
        idle[part.party] = tuple(without)
    return Importance(lost, idle)


def is_idle(before_MC: Tensor, permuted_MC: Tensor, labels_M: Tensor) -> bool:
    """Return whether the 95 % interval of the test loss's rise, after a permutation, reaches down to 0 or below.

    The loss is the cross-entropy, or the squared error. Of a column of noise, permuted and other values are distributed
    alike, so the mean rise is 0, and its interval excludes 0 from above in one case of 40.
    """
    rise_M = _losses(permuted_MC, labels_M) - _losses(before_MC, labels_M)
    return float(rise_M.mean() - NORMAL * rise_M.std() / math.sqrt(len(rise_M))) <= 0


def _losses(predictions_MC: Tensor, labels_M: Tensor) -> Tensor:
    if labels_M.is_floating_point():
        return (predictions_MC[:, 0].double() - labels_M.double()) ** 2
    return -predictions_MC.double().gather(1, labels_M[:, None])[:, 0].clamp_min(TINY).log()


def _joined(split: Split) -> PartyData:
    def together(samples: Sequence[Samples]) -> Samples:
        # What an owner has no row for is missing.
        numbers = [torch.where(_there(each), each.features, torch.nan) for each in samples]
        hashes = [torch.where(_there(each), each.more[0], -1) for each in samples]
        return Samples(samples[0].ids, torch.cat(numbers, 1), more=(torch.cat(hashes, 1),))

    parts = split.parties
    return PartyData(JOINED, together([each.train for each in parts]), together([each.test for each in parts]))


def _there(samples: Samples) -> Tensor:
    present = torch.ones(len(samples), dtype=torch.bool) if samples.present is None else samples.present
    return present[:, None]


def _boosted(split: Split, task: Task, seed: int) -> Tensor:
    """Return the predictions [M, C] of scikit-learn's gradient boosting at its defaults."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    (part,) = split.parties
    codes = _codes(part.train.more[0].numpy(), part.test.more[0].numpy())
    sides = zip((part.train, part.test), codes, strict=True)
    train, test = (np.concatenate([samples.features.numpy(), own], axis=1) for samples, own in sides)
    numbers = part.train.features.shape[1]
    few = [numbers + place for place in range(codes[0].shape[1]) if codes[0][:, place].max() < MOST_CATEGORIES]
    kind: Any = HistGradientBoostingClassifier if isinstance(task, Classification) else HistGradientBoostingRegressor
    model = kind(random_state=seed, categorical_features=few or None).fit(train, split.labels.train.values.numpy())
    if isinstance(task, Classification):
        return torch.from_numpy(model.predict_proba(test))
    return torch.from_numpy(model.predict(test))[:, None]


def _codes(train: NDArray[np.int64], test: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return categories as indices among the training rows' own; missing if those lack them."""
    coded: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    for column in range(train.shape[1]):
        known, own = np.unique(train[:, column], return_inverse=True)
        place = np.searchsorted(known, test[:, column]).clip(max=len(known) - 1)
        new = np.where(known[place] == test[:, column], place, np.nan)
        coded.append((own.astype(np.float64), new))
    empty = [np.empty((len(each), 0)) for each in (train, test)]
    return tuple(np.column_stack([none, *(pair[side] for pair in coded)]) for side, none in enumerate(empty))  # pyright: ignore[reportReturnType]


def _value(task: Task, predictions_MC: Tensor, labels_M: Tensor) -> float:
    """Return the metric; AUC is computed from ranks, as the bootstrap needs it a thousand times."""
    if task.metric == "auc":
        ranks_M, is_second_M = rankdata(predictions_MC[:, 1].numpy()), labels_M.numpy() == 1
        second = int(is_second_M.sum())
        above = float(ranks_M[is_second_M].sum()) - second * (second + 1) / 2
        return above / (second * (len(is_second_M) - second))
    return task.metrics(predictions_MC, labels_M)[task.metric]


def _difference(task: Task, better_MC: Tensor, than_MC: Tensor, labels_M: Tensor) -> Difference:
    """Return by how much one's predictions are better; the interval's ends are paired bootstrap quantiles."""
    sign = -1.0 if task.metric in LOWER_IS_BETTER else 1.0

    def of(rows: Tensor) -> float:
        return sign * (_value(task, better_MC[rows], labels_M[rows]) - _value(task, than_MC[rows], labels_M[rows]))

    stream = generator(0, "bootstrap")
    count, drawn = len(labels_M), list[float]()
    while len(drawn) < RESAMPLED:
        rows = torch.randint(count, (count,), generator=stream)
        if not isinstance(task, Classification) or len(labels_M[rows].unique()) == len(labels_M.unique()):
            drawn.append(of(rows))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Difference(of(torch.arange(count)), float(low), float(high))
