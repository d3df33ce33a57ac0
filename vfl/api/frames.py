"""Tables of a Python program as a training reads them: keys, labels, test samples and features. They stay in memory.

If the owners' rows have no key, row i of every table is the same sample, and its key is i. Samples that are both tested
and trained on are written twice, under a second key.

Shapes: N rows, F columns.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Signatures of numpy are partly unannotated.

import io
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import column_or_1d  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

from vfl.base.errors import ConfigError, nearest_name, one_line
from vfl.config import ExperimentConfig
from vfl.data.tables.arrow import Column, pa, pc, pq
from vfl.data.tables.cells import Block, FrameTable, plain
from vfl.data.tables.columns import key_text
from vfl.data.tables.frames import frame_table, index_columns
from vfl.data.tables.opened import held_tables, hold_table, release_tables

ROW, LABEL, WEIGHT = "lvfl_row", "lvfl_label", "lvfl_weight"
"""Names of the columns added to a user's."""
AGAIN = "again "
"""Prefix of the key of a sample's second copy, which is tested."""
EVALUATED = 1000
"""Most training samples that are tested if none are held back."""


@dataclass(frozen=True, eq=False)
class OwnerTable:
    """An owner's table with its key column, text."""

    table: Any
    key: str
    arrays: bool
    """The table came as an array: all of its columns are numbers, whatever they look like."""

    @property
    def keys(self) -> Column:
        """Keys as text [N]."""
        return self.table.column(self.key).combine_chunks()

    def take(self, kept_N: NDArray[np.bool_]) -> "OwnerTable":
        """Return some of the rows; keys that are numbers of rows are numbered anew."""
        table = self.table.filter(pa.array(kept_N))
        if self.key == ROW:
            table = table.set_column(table.column_names.index(ROW), ROW, _numbered(table.num_rows))
        return replace(self, table=table)

    def features(self) -> dict[str, str] | None:
        """Return the kinds of the columns, none for an owner with only labels; None lets the training guess."""
        names = [name for name in self.table.column_names if name not in (self.key, LABEL, WEIGHT)]
        return dict.fromkeys(names, "number") if self.arrays or not names else None


class LabelledTables(NamedTuple):
    """What is trained: owners' tables, and of the first one's rows labels [N] and weights [N], if they have some."""

    owners: Mapping[str, OwnerTable]
    labels_N: NDArray[Any]
    weights_N: NDArray[np.float64] | None

    def without(self, rows: NDArray[np.int64], key: str | None) -> "LabelledTables":
        """Return these without some of the first owner's rows; without a key the others' rows are the same ones."""
        kept_N = np.ones(len(self.labels_N), bool)
        kept_N[rows] = False
        left = [*self.owners] if key is None else [*self.owners][:1]
        owners = {name: each.take(kept_N) if name in left else each for name, each in self.owners.items()}
        weights_N = None if self.weights_N is None else self.weights_N[kept_N]
        return LabelledTables(owners, self.labels_N[kept_N], weights_N)


def owner_of(name: str, features: object, key: str | None) -> OwnerTable:
    """Return the owner of a data frame, a mapping of columns or an array [N, F]. Raises ValueError, one line."""
    features = cast(Any, features).toarray() if hasattr(features, "tocsr") else features  # a sparse matrix of SciPy
    array = isinstance(features, np.ndarray)
    if array and key is not None:
        raise ConfigError(f"{name}: an array has no column {key!r}; give a data frame, or leave out key")
    table = frame_table(name, _columns(name, cast(Any, features)) if array else features)
    # An index says which row it is, as a key does, and nothing of it.
    table = table.drop_columns([each for each in index_columns(table) if each != key]).replace_schema_metadata(None)
    if not table.column_names:
        raise ConfigError(f"{name}: has no column")
    if table.num_rows == 0:
        raise ConfigError(f"{name}: holds no row")
    if taken := {ROW, LABEL, WEIGHT} & {*table.column_names}:
        raise ConfigError(f"{name}: column {min(taken)!r} has a name that training needs itself; rename it")
    if key is None:
        return OwnerTable(table.append_column(ROW, _numbered(table.num_rows)), ROW, array)
    if key not in table.column_names:
        raise ConfigError(f"{name}: has no column {key!r}, the key; it has {', '.join(table.column_names[:12])}")
    cells = plain(name, key, table.column(key).combine_chunks())
    if cells.null_count:
        raise ConfigError(f"{name}: column {key!r}, the key, has no value in {cells.null_count} rows")
    text = key_text(name, Block(0, {key: cells}), (key,))  # as the reader: what it does not match is not matched here
    return OwnerTable(table.set_column(table.column_names.index(key), key, text), key, array)


