"""Try defaults for tables on development tables of the package pydataset, beside boosting and a linear model.

    python -m scripts.lab.table_defaults FOLDER ROWS.jsonl

FOLDER is `resources/rdata/csv` of pydataset 0.2.0, unpacked. Each table's columns are dealt to two owners in turn; 80 %
of the rows train, the same for all models. A row of the result is a table, a split and a model; rows that are there are
not computed again. `TABLES` are none of those by which the present defaults were chosen.
"""
# pyright: basic
# pandas and scikit-learn ship no stubs.

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize_scalar
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, log_loss, r2_score, roc_auc_score, root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import vfl

TABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "Ecdat/Housing": ("amount", "price", ()),
    "MASS/Boston": ("amount", "medv", ()),
    "Ecdat/Computers": ("amount", "price", ()),
    "car/SLID": ("amount", "wages", ()),
    "Ecdat/Star": ("amount", "tmathssk", ("treadssk",)),
    "robustbase/NOxEmissions": ("amount", "LNOx", ()),
    "Ecdat/Participation": ("class", "lfp", ()),
    "Ecdat/Hdma": ("class", "deny", ()),
    "Ecdat/Mode": ("class", "choice", ()),
    "Zelig/turnout": ("class", "vote", ()),
    "COUNT/titanic": ("class", "survived", ()),
    "car/Chile": ("class", "vote", ()),
    "survival/nwtco": ("class", "rel", ("seqno", "edrel")),
    "Zelig/mid": ("class", "conflict", ()),
    "Ecdat/Benefits": ("class", "ui", ()),
}
"""Task, label, and columns left out, by table; a table's first column numbers its rows."""
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "quantiles": {"data.numbers": "quantiles"},
    "width 1, no dropout": {"models.feature.width": 1.0, "models.feature.dropout": 0.0},
    "quantiles, width 1, decay 0.03": {
        "data.numbers": "quantiles",
        "models.feature.width": 1.0,
        "training.optimizer.weight_decay": 0.03,
    },
    "decay 1": {"training.optimizer.weight_decay": 1.0},
    "linear head": {"models.head.hidden": []},
    "steps 300": {"training.steps_per_round": 30},
    "dropout 0.5": {"models.feature.dropout": 0.5},
}
TEMPERED = ("defaults", "steps 300")
"""Variants that are also tried with a temperature, found on a fifth of the training rows by a model of the others."""
SPLITS = 3
REFERENCES = ("constant", "boosting", "linear")


def read(folder: Path, name: str) -> tuple[pd.DataFrame, np.ndarray, bool]:
    """Return features, labels and whether they are classes."""
    kind, label, out = TABLES[name]
    frame = pd.read_csv(folder / f"{name}.csv").iloc[:, 1:]
    frame = frame[frame[label].notna()].reset_index(drop=True)
    features = frame.drop(columns=[label, *out])
    for column in features.columns:
        if not pd.api.types.is_numeric_dtype(features[column]):
            features[column] = features[column].map(lambda cell: np.nan if cell != cell else f"c {cell}")
    labels = np.unique(frame[label].astype(str), return_inverse=True)[1] if kind == "class" else frame[label].to_numpy()
    return features, labels if kind == "class" else labels.astype(float), kind == "class"


def scores(truth: np.ndarray, told: np.ndarray, classes: bool) -> dict[str, float]:
    """Return the metrics of probabilities [M, C], or of values [M]."""
    if not classes:
        return {"rmse": float(root_mean_squared_error(truth, told)), "r2": float(r2_score(truth, told))}
    found = {"log_loss": float(log_loss(truth, told, labels=range(told.shape[1])))}
    found["accuracy"] = float(accuracy_score(truth, told.argmax(1)))
    return found | ({"auc": float(roc_auc_score(truth, told[:, 1]))} if told.shape[1] == 2 else {})


