"""The estimators' defaults on the flights, with time and bytes: python -m scripts.lab.tables.large DIR OUT.csv SEED ...

DIR holds the tables of prepare_flights.py. Two owners, airline and weather, rows matched; one thread. Beside
`VerticalClassifier` without any argument but the seed, scikit-learn's boosting and logistic regression on the same rows
and columns. A row of OUT.csv is written as soon as it is known; those that are there are not computed again.
"""
# pyright: basic
# pandas and scikit-learn ship no stubs.

import csv
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import vfl
from scripts.lab.table_defaults import reference, scores
from scripts.lab.tables.by_hand import CATEGORIES, NO_FEATURES
from vfl.base.metrics import calibration_error

OWNERS = ("airline", "weather")
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "defaults, eight times as wide": {"models.feature.embedding_size": 64, "models.feature.width": 0.7},
}
"""Settings of `VerticalClassifier`; the second has the bytes of eight members."""
METHODS = (*VARIANTS, "boosting", "linear", "constant")
FIELDS: tuple[str, ...] = (
    "method",
    "seed",
    "auc",
    "log_loss",
    "calibration_error",
    "seconds",
    "cpu_seconds",
    "bytes",
    "macs",
)


def read(folder: Path) -> tuple[dict[str, pd.DataFrame], np.ndarray, np.ndarray]:
    """Return the owners' frames, whether each flight was late, and whether it is a test flight."""
    frames: dict[str, pd.DataFrame] = {}
    for owner in OWNERS:
        whole = pd.read_csv(folder / "matched" / f"{owner}.csv", na_values=["NA"], keep_default_na=True)
        frames[owner] = whole.drop(columns=[name for name in NO_FEATURES if name in whole.columns])
        for name in CATEGORIES[owner]:
            frames[owner][name] = frames[owner][name].map(lambda cell: f"c{cell}")
        if owner == "airline":
            tested = whole["flight"].isin(pd.read_csv(folder / "test_flights.csv")["flight"]).to_numpy()
            late = whole["late"].isin(["yes", True]).to_numpy().astype(np.int64)
    return frames, late, tested


def ours(
    settings: dict[str, Any], frames: dict[str, pd.DataFrame], y: np.ndarray, tested: np.ndarray, seed: int
) -> Any:
    """Return the probabilities of the test rows, bytes and multiply-accumulates."""
    model = vfl.VerticalClassifier(random_state=seed, settings={"threads": 1, **settings})
    model.fit({owner: frame[~tested].reset_index(drop=True) for owner, frame in frames.items()}, y[~tested])
    told = model.predict_proba({owner: frame[tested].reset_index(drop=True) for owner, frame in frames.items()})
    costs = model.run_.summary
    return told, costs["uplink_bytes"] + costs["downlink_bytes"], costs["train_macs"]


def computed(
    method: str, seed: int, frames: dict[str, pd.DataFrame], y: np.ndarray, tested: np.ndarray
) -> dict[str, Any]:
    """Return a row of the result."""
    wall, cpu = time.monotonic(), time.process_time()
    size, macs = "", ""
    if method in VARIANTS:
        told, size, macs = ours(VARIANTS[method], frames, y, tested, seed)
    else:
        joined: Any = pd.concat([frames[owner].add_prefix(f"{owner} ") for owner in OWNERS], axis=1)
        told = reference(method, joined[~tested], y[~tested], joined[tested], True, seed)
    spent = {"seconds": f"{time.monotonic() - wall:.1f}", "cpu_seconds": f"{time.process_time() - cpu:.1f}"}
    found = scores(y[tested], told, True)
    error = calibration_error(torch.from_numpy(told[:, 1]), torch.from_numpy(y[tested] == 1))
    return {
        "method": method,
        "seed": seed,
        "auc": f"{found['auc']:.6f}",
        "log_loss": f"{found['log_loss']:.6f}",
        "calibration_error": f"{error:.6f}",
        **spent,
        "bytes": size,
        "macs": macs,
    }


def main() -> None:
    """Compute the rows that are missing: of a seed one method after the other."""
    folder, file, *seeds = sys.argv[1:]
    out = Path(file)
    if not out.exists():
        out.write_text(",".join(FIELDS) + "\n")
    with out.open(newline="") as there:
        done = {(row["method"], int(row["seed"])) for row in csv.DictReader(there)}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    frames, y, tested = read(Path(folder))
    for seed in map(int, seeds):
        for method in METHODS:
            if (method, seed) not in done:
                row = computed(method, seed, frames, y, tested)
                with out.open("a", newline="") as rows:
                    csv.DictWriter(rows, FIELDS, lineterminator="\n").writerow(row)


if __name__ == "__main__":
    main()
