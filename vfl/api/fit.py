"""Training of a Python program's own tensors, datasets, models, head and optimizer: ``vfl.fit``.

The engine is that of ``vfl.train``; objects replace what a configuration would name. The run's folder is like any
other, but only ``vfl.fit`` can resume it, and only the returned ``ObjectsRun`` predicts: the code of its models is in
no file.

Shapes: N samples, B batch, D an embedding's width, P the width of all embeddings, C outputs.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Signatures of torch and numpy are partly untyped.

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from torch import Tensor, nn

from vfl.api.frames import check_given, check_labels, classes_of, named_loss, weights_of, with_names
from vfl.base.errors import Diverged, nearest_name
from vfl.base.modules import copy_model
from vfl.base.process_state import standard_state
from vfl.config import ConfigError, ExperimentConfig, parse_config
from vfl.config.files import lay_over
from vfl.console import ShowConsole
from vfl.core.build import GivenModules
from vfl.core.feature_models import check_embedding
from vfl.core.head import OwnLoss
from vfl.core.local import InProcess, build_in_process
from vfl.core.tasks import Task
from vfl.data.files import LabelData, PartyData
from vfl.data.lazy_rows import LazyRows, rows_of
from vfl.data.samples import Labels, Samples
from vfl.data.source import Objects, Split
from vfl.data.tables.join import draw_share
from vfl.predict.start_from import config_to_build, start_of
from vfl.runs.loop import Callback
from vfl.runs.mode import Built, Stage
from vfl.runs.optim import MakeOptimizer
from vfl.runs.run import run_experiment
from vfl.runs.runtime import start_runtime
from vfl.runs.stored_run import Run

OUTPUT_PROBED = 2
"""Samples by which an embedding's width is determined."""


@dataclass(frozen=True, eq=False)
class Party:
    """An owner of features.

    Args:
        name: letters, digits and ``_.-``.
        features: a tensor, an array (also a memory-mapped one), a data frame or a map-style dataset, [N, ...].
        model: features [B, ...] -> embeddings, float32 [B, D]; the contract is in docs/extending.md. A copy is trained.
    """

    name: str
    features: Any
    model: nn.Module


class ObjectsRun(Run):
    """A run of a program's own objects, with the trained models."""

    def __init__(self, folder: Path, trained: InProcess, head: nn.Module, task: Task) -> None:
        super().__init__(folder)
        self._models = {party.name: party.evaluated.finished_copy() for party in trained.parties}
        self._task = task
        self.head = head
        """The trained head, [B, P] -> [B, C]."""

    def feature_model(self, party: str) -> nn.Module:
        """Return a party's trained and pruned feature model, in evaluation mode."""
        if party not in self._models:
            raise ConfigError(f"feature_model: no party is called {party!r}{nearest_name(party, list(self._models))}")
        return self._models[party]

    @standard_state()
    def predict(self, samples: Any = None) -> NDArray[np.floating[Any]]:
        """Return class probabilities [N, C], or values [N, 1], for features by party.

        Raises ValueError if a party's are missing, or numbers of samples differ.
        """
        if not isinstance(samples, Mapping) or samples.keys() != self._models.keys():
            raise ConfigError(f"samples: expected features by party: {', '.join(self._models)}")
        rows = {name: rows_of(f"samples[{name!r}]", cast(Any, samples)[name]) for name in self._models}
        _same_length({name: len(each) for name, each in rows.items()}, "samples")
        start_runtime(self.vertical)
        size, count = self.config.evaluation.batch_size, len(next(iter(rows.values())))
        batches: list[Tensor] = []
        with torch.inference_mode():
            for start in range(0, count, size):
                batch = torch.arange(start, min(start + size, count))
                parts = [model(rows[name][batch]) for name, model in self._models.items()]
                batches.append(self._task.predictions(self.head(torch.cat(parts, dim=1))))
        predictions_NC = torch.cat(batches)
        if not predictions_NC.isfinite().all():
            for line in islice(_causes(rows, self._models), 1):
                warnings.warn(f"samples: {line}; its prediction is NaN", stacklevel=3)
        return predictions_NC.numpy()


def _causes(own: Mapping[str, LazyRows], models: Mapping[str, nn.Module]) -> Iterator[str]:
    """Yield, as a line, owner, row and column of values that are not finite and that the owner's model cannot embed."""
    for name, rows in own.items():
        model = copy_model(models[name]).eval()
        for row, what in rows.not_finite():
            with torch.inference_mode():
                if not model(row).isfinite().all():
                    yield f"{name}: {what}"


@contextmanager
def _naming_causes(own: Mapping[str, LazyRows], models: Mapping[str, nn.Module]) -> Generator[None]:
    """Turn Diverged into ConfigError where the data are its cause."""
    try:
        yield
    except Diverged:
        for line in _causes(own, models):
            raise ConfigError(f"parties: {line}; mend it, or give a model that embeds such rows") from None
        raise


