"""Try one exchange of embeddings that owners learn alone, beside ordinary training: accuracy against bytes.

    python -m scripts.lab.one_exchange ROWS.csv --pydataset FOLDER --images FOLDER [--tables NAME ...]

`one_exchange.yaml` declares tables, seeds, methods, endpoint and margins. FOLDER of pydataset 0.2.0 is
`resources/rdata/csv`; that of images has train/CLASS and test/CLASS. A row for each table, seed and method is written
as soon as it is known; rows that are there are not computed again.

Shapes: N rows, B batch, D an embedding's width, C classes.
"""
# pyright: basic
# scikit-learn ships no stubs.

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torchvision.io import decode_image

import vfl
from scripts.lab.peers.environment import add_row, rows_of
from vfl.config.files import read_yaml
from vfl.models.convolution import small_cnn
from vfl.models.features import Features, ModelSpec

STUDY: Any = read_yaml(Path(__file__).with_suffix(".yaml"))
Owners = list[Tensor]
"""Features of each owner, [N, ...]."""
LEARNED: dict[tuple[str, int], list[nn.Module]] = {}
"""Encoders of the present table and seed."""


def main() -> None:
    """Train what the rows lack, all methods of a seed before the next seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="CSV file that gets a row a training")
    parser.add_argument("--pydataset", type=Path, help="tables of pydataset")
    parser.add_argument("--images", type=Path, help="CIFAR-10 as image folders")
    parser.add_argument("--tables", nargs="*", default=[*STUDY["tables"]], help="names (default: all)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for table in given.tables:
        for seed in STUDY["tables"][table]["seeds"]:
            done = {row["method"] for row in rows_of(given.rows) if (row["table"], row["seed"]) == (table, str(seed))}
            for method in STUDY["methods"]:
                if method not in done:
                    found = train(table, seed, method, given)
                    add_row(given.rows, {"table": table, "seed": seed, "method": method, **found})


def train(table: str, seed: int, method: str, given: Any) -> dict[str, float | int]:
    """Return accuracy and bytes of a training, and the numbers of its rows."""
    own = STUDY["tables"][table]
    features, labels, test = read(table, seed, own, given)
    is_train = np.ones(len(labels), bool)
    is_train[test] = False
    train_rows = torch.from_numpy(np.flatnonzero(is_train))
    torch.manual_seed(seed)
    encoders = [encoder(each, own) for each in features]
    width = len(features) * own["embedding"]
    hidden = STUDY["head"]["hidden"]
    head = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, int(labels.max()) + 1))
    sent = 0
    if method in ("one exchange", "untrained", "then one pass"):
        if method != "untrained":
            encoders = learned(table, seed, encoders, [each[train_rows] for each in features], own)
        train_head(head, embed(encoders, [each[train_rows] for each in features]), labels[train_rows], own)
        sent = len(train_rows) * width * 4
    if method in ("one pass", "ordinary", "then one pass"):
        passes = own["passes"] if method == "ordinary" else 1
        accuracy, more = ordinary(features, labels, test, encoders, head, own, passes, seed)
        sent += more
    else:
        told = head.eval()(embed(encoders, [each[test] for each in features])).argmax(1)
        accuracy = float((told == labels[test]).float().mean())
    return {"accuracy": round(accuracy, 5), "bytes": sent, "train": len(train_rows), "test": len(test)}


def ordinary(
    features: Owners,
    labels: Tensor,
    test: np.ndarray,
    encoders: Sequence[nn.Module],
    head: nn.Module,
    own: Any,
    passes: int,
    seed: int,
) -> tuple[float, int]:
    """Return accuracy and bytes of the framework's training from these models."""
    settings = {
        "seed": seed,
        "threads": 1,
        "training.rounds": passes,
        "training.batch_size": own["batch"],
        "training.optimizer": {"kind": "adam", "learning_rate": own["rate"], "schedule": "one_cycle"},
        "evaluation.every": passes,
        "checkpoint.every": passes,
    }
    parties = [vfl.Party(f"owner_{k}", features[k], model=encoders[k]) for k in range(len(features))]
    run = vfl.fit(parties, labels, head=head, test=test, settings=settings)
    return run.summary["test_accuracy"], run.summary["uplink_bytes"] + run.summary["downlink_bytes"]


def encoder(rows: Tensor, own: Any) -> nn.Module:
    """Return an owner's new feature model: a perceptron for columns, a small CNN for images."""
    if rows.dim() > 2:
        return small_cnn(ModelSpec(Features("images", tuple(rows.shape[1:])), own["embedding"], width=0.5))
    return nn.Sequential(nn.Linear(rows.shape[1], own["hidden"]), nn.ReLU(), nn.Linear(own["hidden"], own["embedding"]))


