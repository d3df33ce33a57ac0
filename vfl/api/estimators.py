"""Classifier and regressor over several owners' tables by scikit-learn's conventions: ``vfl.VerticalClassifier``.

They hold the owners' tables in memory, train in a temporary folder as ``lvfl train`` does, with settings that need no
search (`vfl.config.tables`), and predict as ``lvfl predict``: the same engine, the same bits, the same run folder. A
pickled estimator takes its run along. PyTorch and the engine are imported by the first fit, prediction or unpickling:
the classes themselves only need scikit-learn.

Shapes: N rows, C classes.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportMissingParameterType=false
# scikit-learn ships no stubs, and numpy's signatures are partly unannotated.

import tempfile
import warnings
import weakref
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from vfl.api.frames import (
    LabelledTables,
    OwnerTable,
    check_labels,
    classes_of,
    draw_tested,
    fill_masked,
    forget_run,
    labels_of,
    named_loss,
    other_order,
    owners_of,
    pack_run,
    refuse_repeated,
    unpack_run,
    weights_of,
    with_names,
    write_held,
)
from vfl.api.predict_owners import ESTIMATOR, check_owners, predict_owners
from vfl.base.errors import one_line, use_words
from vfl.config import ConfigError
from vfl.config.tables import ROUNDS
from vfl.console import ShowConsole
from vfl.runs.run_folder import write_summary

if TYPE_CHECKING:  # they import PyTorch
    from vfl.core.head import OwnLoss
    from vfl.predict.predict import Prediction, WhenAbsent
    from vfl.predict.reasons import Reasons, ReasonsWanted
    from vfl.runs.stored_run import Columns, Run

ALONE = "owner"
"""Name of a single owner, whose table has no name."""
_OWN = ("_folder", "_trained")
"""Attributes of a fit beside the public ones, whose names end with _."""


class _Vertical(BaseEstimator):
    """Common base of classifier and regressor.

    Args:
        alpha: removed share of the feature models' width: a number, ``{round: value}``, or either by owner.
        beta: share of the embeddings' entries that do not travel, given alike.
        rounds: of training; twice as many train twice as long.
        key: column by which the owners' rows belong together; None: row i of every table is the same sample.
        validation_fraction: share of the samples that is not trained on and on which the run is tested. With 0 the
            run's test metrics are those of up to 1000 training samples and say little of new ones.
        loss: name or settings of ``training.loss``, as "focal"; or the label owner's own, of outputs [B, C] and targets
            [B], as ``vfl.fit``'s. None: cross-entropy or squares.
        settings: any other settings of an experiment, by dotted key (docs/configuration.md).
        run_dir: folder of the run, which must be free; None: a temporary one that lives as long as the estimator.
        random_state: seed of models, batches and what is held back.
        verbose: show the training's progress.

    The first owner is the one of the labels. Without a feature (a table of its key column only, or None where no key
    joins rows) it has no model and sends nothing.
    """

    _task: Literal["classification", "regression"]

    def __init__(
        self,
        *,
        alpha: Any = 0.0,
        beta: Any = 0.0,
        rounds: int = ROUNDS,
        key: str | None = None,
        validation_fraction: float = 0.0,
        loss: "OwnLoss | str | Mapping[str, Any] | None" = None,
        settings: Mapping[str, Any] | None = None,
        run_dir: str | Path | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.alpha = alpha
        self.beta = beta
        self.rounds = rounds
        self.key = key
        self.validation_fraction = validation_fraction
        self.loss = loss
        self.settings = settings
        self.run_dir = run_dir
        self.random_state = random_state
        self.verbose = verbose

    @property
    def costs_(self) -> "Columns":
        """Each owner's multiply-accumulates, bytes in both directions and seconds of training; a row per owner."""
        check_is_fitted(self, "run_")
        from vfl.runs.stored_run import in_columns

        return in_columns(
            [
                {
                    "owner": owner,
                    "macs": spent["train_macs"],
                    "bytes": spent["uplink_bytes"] + spent["downlink_bytes"],
                    "seconds": spent["train_time_s"],
                }
                for owner, spent in self.run_.summary["parties"].items()
            ],
            index="owner",
        )

    @property
    def contributions_(self) -> dict[str, float]:
        """Loss in the run's test metric without each owner, replaced by placeholders; empty for a single owner."""
        check_is_fitted(self, "run_")
        from vfl.base.metrics import lost_without

        summary = self.run_.summary
        sets: Mapping[str, Mapping[str, float]] = summary.get("subsets", {})
        values = {names: metrics[summary["metric"]] for names, metrics in sets.items()}
        return lost_without(values, [*summary["parties"]], summary["metric"]) if values else {}

    def __sklearn_tags__(self) -> Any:
        tags: Any = cast(Any, super()).__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(cast(Any, super()).__getstate__())
        state.pop("_trained", None)
        if "_folder" in state:
            state["_named"] = str(self._folder)
            state["_folder"] = pack_run(self._folder, self.run_.folder)
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        state = dict(state)
        if "_folder" in state:
            from vfl.runs.stored_run import Run

            kept = Path(tempfile.mkdtemp(prefix="lvfl-"))
            with _removed_on_error(kept):
                unpack_run(state["_folder"], kept)
            run = _lasting(Run(kept / "run"), kept)
            named = (run.folder / "config.yaml").read_text(encoding="utf-8").replace(state.pop("_named"), str(kept))
            (run.folder / "config.yaml").write_text(named, encoding="utf-8")  # the tables go by this name now
            state |= {"_folder": kept, "run_": run}
        cast(Any, super()).__setstate__(state)

    @contextmanager
    def _whole_or_not_fitted(self) -> Generator[None]:
        """Forget what earlier and half fits have found, where the present one ends with an error."""
        from vfl.base.process_state import standard_state

        try:
            with standard_state():
                yield
        except BaseException:
            for name in [name for name in vars(self) if name.endswith("_") or name in _OWN]:
                delattr(self, name)
            raise

    def _chosen(self, start_from: Self | None) -> dict[str, Any]:
        """Return the settings of a named loss, and of a training that begins with a fitted estimator's models."""
        named = named_loss(self.loss, self.settings)
        if start_from is None:
            return named
        if type(start_from) is not type(self):
            raise ConfigError(f"start_from: expected a fitted {type(self).__name__}, got {type(start_from).__name__}")
        check_is_fitted(start_from, "run_")
        models = start_from.run_.vertical.models  # perhaps an earlier version's: defaults have other sizes since
        sizes = {f"models.feature.{size}": getattr(models.feature, size) for size in ("width", "embedding_size")}
        sizes |= {"models.head.hidden": models.head.hidden, "models.members": models.members}
        sizes["models.linear_path"] = models.linear_path
        return named | {"training.start_from": str(start_from.run_.folder), **sizes}

    def _fit(self, samples: LabelledTables, chosen: dict[str, Any]) -> Self:
        """Train; ``chosen`` are settings that data and arguments decide."""
        from vfl.api.train_tables import Places, Training, best_exchanges, train_tables, try_exchanges

        if callable(self.loss) and samples.weights_N is not None:
            raise ConfigError("sample_weight: goes with the built-in loss; leave it out beside loss, or weigh there")
        if len(samples.labels_N) < 2:
            raise ConfigError(f"X: has {len(samples.labels_N)} sample; training needs two or more")
        if "training.start_from" in (self.settings or {}):
            raise ConfigError("settings: training.start_from is a fitted estimator here: fit(X, y, start_from=...)")
        if not any("duplicates" in name for name in self.settings or {}):
            refuse_repeated(samples.owners)
        draw = check_random_state(self.random_state)
        # An int is the run's seed itself, so that a YAML file that names it trains the same.
        whole = isinstance(self.random_state, int | np.integer)
        seed = int(self.random_state) if whole else int(draw.randint(2**31 - 1))
        tested = draw_tested(samples.labels_N, self.validation_fraction, self._task == "classification", draw)
        fraction = self.validation_fraction
        classes = tuple(map(str, getattr(self, "classes_", ())))  # none where the label is an amount
        wanted = Training(self._task, classes, self.alpha, self.beta, self.rounds, self.loss, seed)
        given = {**chosen, **with_names(self.settings)}
        self.trials_ = try_exchanges(wanted, samples.without(tested, self.key) if fraction else samples, given)
        given |= best_exchanges(self.trials_)
        folder = Path(tempfile.mkdtemp(prefix="lvfl-"))
        run_dir = folder / "run" if self.run_dir is None else Path(self.run_dir)
        with _removed_on_error(folder):
            places = Places(folder, run_dir, ShowConsole() if self.verbose else Console(quiet=True))
            run, self._trained = train_tables(wanted, samples, tested, given, places, again=fraction == 0)
            if self.run_dir is not None:
                write_held(folder)
            self.run_ = _lasting(run, folder)
        self._folder, self.owners_ = folder, list(samples.owners)
        return self

    def explain(
        self, X: Any, of: Any = None, *, steps: int = 16, missing_parties: "WhenAbsent | None" = None
    ) -> "Reasons":
        """Return what each owner and each of its columns moved in the scores of rows, in the first owner's order.

        Args:
            X: as for ``predict``.
            of: class whose log odds are explained; None: the positive one of two, of more the predicted one.
            steps: of the path from an owner's reference to its row.
            missing_parties: replaces an owner as for ``predict``, and stands for one who has not come yet; None and
                refuse: the placeholder, else zeros.

        See docs/tables.md. Raises ValueError as ``predict``, and for an unknown class.
        """
        check_is_fitted(self, "run_")
        import torch

        from vfl.predict.reasons import ReasonsWanted

        names: list[Any] = [*getattr(self, "classes_", ())]
        if of is not None and of not in names:
            raise ConfigError(f"of: {of!r} is none of the classes {names}" if names else "of: there are no classes")
        code = None if of is None else str(names.index(of))
        with use_words(ESTIMATOR):
            wanted = ReasonsWanted(code, steps)
        prediction, places_N = self._predicted(X, missing_parties, wanted)
        assert prediction.reasons is not None, "they were asked for"
        found = prediction.reasons.take(torch.from_numpy(places_N))
        return replace(found, classes=tuple(str(names[int(code)]) for code in found.classes))

    def _predicted(
        self, given: Any, missing_parties: "WhenAbsent | None", reasons: "ReasonsWanted | None" = None
    ) -> "tuple[Prediction, NDArray[np.int64]]":
        """Return the prediction, and in it the place [N] of each of the first owner's rows."""
        check_is_fitted(self, "run_")
        from vfl.base.process_state import standard_state
        from vfl.predict.open_run import check_word
        from vfl.predict.trained_run import open_federation
        from vfl.runs.runtime import start_runtime

        when: WhenAbsent = "refuse" if missing_parties is None else missing_parties
        with use_words(ESTIMATOR):
            check_word(when)
        with standard_state():
            owners = self._owners(given, fitted=True)
            absent = check_owners(self.run_, self.owners_, owners, when)
            self._trained = getattr(self, "_trained", None) or open_federation(self.run_, with_data=True)
            start_runtime(self.run_.prediction)
            return predict_owners(self._trained, self.owners_, owners, absent, when, reasons)

    def _given(self, X: Any, y: Any, sample_weight: Any) -> LabelledTables:
        """Return the samples to be trained on, without rows of weight 0."""
        owners, labels_N = self._owners(X, fitted=False, y=y), labels_of(y)
        first, rows = next((name, len(owner.keys)) for name, owner in owners.items())
        if len(labels_N) != rows:
            raise ConfigError(f"y: has {len(labels_N)} values for the {rows} rows of {first}")
        weights_N = None if sample_weight is None else weights_of(sample_weight, rows)
        samples = LabelledTables(owners, labels_N, weights_N)
        if weights_N is not None and (weights_N == 0).any():
            samples = samples.without(np.flatnonzero(weights_N == 0), self.key)
        check_labels(y if isinstance(y, np.ma.MaskedArray) else samples.labels_N)
        return samples

    def _owners(self, given: Any, *, fitted: bool, y: Any = None) -> dict[str, OwnerTable]:
        """Return the owners of tables by name, or the single owner of a plain table or array."""
        for line in other_order(given, self.key, y):
            warnings.warn(line, stacklevel=4)
        if isinstance(given, Mapping) and not issparse(given):  # a sparse array of keys is a mapping as well
            return owners_of(given, self.key)
        if hasattr(given, "__arrow_c_stream__") and self.key is not None:
            return owners_of({ALONE: given}, self.key)
        array = validate_data(
            self, fill_masked(given), reset=not fitted, dtype="numeric", ensure_all_finite="allow-nan"
        )
        return owners_of({ALONE: np.asarray(array)}, self.key)