def _numbered(rows: int) -> Column:
    return pa.array([f"{row:0{len(str(rows))}}" for row in range(rows)], pa.string())


def _without_columns(features: Any) -> bool:
    """Return whether it is nothing, or a table without a column."""
    if features is None or (isinstance(features, Mapping) and not features):
        return True
    return getattr(features, "shape", ())[1:] == (0,)  # of arrays and of all kinds of frames


def _columns(name: str, array: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    if array.ndim != 2:
        raise ConfigError(f"{name}: expected an array [N, F], got {list(array.shape)}")
    try:
        values = fill_masked(array.astype(np.float64))
    except (TypeError, ValueError):
        raise ConfigError(f"{name}: an array of {array.dtype} holds no numbers; give a data frame") from None
    return {f"x{place}": np.ascontiguousarray(values[:, place]) for place in range(values.shape[1])}


def fill_masked(features: Any) -> Any:
    """Return a masked array as floats in which masked cells are missing, and anything else as it is."""
    return np.ma.filled(features.astype(np.float64), np.nan) if isinstance(features, np.ma.MaskedArray) else features


def owners_of(features: object, key: str | None) -> dict[str, OwnerTable]:
    """Return the owners of tables by name. Raises ValueError, one line, for other objects or tables that do not fit."""
    if not isinstance(features, Mapping) or not features:
        raise ConfigError(f"X: expected tables by owner, as {{'bank': frame}}, got {type(features).__name__}")
    named = cast(Mapping[object, object], features)
    if any(not isinstance(name, str) for name in named):
        raise ConfigError("X: owners' names are text")
    for name in named:
        if not re.fullmatch(r"\w[\w.-]{0,63}", str(name), re.ASCII):  # it names a file as well
            raise ConfigError(f"X: {name!r} cannot name an owner: use letters, digits and _.-")
    first, owner_of_labels = next(iter(named.items()))
    alone = key is None and _without_columns(owner_of_labels)
    tables = {str(name): table for name, table in named.items() if not (alone and name == first)}
    if not tables:
        raise ConfigError(f"X: {first} has no column, and nobody else is there; give a table with features")
    owners = {name: owner_of(f"X[{name!r}]", table, key) for name, table in tables.items()}
    if alone:  # the labels are of the others' rows
        count = (*getattr(owner_of_labels, "shape", ()), 0)[0] or next(iter(owners.values())).table.num_rows
        owners = {str(first): OwnerTable(pa.table({ROW: _numbered(count)}), ROW, False), **owners}
    rows = {name: owner.table.num_rows for name, owner in owners.items()}
    if key is None and len(set(rows.values())) > 1:
        counts = ", ".join(f"{count} of {name}" for name, count in rows.items())
        raise ConfigError(f"X: rows of different number ({counts}); give the same samples, or key=COLUMN")
    return owners


def other_order(features: object, key: str | None, y: object = None) -> list[str]:
    """Return a line for each pandas object that goes by position though its index says another order.

    Compared with the first table's index are the labels and, where no key joins them, the other tables.
    """
    tables = (
        {f"X[{name!r}]": each for name, each in features.items()} if isinstance(features, Mapping) else {"X": features}
    )
    if not tables:
        return []
    first, *others = tables
    index = _index(tables[first])
    beside = {"y": y} | ({name: tables[name] for name in others} if key is None else {})
    lines: list[str] = []
    for name, each in beside.items():
        own = _index(each)
        if index is None or own is None or len(own) != len(index) or own.equals(index):
            continue
        if own.isin(index).all() and index.isin(own).all():
            what = f"its index has {first}'s values in another order, and rows are taken by position"
            fix = f"give {name}.loc[{first}.index]" + (
                ", or a key column in each and key=COLUMN" if name != "y" else ""
            )
            lines.append(f"{name}: {what}; {fix}")
    return lines


def _index(features: object) -> Any:
    """Return the index of a pandas object; None of anything else."""
    index = getattr(features, "index", None)
    return index if hasattr(index, "isin") and hasattr(index, "equals") else None


def refuse_repeated(owners: Mapping[str, OwnerTable]) -> None:
    """Raise ConfigError, which names keys, for a table that has some more than once."""
    for name, owner in owners.items():
        counts = pc.value_counts(owner.keys)
        repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        if len(repeated):
            some = ", ".join(map(repr, repeated.slice(0, 3).to_pylist()))
            what = f"has keys in several rows, {len(repeated)} in all, such as {some}"
            raise ConfigError(f"X[{name!r}]: column {owner.key!r} {what}; keep a row of each")


def lacking(owners: Mapping[str, OwnerTable]) -> list[str]:
    """Return a line for each further owner that lacks rows of the first one, or has others."""
    (first, rows), *others = owners.items()
    lines: list[str] = []
    for name, owner in others:
        common = pc.sum(pc.is_in(rows.keys, value_set=owner.keys)).as_py() or 0
        if common < max(len(rows.keys), len(owner.keys)):
            what = f"{common} of {len(rows.keys)} rows of {first} have a row of {name}, which has {len(owner.keys)}"
            lines.append(f"X: {what}; training takes rows that all owners have")
    return lines


def draw_tested(y_N: NDArray[Any], fraction: float, classes: bool, draw: np.random.RandomState) -> NDArray[np.int64]:
    """Return the rows to test, ascending: a share of each class, with at least one row of two classes.

    ``fraction`` 0 draws some of all rows. Raises ValueError if too few are left to train on.
    """
    if not 0 <= fraction < 1:
        raise ConfigError(f"validation_fraction: {fraction} is not from 0 to below 1")
    rows = draw.permutation(len(y_N))
    wanted = min(len(y_N), EVALUATED) if fraction == 0 else max(2 if classes else 1, round(fraction * len(y_N)))
    if fraction and wanted >= len(y_N) - 1:
        raise ConfigError(f"validation_fraction: {fraction} of {len(y_N)} samples leaves too few to train on")
    if not classes:
        return np.sort(rows[:wanted])
    # By class in turn, in random order: the first of each come before the second ones.
    codes = np.unique(y_N, return_inverse=True)[1][rows]
    rank = np.zeros(len(rows))
    for code in np.unique(codes):
        of_class = np.flatnonzero(codes == code)
        rank[of_class] = (np.arange(len(of_class)) + 0.5) / len(of_class)
    first = np.unique(codes, return_index=True)[1][:2]
    rank[first] = -1
    return np.sort(rows[np.argsort(rank, kind="stable")[:wanted]])


def check_given(config: ExperimentConfig, kind: str, task: str) -> None:
    """Raise ConfigError for settings that would train something else than the objects that are given."""
    fixed = {"mode": config.mode, "data.dataset.kind": config.data.dataset.kind, "task": config.task}
    for field, wanted in (("mode", "vertical"), ("data.dataset.kind", kind), ("task", task)):
        if fixed[field] != wanted:
            raise ConfigError(f"settings: {field} is {wanted} for what is given here, not {fixed[field]}; leave it out")


def check_labels(labels_N: NDArray[Any]) -> None:
    """Raise ConfigError, which counts them, for labels that are missing: None, NaN, NaT or pandas' NA."""
    kind = labels_N.dtype.kind
    if isinstance(labels_N, np.ma.MaskedArray):
        lacks_N = np.ma.getmaskarray(cast(Any, labels_N))
    elif kind == "O":  # pandas' NA is neither equal nor unequal to itself
        equal = [None if each is None else each == each for each in labels_N.tolist()]
        lacks_N = np.array([not (isinstance(each, bool | np.bool_) and each) for each in equal], bool)
    else:
        lacks_N = labels_N != labels_N if kind in "fcmM" else np.zeros(len(labels_N), bool)
    if missing := int(lacks_N.sum()):
        which = f"such as row {int(lacks_N.argmax())}" if missing > 1 else f"row {int(lacks_N.argmax())}"
        raise ConfigError(f"y: has no value in {missing} of {len(labels_N)} rows, {which}; leave these rows out")


def classes_of(labels_N: NDArray[Any], fix: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the classes in their order, and each label's index among them. Raises ConfigError for a single one."""
    try:
        classes, codes_N = np.unique(labels_N, return_inverse=True)
    except TypeError as error:
        raise ConfigError(f"y: labels of several types have no order ({one_line(error)}); give only text") from None
    if len(classes) < 2:
        raise ConfigError(f"y: holds one class only, {classes[0]!r}; {fix}")
    return classes, codes_N


def with_names(settings: Mapping[str, object] | None) -> dict[str, object]:
    """Return settings in which classes that have weights go by text, as {0: 1, 1: 5} is written in Python."""
    named, key = dict(settings or {}), "training.class_weights"
    if isinstance(weights := named.get(key), Mapping):
        named[key] = {str(name): weight for name, weight in weights.items()}
    return named


def by_code(config: ExperimentConfig, names: Sequence[str]) -> ExperimentConfig:
    """Return an experiment whose settings have classes by their place among ``names``, as its files do.

    Without names it stays as it is. Raises ConfigError for a class that is none of them.
    """
    from vfl.data.tables.labels import classes_called  # it imports PyTorch

    def code(field: str, name: str) -> str:
        meant = classes_called(name, names) or [names[int(name)] for each in range(len(names)) if str(each) == name]
        if len(meant) != 1:
            raise ConfigError(f"settings: {field}: no class is called {name!r}{nearest_name(name, names)}")
        return str(names.index(meant[0]))

    training, data = config.training, config.data
    if not names:
        return config
    if isinstance(weights := training.class_weights, dict):
        by_name = {code("training.class_weights", name): weight for name, weight in weights.items()}
        training = training.model_copy(update={"class_weights": by_name})
    if data.positive_class is not None:
        data = data.model_copy(update={"positive_class": code("data.positive_class", data.positive_class)})
    return config.model_copy(update={"training": training, "data": data})


def weights_of(weights_by_row: Any, rows: int) -> NDArray[np.float64]:
    """Return the weights [N] of N rows. Raises ConfigError for others than finite numbers from 0, and if all are 0."""
    try:
        weights = np.ma.filled(np.ma.asarray(weights_by_row, np.float64), np.nan)
    except (TypeError, ValueError):
        raise ConfigError(f"sample_weight: expected numbers, one for each of {rows} rows") from None
    if weights.shape != (rows,):
        raise ConfigError(f"sample_weight: expected {rows} weights, one a row, got {list(weights.shape)}")
    if not (right := (weights >= 0) & np.isfinite(weights)).all():
        first = int(right.argmin())
        what = "weights are finite and above 0, or 0 to leave the row out"
        raise ConfigError(f"sample_weight: row {first} has {weights[first]:g}; {what}")
    if not weights.any():
        raise ConfigError("sample_weight: is zero in all rows, which leaves all of them out")
    return weights


def named_loss(loss: object, settings: Mapping[str, object] | None) -> dict[str, Any]:
    """Return the settings of a loss that is named, as "focal" or {"kind": "huber", "delta": 2}; none of a function.

    Raises ConfigError if ``settings`` name one as well.
    """
    if loss is not None and any(name.startswith("training.loss") for name in settings or {}):
        raise ConfigError("settings: training.loss names a loss, and so does loss=; leave one of them out")
    if loss is None or callable(loss):
        return {}
    if isinstance(loss, str | Mapping):
        return {"training.loss": loss}
    raise ConfigError(f"loss: expected a function, a name or its settings, got {type(loss).__name__}")


def hold_owners(
    folder: Path, samples: LabelledTables, tested: NDArray[np.int64], *, again: bool
) -> tuple[dict[str, Any], Path]:
    """Hold every owner's table in memory, the first one's with the labels, under the names of files in a folder.

    Returns `data.tables` and the name of the test keys. ``again``: the tested samples are trained on as well.
    """
    owners, labels_N, weights_N = samples
    first, tables = next(iter(owners)), dict[str, Any]()
    keys = owners[first].keys.take(pa.array(tested))
    for name, owner in owners.items():
        table = owner.table
        if name == first:
            table = table.append_column(LABEL, pa.array(labels_N))
            table = table if weights_N is None else table.append_column(WEIGHT, pa.array(weights_N))
        if again:
            copies = table.filter(pc.is_in(table.column(owner.key), value_set=keys))
            second = pc.binary_join_element_wise(AGAIN, copies.column(owner.key), "")
            table = pa.concat_tables([table, copies.set_column(table.column_names.index(owner.key), owner.key, second)])
        label = {"label": LABEL} if name == first else {}
        label |= {"weight": WEIGHT} if name == first and weights_N is not None else {}
        file = _hold(folder, name, table)
        tables[name] = {"file": str(file), "key": owner.key, "features": owner.features(), **label}
    names = pc.binary_join_element_wise(AGAIN, keys, "") if again else keys
    return tables, _hold(folder, "tested", pa.table({owners[first].key: names}))


def _hold(folder: Path, name: str, table: Any) -> Path:
    path = folder / f"{name}.parquet"
    hold_table(path, FrameTable(f"X: {name}", table))
    return path


def write_held(folder: Path) -> None:
    """Write the tables that are held under names in a folder: other processes can use the run as long as they lie."""
    for path, table in held_tables(folder).items():
        pq.write_table(table.table, path)


def labels_of(y: Any) -> NDArray[Any]:
    """Return labels [N]. Raises ValueError if there are none, or several per row."""
    if y is None:
        raise ConfigError("y: is missing; this estimator requires y to be passed, but the target y is None")
    # Not to_numpy(), which pyarrow's arrays refuse where they must copy.
    return column_or_1d(np.asarray(y) if hasattr(y, "to_numpy") else y, warn=True)


def places(keys: Column, names: Sequence[str]) -> NDArray[np.int64]:
    """Return, for every key [N], its index among ``names``."""
    return np.asarray(pc.index_in(keys, value_set=pa.array(names, pa.string()))).astype(np.int64)


def pack_run(folder: Path, run: Path) -> bytes:
    """Return the owners' tables and the files that the run needs to predict, as a ZIP file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for path, table in held_tables(folder).items():
            content = io.BytesIO()
            pq.write_table(table.table, content)
            file.writestr(path.name, content.getvalue())
        for path in sorted([*run.glob("*.yaml"), *run.glob("*.json*"), *(run / "checkpoints").rglob("*.*")]):
            if path.is_file():
                file.write(path, Path("run", path.relative_to(run)))
    return packed.getvalue()


def unpack_run(content: bytes, folder: Path) -> None:
    """Write a packed run's files into a folder, and hold its tables under names there."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        for name in file.namelist():
            if name.startswith("run/"):
                file.extract(name, folder)
            else:
                _hold(folder, Path(name).stem, pq.read_table(io.BytesIO(file.read(name))))


def forget_run(folder: Path) -> None:
    """Remove a folder, and release the tables that are held under names in it."""
    release_tables(folder)
    shutil.rmtree(folder, ignore_errors=True)