def learned(table: str, seed: int, encoders: Sequence[nn.Module], rows: Owners, own: Any) -> list[nn.Module]:
    """Return encoders that their owners trained alone; those of a table and seed are trained once."""
    if (table, seed) not in LEARNED:
        LEARNED.clear()
        for model, each in zip(encoders, rows, strict=True):
            learn_alone(model, each, own)
        LEARNED[table, seed] = [*encoders]
    return copy.deepcopy(LEARNED[table, seed])


def learn_alone(model: nn.Module, rows: Tensor, own: Any) -> None:
    """Train an encoder with a decoder of its own, which is thrown away, to give the rows back (squared error)."""
    flat, given = rows.flatten(1), STUDY["autoencoder"]
    decoder = nn.Sequential(nn.Linear(own["embedding"], 256), nn.ReLU(), nn.Linear(256, flat.shape[1]))
    both = nn.Sequential(model, decoder)
    steps(both, lambda batch: nn.functional.mse_loss(both(rows[batch]), flat[batch]), len(rows), given, own["batch"])
    model.eval()


def train_head(head: nn.Module, embeddings: Tensor, labels: Tensor, own: Any) -> None:
    """Train the head on embeddings [N, K D] that stay as they are."""
    given = {"passes": STUDY["head"]["passes"], "rate": own["rate"]}
    steps(
        head,
        lambda batch: nn.functional.cross_entropy(head(embeddings[batch]), labels[batch]),
        len(labels),
        given,
        own["batch"],
    )


def steps(model: nn.Module, loss: Any, count: int, given: Any, batch: int) -> None:
    """Take Adam's steps of one-cycle rates over passes of shuffled full batches."""
    optimizer = torch.optim.Adam(model.parameters(), given["rate"])
    each = count // batch
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, given["rate"], total_steps=given["passes"] * each)
    model.train()
    for _ in range(given["passes"]):
        for rows in torch.randperm(count)[: each * batch].view(each, batch):
            optimizer.zero_grad()
            loss(rows).backward()
            optimizer.step()
            cycle.step()


@torch.no_grad()
def embed(encoders: Sequence[nn.Module], features: Owners) -> Tensor:
    """Return what all owners send, [N, K D]."""
    parts = [
        torch.cat([model.eval()(batch) for batch in rows.split(512)])
        for model, rows in zip(encoders, features, strict=True)
    ]
    return torch.cat(parts, dim=1)


def read(table: str, seed: int, own: Any, given: Any) -> tuple[Owners, Tensor, np.ndarray]:
    """Return owners' features, standardised by the training rows, labels [N], and the rows of the test."""
    if table == "cifar10":
        return read_images(given.images, seed, own)
    if table == "car/Chile":
        from scripts.lab.table_defaults import read as read_table

        frame, y, _classes = read_table(given.pydataset, table)
        import pandas as pd

        parts = [frame.iloc[:, ::2], frame.iloc[:, 1::2]]
        owned = [
            pd.get_dummies(part, dummy_na=True).astype(float).fillna(part.mean(numeric_only=True)) for part in parts
        ]
        columns = [each.to_numpy() for each in owned]
    else:
        data: Any = {"breast cancer": load_breast_cancer, "digits": load_digits}[table]()
        y, values = data.target, data.data
        left = np.arange(values.shape[1]) % 8 < 4
        columns = [values[:, :10], values[:, 10:]] if table == "breast cancer" else [values[:, left], values[:, ~left]]
    train_rows, test = train_test_split(np.arange(len(y)), test_size=0.3, random_state=seed, stratify=y)
    features: Owners = []
    for values in columns:
        mean, spread = values[train_rows].mean(0), values[train_rows].std(0)
        features.append(torch.from_numpy((values - mean) / np.where(spread > 0, spread, 1)).float())
    return features, torch.from_numpy(np.asarray(y)).long(), np.sort(test)


def read_images(folder: Path, seed: int, own: Any) -> tuple[Owners, Tensor, np.ndarray]:
    """Return quadrants [N, 3, 16, 16] of images drawn by the seed, equally many of each class."""
    stream = np.random.default_rng(seed)
    images, labels = [], []
    for part, count in (("train", own["train"]), ("test", own["test"])):
        classes = sorted((folder / part).iterdir())
        for number, each in enumerate(classes):
            files = stream.permutation(sorted(str(file) for file in each.iterdir()))[: count // len(classes)]
            images += [decode_image(str(file)) for file in files]
            labels += [number] * len(files)
    values = torch.stack(images).float() / 255
    mean, spread = values[: own["train"]].mean((0, 2, 3), True), values[: own["train"]].std((0, 2, 3), keepdim=True)
    values = (values - mean) / spread
    quadrants = [values[:, :, top : top + 16, left : left + 16].contiguous() for top in (0, 16) for left in (0, 16)]
    return quadrants, torch.tensor(labels), np.arange(own["train"], len(labels))


if __name__ == "__main__":
    main()
