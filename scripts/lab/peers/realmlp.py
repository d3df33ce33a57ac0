"""Score RealMLP-TD (package pytabkit) at its defaults on the development tables, the rows of one split as ours.

    python -m scripts.lab.peers.realmlp FOLDER OUT.csv [--tables NAME ...]

FOLDER is `resources/rdata/csv` of pydataset 0.2.0, unpacked. Tables, split and metrics are those of
`scripts.lab.table_defaults`, whose rows (docs/results/tables/development.jsonl) have ours, boosting and a linear model.
RealMLP sees all columns as one table; ours has them dealt to two owners.
"""
# pyright: basic, reportMissingImports=false
# pytabkit is only in the peer's environment.

import argparse
import warnings
from pathlib import Path

from scripts.lab.peers.environment import add_row, enter, rows_of

PACKAGES = ("pytabkit==1.7.3", "torch==2.13.0")
METRICS = ("rmse", "r2", "log_loss", "accuracy", "auc")


def main() -> None:
    """Score the tables that the rows lack, the smallest first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="tables of pydataset")
    parser.add_argument("out", type=Path, help="CSV file that gets a row a table")
    parser.add_argument("--tables", nargs="*", help="names (default: all)")
    given = parser.parse_args()
    enter("pytabkit", *PACKAGES)
    from scripts.lab.table_defaults import TABLES, read

    done = {row["table"] for row in rows_of(given.out)}
    left = [name for name in given.tables or TABLES if name not in done]
    for name in sorted(left, key=lambda name: len(read(given.folder, name)[1])):
        found: dict[str, float | str] = dict.fromkeys(METRICS, "")
        try:
            found |= {"refusal": "", **score(given.folder, name)}
        except ValueError as error:
            found |= {"refusal": str(error)}
        add_row(given.out, {"table": name, "split": 0, "model": "RealMLP-TD", "package": PACKAGES[0], **found})


def score(folder: Path, name: str) -> dict[str, float | str]:
    """Return the metrics of a table. Raises ValueError where the package refuses it."""
    import numpy as np
    import torch
    from pytabkit import RealMLP_TD_Classifier, RealMLP_TD_Regressor
    from sklearn.model_selection import train_test_split

    from scripts.lab.table_defaults import read, scores

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    features, labels, classes = read(folder, name)
    stratified = labels if classes else None
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=0, stratify=stratified)
    texts = [column for column in features if features[column].dtype == object]
    features = features.astype(dict.fromkeys(texts, "category"))
    kind = RealMLP_TD_Classifier if classes else RealMLP_TD_Regressor
    model = kind(random_state=0, device="cpu", n_threads=1)
    model.fit(features.iloc[train], labels[train])
    told = (model.predict_proba if classes else model.predict)(features.iloc[test])
    return {key: round(value, 5) for key, value in scores(labels[test], np.asarray(told), classes).items()}


if __name__ == "__main__":
    main()