@standard_state()
def fit(
    parties: Sequence[Party],
    y: ArrayLike | Tensor,
    *,
    head: nn.Module | None = None,
    optimizer: MakeOptimizer | None = None,
    loss: OwnLoss | str | Mapping[str, object] | None = None,
    sample_weight: ArrayLike | None = None,
    test: float | Sequence[int] | NDArray[np.int64] = 0.2,
    settings: Mapping[str, object] | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    verbose: bool = False,
) -> ObjectsRun:
    """Train parties' models and a head on rows that belong together, as ``lvfl train`` does, and return the run.

    Args:
        parties: in the order in which the head reads their embeddings; sample i is row i of each.
        y: labels [N]: classes, or float for amounts.
        head: all embeddings [B, P] -> [B, C]; by default the perceptron of ``models.head``. A copy is trained.
        optimizer: makes the optimizer of a model's parameters; by default ``training.optimizer``.
        loss: gives the loss of the head's outputs [B, C] and their targets [B], classes or standardised values, as a
            scalar; metrics stay what they are. Or the name or settings of ``training.loss``.
        sample_weight: weight of each sample in loss, metrics and statistics; 0 leaves it out. Not beside ``loss``.
        test: share of the samples that is the test, or their rows.
        settings: of an experiment, by dotted key.
        run_dir: folder of the run; by default a temporary one, which goes with the run.
        resume: continue from the last checkpoint in ``run_dir``; give the same objects, untrained.
        callbacks: called after each round.
        verbose: show the training's progress.

    Raises ValueError, one line, for arguments that do not fit together; KeyboardInterrupt after the checkpoint of a
    training that a signal has ended.
    """
    own = _rows_by_party(parties, y)
    own_loss = loss if callable(loss) else None
    if own_loss is not None and sample_weight is not None:
        raise ConfigError("sample_weight: goes with the built-in loss; leave it out beside loss, or weigh there")
    own, counted, weights, tested = _counted(own, _array(y), sample_weight, test)
    models = {party.name: copy_model(party.model) for party in parties}
    labels_N, classes = _labels(counted)
    config = _experiment(own, models, classes, {**named_loss(loss, settings), **with_names(settings)})
    for line in config.warnings():
        warnings.warn(line, stacklevel=3)
    split = _split(own, labels_N, weights, classes, tested, config.seed)
    given = GivenModules(models, copy_model(head), optimizer, own_loss)
    _check_head(given.head, config, len(classes) or 1)
    build = partial(_build, split, given, built := list[InProcess]())
    folder = Path(tempfile.mkdtemp(prefix="lvfl-"), "run") if run_dir is None else Path(run_dir)
    console = ShowConsole() if verbose else Console(quiet=True)
    with _naming_causes(own, {party.name: party.model for party in parties}):
        outcome = run_experiment(config, folder, resume=resume, console=console, extra_callbacks=callbacks, build=build)
    if not outcome.finished:
        raise outcome.interruption(folder)
    trainer = built[0].server.trainer
    run = ObjectsRun(folder, built[0], copy_model(trainer.head).eval(), trainer.task)
    if run_dir is None:
        weakref.finalize(run, shutil.rmtree, folder.parent, ignore_errors=True)
    return run


def _build(split: Split, given: GivenModules, built: list[InProcess], config: ExperimentConfig, stage: Stage) -> Built:
    """Return what trains the given rows and modules; also append it to ``built``."""
    source = Objects(config.data, config.seed)
    source.task, source.given = config.task, split
    start = start_of(config, stage.run_dir)
    config = config_to_build(config, stage.run_dir)
    built.append(build_in_process(config, stage.runtime, stage.progress.on_step, source, given, start))
    return Built(built[0].server)


def _rows_by_party(parties: Sequence[Party], y: Any) -> dict[str, LazyRows]:
    """Return the parties' rows by name. Raises ConfigError unless there is one for each label."""
    for party in cast(Sequence[object], parties):
        if not isinstance(party, Party):
            raise ConfigError(f"parties: expected vfl.Party(name, features, model), got {type(party).__name__}")
    if not hasattr(y, "__len__"):
        raise ConfigError(f"y: expected labels [N], got {type(y).__name__}")
    own = {party.name: _checked(party) for party in parties}
    if not own or len(own) < len(parties):
        raise ConfigError("parties: give one or more, each with a name of its own")
    _same_length({name: len(rows) for name, rows in own.items()} | {"y": len(y)}, "parties")
    return own


def _checked(party: Party) -> LazyRows:
    if not isinstance(cast(object, party.model), nn.Module):
        raise ConfigError(f"parties: {party.name}'s model is no torch.nn.Module, but {type(party.model).__name__}")
    return rows_of(f"parties: {party.name}", party.features)


def _same_length(lengths: Mapping[str, int], what: str) -> None:
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"{what}: samples differ in number ({', '.join(f'{n}: {c}' for n, c in lengths.items())})")