class VerticalClassifier(ClassifierMixin, _Vertical):
    """A classifier over several owners' tables, trained by LVFL.

    `fit({"bank": frame, "insurer": frame}, y)`; ``predict_proba`` and ``predict`` take tables given alike.
    ``positive_class`` is the one of two that the run's AUC, F1 and average precision judge; None: ``classes_[1]``.
    """

    _task = "classification"

    def __init__(
        self,
        *,
        alpha: Any = 0.0,
        beta: Any = 0.0,
        rounds: int = ROUNDS,
        key: str | None = None,
        validation_fraction: float = 0.0,
        positive_class: Any = None,
        loss: "OwnLoss | str | Mapping[str, Any] | None" = None,
        settings: Mapping[str, Any] | None = None,
        run_dir: str | Path | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            alpha=alpha,
            beta=beta,
            rounds=rounds,
            key=key,
            validation_fraction=validation_fraction,
            loss=loss,
            settings=settings,
            run_dir=run_dir,
            random_state=random_state,
            verbose=verbose,
        )
        self.positive_class = positive_class

    def fit(self, X: Any, y: Any, sample_weight: Any = None, start_from: Self | None = None) -> Self:
        """Train on owners' tables and the labels of the first one's rows, each with a weight if given.

        ``start_from``: a fitted estimator, which stays as it is and whose models this training begins with; it keeps
        that one's preparation of columns and classes, and takes new or further rows of the same columns. Raises
        ValueError, one line; KeyboardInterrupt for a signal. The estimator is then not fitted.
        """
        from vfl.data.tables.labels import positive_last, tell_alike

        with self._whole_or_not_fitted():
            samples = self._given(X, y, sample_weight)
            try:
                check_classification_targets(samples.labels_N)
            except TypeError as error:  # of bytes, or of several types
                raise ConfigError(f"y: {one_line(error)}") from None
            classes, codes_N = classes_of(samples.labels_N, "a classifier needs two")
            chosen = self._chosen(start_from)
            if start_from is not None:
                known = start_from.classes_.tolist()
                if other := [each for each in classes.tolist() if each not in known]:
                    raise ConfigError(f"y: class {other[0]!r} is none of those of start_from: {known}")
                codes_N = np.array([known.index(each) for each in classes.tolist()])[codes_N]
                classes = start_from.classes_
            self.classes_, names = classes, [*map(str, classes)]
            if self.classes_.dtype.kind in "OU":
                tell_alike("y", names)
            if self.positive_class is not None:
                *_, positive = positive_last(tuple(names), str(self.positive_class), "positive_class")
                chosen |= {"data.positive_class": positive}
            self._fit(samples._replace(labels_N=codes_N), chosen)
            summary = self.run_.summary
            if "positive_class" in summary:  # the run's names are the codes
                summary["positive_class"] = names[int(summary["positive_class"])]
                write_summary(self.run_.folder, summary)
            return self

    def predict_proba(self, X: Any, missing_parties: "WhenAbsent | None" = None) -> NDArray[np.float64]:
        """Return probabilities [N, C], columns as ``classes_``, rows as the first owner's.

        ``missing_parties`` replaces an owner that is not in ``X`` or has no row for a key: its mean embedding, the
        placeholder that the head learned with ``training.party_dropout``, or zeros; refuse and None replace none.
        """
        prediction, places_N = self._predicted(X, missing_parties)
        found_NC = prediction.probabilities_NC.numpy()[places_N].astype(np.float64)
        task = self._trained.joint.task
        found_NC = found_NC[:, [task.names.index(str(code)) for code in range(len(self.classes_))]]
        return found_NC / found_NC.sum(axis=1, keepdims=True)

    def predict(self, X: Any, missing_parties: "WhenAbsent | None" = None) -> NDArray[Any]:
        """Return the most probable class of each row [N]."""
        probabilities_NC = self.predict_proba(X, missing_parties)  # first: it raises if the estimator is not fitted
        return self.classes_[probabilities_NC.argmax(axis=1)]


