"""A model of the label owner's columns alone, trained on the joint model's scores: ``lvfl distill``.

Response-based distillation (Gou et al., IJCV 2021) from a teacher with more columns than the student (as APC-VFL, arXiv
2410.17648). The student's targets are (1 - weight) labels + weight scores at temperature 1, which by cross-entropy or
squared error give the gradient of the weighted sum of both losses.

Shapes: N training samples, C classes or 1.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from rich.console import Console
from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]  # it has none
from torch import Tensor

from parties.alone import of_one, only, train_on
from parties.compare import Difference
from parties.export import export_run
from parties.local import InProcess
from parties.predict import predict, take_samples
from parties.trained_run import load_run, load_trained
from vfl.config import ConfigError
from vfl.config.data import TABLE_KINDS
from vfl.data.samples import Samples
from vfl.data.source import NewSamples
from vfl.data.tables.source import Tables
from vfl.export import check_tools
from vfl.metrics import LOWER_IS_BETTER, title
from vfl.runs.run_folder import read_summary, write_summary
from vfl.vertical.tasks import Classification, Task

WEIGHT = 1.0
"""Weight of the scores in the targets."""
SEEDS = 5
"""Number of seeds, counted from the run's own."""


@dataclass(frozen=True)
class Distillation:
    """Scores on the run's evaluated samples of the stand-alone model, and of the same one trained on the labels."""

    metric: str
    leader: str
    joint: float
    distilled: tuple[float, ...]
    """A value per seed, as ``alone``."""
    alone: tuple[float, ...]
    gain: Difference | None
    """Mean gain over the labels alone, with Student's interval over the seeds; None for one seed."""

    def headline(self) -> str:
        """Return one line that says whether the scores are shown to gain."""
        if self.gain is None:
            return "one seed decides nothing"
        shown = "gains" if self.gain.low > 0 else "loses" if self.gain.high < 0 else "is not shown to gain:"
        return f"{self.leader} alone, by the joint model's scores, {shown} {self.gain.text()} {title(self.metric)}"


def distill(run_dir: Path, folder: Path, console: Console, weight: float = WEIGHT, seeds: int = SEEDS) -> Distillation:
    """Train, by seed, the label owner alone on the run's scores and on its labels; export the first seed's model.

    ``folder``, new, gets ``distilled-SEED``, ``alone-SEED`` and ``export``; it appears whole or not at all, and the run
    stays as it is. Raises ConfigError for a run without tables of several owners, ValueError if its data has changed or
    is missing, KeyboardInterrupt for a training that a signal has ended.
    """
    check_tools()
    config = load_run(run_dir).config
    if config.data.dataset.kind not in TABLE_KINDS or len(config.parties) < 2:
        raise ConfigError(f"{run_dir}: holds no run on tables of two or more owners; name one")
    if folder.exists():
        raise ConfigError(f"--out: {folder} exists already; name another folder")
    unfinished = folder.with_name(f".partial-{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        found = train_distilled(load_trained(run_dir), unfinished, console, weight, seeds)
        export_run(unfinished / f"distilled-{config.seed}", unfinished / "export")
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return found


def train_distilled(
    trained: InProcess, folder: Path, console: Console, weight: float = WEIGHT, seeds: int = SEEDS
) -> Distillation:
    """Train the models of ``distill`` into ``folder``, without the export."""
    config, split, source = trained.server.config, trained.split, cast(Tables, trained.source)
    task, leader, labels = trained.server.joint.trainer.task, source.leader, split.labels
    own = of_one(next(part for part in split.parties if part.party == leader), split)
    scores_NC = training_scores(trained)
    targets = {"distilled": mixed(task, labels.train.values, scores_NC, weight), "alone": None}
    reached: dict[str, list[float]] = {name: [] for name in targets}
    for seed in range(config.seed, config.seed + seeds):
        student = only(config, source, leader).model_copy(update={"seed": seed})
        for name, values in targets.items():
            model = train_on(student, folder / f"{name}-{seed}", own, source, console, values).server.joint
            reached[name].append(task.metrics(predict(model), labels.test.values)[task.metric])
    joint = task.metrics(predict(trained.server.joint), labels.test.values)[task.metric]
    sign = -1.0 if task.metric in LOWER_IS_BETTER else 1.0
    gains = [sign * (first - second) for first, second in zip(*reached.values(), strict=True)]
    found = Distillation(task.metric, leader, joint, *map(tuple, reached.values()), gain=over_seeds(gains))
    kept = folder / f"distilled-{config.seed}"
    write_summary(kept, read_summary(kept) | {"distillation": asdict(found) | {"weight": weight}})
    return found


def training_scores(trained: InProcess) -> Tensor:
    """Return the joint model's predictions [N, C] of its training samples."""
    train, parts = trained.split.labels.train, tuple(part.train for part in trained.split.parties)
    whole = Samples(train.ids, parts[0].features, train.values)
    return predict(replace(take_samples(trained, NewSamples(whole, parts)), samples=train))


def mixed(task: Task, labels_N: Tensor, scores_NC: Tensor, weight: float) -> Tensor:
    """Return the targets, probabilities [N, C] or values [N]: weight scores + (1 - weight) labels."""
    if isinstance(task, Classification):
        hard_NC = torch.nn.functional.one_hot(labels_N, task.classes).to(scores_NC.dtype)
        return (1 - weight) * hard_NC + weight * scores_NC
    return (1 - weight) * labels_N + weight * scores_NC[:, 0]


def over_seeds(gains: Sequence[float]) -> Difference | None:
    """Return the mean of the gains, with Student's 95 % interval; None for one."""
    mean, count = float(np.mean(gains)), len(gains)
    if count == 1:
        return None
    half = float(stdtrit(count - 1, 0.975)) * float(np.std(gains, ddof=1)) / count**0.5
    return Difference(mean, mean - half, mean + half)