def _tested(test: Any, count: int) -> float | NDArray[np.bool_]:
    """Return the share of the samples that is the test, or their mask. Raises ConfigError for anything else."""
    if isinstance(test, float | int):
        if not 0 < test < 1:
            raise ConfigError(f"test: {test} is no share between 0 and 1; or give the rows")
        return float(test)
    rows, tested_N = np.asarray(test), np.zeros(count, bool)
    if rows.dtype.kind not in "iu" or rows.ndim != 1 or not len(rows) or rows.min() < 0 or rows.max() >= count:
        raise ConfigError(f"test: expected row numbers from 0 to {count - 1}, or a share")
    tested_N[rows] = True
    return tested_N


def _counted(
    own: dict[str, LazyRows], values: NDArray[Any], sample_weight: Any, test: Any
) -> tuple[dict[str, LazyRows], NDArray[Any], Tensor | None, float | NDArray[np.bool_]]:
    """Return rows by party, labels, weights and tested samples without samples of weight 0."""
    tested = _tested(test, len(values))
    if sample_weight is None:
        return own, values, None, tested
    weights_N = weights_of(sample_weight, len(values))
    if not (kept_N := weights_N > 0).all():
        rows = torch.from_numpy(np.flatnonzero(kept_N))
        own = {name: each.take(rows) for name, each in own.items()}
        values, weights_N = values[kept_N], weights_N[kept_N]
        tested = tested[kept_N] if isinstance(tested, np.ndarray) else tested
    return own, values, torch.from_numpy(weights_N), tested


def _array(y: ArrayLike | Tensor) -> NDArray[Any]:
    return y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asanyarray(y)


def _labels(values: NDArray[Any]) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels [N] and the names of the classes: int64 with names, or float64 without."""
    if values.ndim != 1:
        raise ConfigError(f"y: expected labels [N], got {list(values.shape)}")
    if values.dtype.kind == "f":
        values = np.ma.filled(values, np.nan)
        if not np.isfinite(values).all():
            first = int(np.isfinite(values).argmin())
            raise ConfigError(f"y: holds NaN or infinity: row {first} has {values[first]:g}")
        return torch.from_numpy(values.astype(np.float64)), ()
    check_labels(values)
    names, codes = classes_of(values, "give two or more, or float for amounts")
    return torch.from_numpy(codes.astype(np.int64)), tuple(str(name) for name in names)


def _experiment(
    own: Mapping[str, LazyRows], models: Mapping[str, nn.Module], classes: Sequence[str], settings: Mapping[str, object]
) -> ExperimentConfig:
    widths = {
        name: check_embedding(models[name], [rows[torch.arange(min(OUTPUT_PROBED, len(rows)))]]).shape[1]
        for name, rows in own.items()
    }
    values: dict[str, Any] = {
        "name": "python",
        "task": "classification" if classes else "regression",
        "data": {"dataset": {"kind": "objects", "options": {"owners": [*own]}}},
        "models": {"parties": {name: {"kind": "given", "embedding_size": width} for name, width in widths.items()}},
        "training": {"labels": "server"},
    }
    config = parse_config(lay_over(values, settings))
    check_given(config, "objects", values["task"])
    if config.training.labels != "server":
        raise ConfigError("settings: training.labels is server where objects are given")
    return config


def _split(
    own: Mapping[str, LazyRows],
    labels_N: Tensor,
    weights_N: Tensor | None,
    classes: tuple[str, ...],
    tested: float | NDArray[np.bool_],
    seed: int,
) -> Split:
    """Return all parties' samples; their ids are the rows."""
    count = len(labels_N)
    is_test = draw_share(count, tested, seed, "objects_split") if isinstance(tested, float) else tested
    train, tests = (torch.from_numpy(np.flatnonzero(each)) for each in (~is_test, is_test))
    if not len(train):
        raise ConfigError("test: all samples are test samples; leave some to train on")
    if not len(tests):
        raise ConfigError("test: all test samples have weight 0; name others")
    # `LazyRows` replace tensors: they avoid a copy of all features.
    parts = [
        PartyData(name, Samples(train, cast(Tensor, rows.take(train))), Samples(tests, cast(Tensor, rows.take(tests))))
        for name, rows in own.items()
    ]
    labels = Labels(torch.arange(count), labels_N, weights=weights_N)
    return Split(tuple(parts), LabelData(classes, *(labels.take(each) for each in (train, tests))))


def _check_head(head: nn.Module | None, config: ExperimentConfig, outputs: int) -> None:
    """Raise ValueError for a head that does not return [B, C] for all embeddings [B, P]."""
    if head is None:
        return
    if not isinstance(cast(object, head), nn.Module):
        raise ConfigError(f"head: is no torch.nn.Module, but {type(head).__name__}")
    width = sum(config.models.parties[name].embedding_size for name in config.parties)
    try:
        check_embedding(head, [torch.zeros(OUTPUT_PROBED, width)], outputs)
    except ValueError as error:
        raise ConfigError(f"head: for embeddings [B, {width}] and {outputs} outputs: {error}") from None