def reference(
    name: str, train: pd.DataFrame, y: np.ndarray, test: pd.DataFrame, classes: bool, seed: int = 0
) -> np.ndarray:
    """Return the predictions of a model of scikit-learn, or of the class shares or the mean."""
    if name == "constant":
        return np.tile(np.bincount(y) / len(y), (len(test), 1)) if classes else np.full(len(test), y.mean())
    if name == "boosting":
        kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
        texts = train.select_dtypes(exclude="number").columns
        known = {column: pd.CategoricalDtype(sorted(train[column].dropna().unique())) for column in texts}
        own, new = (each.astype(known) for each in (train, test))
        model: Any = kind(random_state=seed, categorical_features="from_dtype").fit(own, y)
        return model.predict_proba(new) if classes else model.predict(new)
    numbers, texts = make_column_selector(dtype_include="number"), make_column_selector(dtype_exclude="number")
    prepared = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore"), texts),
    )
    model = make_pipeline(prepared, LogisticRegression(max_iter=2000) if classes else RidgeCV(np.logspace(-3, 3, 13)))
    model.fit(train, y)
    return model.predict_proba(test) if classes else model.predict(test)


def ours(settings: dict[str, Any], train: pd.DataFrame, y: np.ndarray, test: pd.DataFrame, classes: bool) -> np.ndarray:
    """Return the predictions of two owners' model."""
    kind = vfl.VerticalClassifier if classes else vfl.VerticalRegressor
    dealt = {"first": train.columns[::2], "second": train.columns[1::2]}
    model = kind(random_state=0, settings={"threads": 1, **settings})
    model.fit({owner: train[names] for owner, names in dealt.items()}, y)
    given = {owner: test[names] for owner, names in dealt.items()}
    return model.predict_proba(given) if isinstance(model, vfl.VerticalClassifier) else model.predict(given)


def temperature(told: np.ndarray, truth: np.ndarray) -> float:
    """Return the power of the probabilities [M, C] that minimises their log loss."""
    logs = np.log(told.clip(1e-12))
    found = minimize_scalar(
        lambda power: log_loss(truth, sharpened(logs, power), labels=range(told.shape[1])),
        bounds=(0.05, 3),
        method="bounded",
    )
    return float(found.x)


def sharpened(logs: np.ndarray, power: float) -> np.ndarray:
    """Return probabilities [M, C] to a power, summing to 1."""
    raised = np.exp(power * (logs - logs.max(axis=1, keepdims=True)))
    return raised / raised.sum(axis=1, keepdims=True)


def main() -> None:
    """Compute the rows that are missing: of a split the references first, then one variant after the other."""
    folder, file = map(Path, sys.argv[1:3])
    there = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(row["table"], row["split"], row["model"]) for row in there}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for split in range(SPLITS):
        for model in (*REFERENCES, *VARIANTS):
            for name in TABLES:
                if (name, split, model) not in done:
                    for row in compute(folder, name, split, model):
                        with file.open("a") as out:
                            out.write(json.dumps(row) + "\n")


def compute(folder: Path, name: str, split: int, model: str) -> list[dict[str, Any]]:
    """Return the row of a model, and the one of its tempered form if there is one."""
    features, labels, classes = read(folder, name)

    def halves(labels_N: np.ndarray, seed: int) -> Any:
        stratified = labels_N if classes else None
        return train_test_split(np.arange(len(labels_N)), test_size=0.2, random_state=seed, stratify=stratified)

    rows = halves(labels, split)
    (train, test), (y, truth) = (features.iloc[each] for each in rows), (labels[each] for each in rows)
    began = time.monotonic()
    given = train, y, test, classes
    told = {model: reference(model, *given) if model in REFERENCES else ours(VARIANTS[model], *given)}
    if classes and model in TEMPERED:
        own, held = halves(y, 0)
        power = temperature(ours(VARIANTS[model], train.iloc[own], y[own], train.iloc[held], True), y[held])
        told[f"{model}, tempered"] = sharpened(np.log(told[model].clip(1e-12)), power)
    seconds = round(time.monotonic() - began, 1)
    return [
        {"table": name, "split": split, "model": each, "rows": len(labels), "seconds": seconds}
        | {metric: round(value, 5) for metric, value in scores(truth, found, classes).items()}
        for each, found in told.items()
    ]


if __name__ == "__main__":
    main()
