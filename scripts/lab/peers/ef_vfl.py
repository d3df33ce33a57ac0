"""Run EF-VFL's MNIST setting, by its authors' code and by ours: test accuracy over uplink bytes.

    python -m scripts.lab.peers.ef_vfl theirs MNIST OUT.csv --code FOLDER
    python -m scripts.lab.peers.ef_vfl ours MNIST OUT.csv [--seeds 0 1 2 3 4] [--methods NAME ...]

FOLDER is a checkout of github.com/Valdeira/EF-VFL (commit 02fb393, MIT), MNIST has the four `*-ubyte` files. As in its
`configs/mnist_fullbatch`: 60,000 rows full batch, four quadrants of 196 pixels, linear and sigmoid to 16 numbers, their
mean, linear to 10, plain SGD at rate 4, 100 epochs, seeds 0 to 4; the test is all 10,000 images. SVFL sends everything,
C-VFL compresses, EF-VFL compresses with error feedback.

Bytes of theirs: `bytes_told` is their own count, which sends top-k without saying which entries; `bytes` adds 20 bits
for each kept entry, which tell one of 960,000 places. Ours are the frames sent; it has the labels at the server, which
returns a gradient at the embedding as it was sent; theirs shares them.
"""
# pyright: basic, reportMissingImports=false
# pytorch_lightning is only in the peer's environment, and the peer's modules only in its checkout.

import argparse
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vfl
from scripts.lab.peers.environment import ROOT, add_row, enter, rows_of
from scripts.lab.peers.mnist import read_mnist
from vfl.api.fit import ObjectsRun

PACKAGES = ("pytorch-lightning==2.4.0", "torchmetrics==1.4.2", "torch==2.13.0", "setuptools<81")
SEEDS, EPOCHS, ROWS, WIDTH = range(5), 100, 60_000, 16
COMPRESSORS = [("topk", share) for share in (0.1, 0.01, 0.001)] + [("qsgd", bits) for bits in (4, 2, 1)]
OURS: dict[str, dict[str, Any]] = {
    "float32": {"error_feedback": False},
    "4 bits coded, error feedback": {"wire": {"bits": 4, "coding": "entropy"}},
    "2 bits coded, error feedback": {"wire": {"bits": 2, "coding": "entropy"}},
    "top-k 0.01, 4 bits coded, error feedback": {"wire": {"bits": 4, "coding": "entropy"}, "beta": 0.99},
    "top-k 0.002, 4 bits coded, error feedback": {"wire": {"bits": 4, "coding": "entropy"}, "beta": 0.998},
    "top-k 0.001, 4 bits coded, error feedback": {"wire": {"bits": 4, "coding": "entropy"}, "beta": 0.999},
}
"""Forms of the embeddings, by name; those without a word about it have error feedback."""