class VerticalRegressor(RegressorMixin, _Vertical):
    """A regressor over several owners' tables, trained by LVFL.

    `fit({"bank": frame, "insurer": frame}, y)`; ``predict`` takes tables given alike.
    """

    _task = "regression"

    def fit(self, X: Any, y: Any, sample_weight: Any = None, start_from: Self | None = None) -> Self:
        """Train on owners' tables and the values of the first one's rows; the rest as ``VerticalClassifier.fit``."""
        with self._whole_or_not_fitted():
            samples = self._given(X, y, sample_weight)
            values_N = cast(Any, check_array)(samples.labels_N, ensure_2d=False, dtype=np.float64, input_name="y")
            return self._fit(samples._replace(labels_N=values_N), self._chosen(start_from))

    def predict(self, X: Any, missing_parties: "WhenAbsent | None" = None) -> NDArray[np.float64]:
        """Return the value of each row [N]; ``missing_parties`` as ``VerticalClassifier.predict_proba``."""
        prediction, places_N = self._predicted(X, missing_parties)
        return prediction.probabilities_NC.numpy()[places_N, 0].astype(np.float64)


def _lasting(run: "Run", folder: Path) -> "Run":
    """Return the run, with which its private folder is removed."""
    weakref.finalize(run, forget_run, folder)
    return run


@contextmanager
def _removed_on_error(folder: Path) -> Generator[None]:
    try:
        yield
    except BaseException:
        forget_run(folder)
        raise