def main() -> None:
    """Train what the rows lack, all methods of a seed before the next seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("theirs", "ours"))
    parser.add_argument("mnist", type=Path, help="folder of the files of MNIST")
    parser.add_argument("out", type=Path, help="CSV file that gets a row a training")
    parser.add_argument("--code", type=Path, help="checkout of EF-VFL")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS, help="seeds (default: 0 to 4)")
    parser.add_argument("--methods", nargs="*", help="names of rows (default: all of the side)")
    given = parser.parse_args()
    methods: dict[str, Any] = {"SVFL": (None, None, None)}
    for name, kind in (("EF-VFL", "ef"), ("C-VFL", "direct")):
        methods |= {f"{name} {kept} {amount:g}": (kind, kept, amount) for kept, amount in COMPRESSORS}
    if given.side == "theirs":
        enter("efvfl", *PACKAGES)
        # Their folder models is no package, so ours of this name would be taken in its place.
        sys.path[:] = [str(given.code), *(each for each in sys.path if Path(each).resolve() != ROOT)]
    else:
        methods = {f"ours, {name}": form for name, form in OURS.items()}
    methods = {name: each for name, each in methods.items() if name in (given.methods or methods)}
    warnings.simplefilter("ignore")
    train, test = read_mnist(given.mnist, "train"), read_mnist(given.mnist, "t10k")
    for seed in given.seeds:
        for name, method in methods.items():
            if (name, str(seed)) not in {(row["method"], row["seed"]) for row in rows_of(given.out)}:
                found = (
                    theirs(train, test, seed, *method) if given.side == "theirs" else ours(train, test, seed, method)
                )
                add_row(given.out, {"method": name, "seed": seed, **found})


def theirs(train: Any, test: Any, seed: int, kind: str | None, compressor: str | None, amount: Any) -> dict[str, Any]:
    """Return accuracy and bytes of their model, trained by their Lightning module."""
    import pytorch_lightning as lightning

    torch.set_num_threads(1)
    lightning.seed_everything(seed, verbose=False)
    shape: Any = {"input_size": 784, "num_clients": 4, "cut_size": WIDTH, "aggregation_mechanism": "mean"}
    rates: Any = {"lr": 4.0, "momentum": 0.0, "weight_decay": 0.0, "optimizer": "sgd"}
    cycle: Any = {"eta_min_ratio": None, "scheduler": None, "num_epochs": EPOCHS}
    wire: Any = {"compressor": compressor, "compression_parameter": amount, "compression_type": kind}
    size: Any = {"num_classes": 10, "private_labels": False, "num_samples": ROWS, "batch_size": ROWS}
    model = import_module("models.mnist_model").ShallowSplitNN(
        **shape, **rates, **cycle, **wire, **size, compute_grad_sqd_norm=False
    )
    quiet: Any = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", enable_model_summary=False, **quiet)
    batches: Any = [(*train, torch.arange(ROWS))]
    trainer.fit(model, torch.utils.data.DataLoader(batches, batch_size=None))
    model.eval()
    with torch.no_grad():
        accuracy = float((model(test[0]).argmax(1) == test[1]).float().mean())
    told = model.n_mbytes * 1e6
    indices = 20 / 8 * EPOCHS * 4 * int(ROWS * WIDTH * amount) if compressor == "topk" else 0
    return {"accuracy": round(accuracy, 5), "bytes_told": round(told), "bytes": round(told + indices)}


class MeanHead(nn.Module):
    """A linear classifier of the mean of the parties' embeddings, which come side by side, each of one width."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.width, self.classes = width, nn.Linear(width, classes)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the outputs [B, C] of embeddings [B, K D]."""
        return self.classes(embeddings.unflatten(1, (-1, self.width)).mean(1))


def ours(train: Any, test: Any, seed: int, form: Any) -> dict[str, Any]:
    """Return accuracy and uplink bytes of the same models in the framework."""
    settings = {
        "lightweighting.error_feedback": form.get("error_feedback", True),
        "lightweighting.beta": form.get("beta", 0.0),
        "wire": form.get("wire", {}),
    }
    summary = fit_ours(train, test, seed, settings).summary
    sent = summary["uplink_bytes"]
    return {"accuracy": round(summary["test_accuracy"], 5), "bytes_told": sent, "bytes": sent}


def make_owners(images: torch.Tensor) -> list[vfl.Party]:
    """Return the owners of the four quadrants of images [N, 1, 28, 28]."""
    owners: list[vfl.Party] = []
    for top in (0, 14):
        for left in (0, 14):
            quadrant = images[:, 0, top : top + 14, left : left + 14].flatten(1)
            model = nn.Sequential(nn.Linear(196, WIDTH), nn.Sigmoid())
            owners.append(vfl.Party(f"quadrant_{len(owners) + 1}", quadrant, model=model))
    return owners


def fit_owners(
    owners: Sequence[vfl.Party], labels: torch.Tensor, head: nn.Module, seed: int, further: dict[str, Any]
) -> ObjectsRun:
    """Train owners and a head on the setting's training rows; ``further`` settings override its own."""
    settings: Any = {
        "seed": seed,
        "threads": 1,
        "training.batch_size": ROWS,
        "training.rounds": EPOCHS,
        "training.optimizer": {"learning_rate": 4.0, "momentum": 0.0, "weight_decay": 0.0},
        "evaluation.every": EPOCHS,
        "checkpoint.every": EPOCHS,
        **further,
    }
    return vfl.fit(owners, labels.numpy(), head=head, test=range(ROWS, len(labels)), settings=settings)


def fit_ours(train: Any, test: Any, seed: int, further: dict[str, Any]) -> vfl.Run:
    """Train the same models in the framework, fused by the mean in an own head."""
    torch.manual_seed(seed)
    owners = make_owners(torch.cat([train[0], test[0]]))
    return fit_owners(owners, torch.cat([train[1], test[1]]), MeanHead(WIDTH, 10), seed, further)


if __name__ == "__main__":
    main()
