"""Where pruning pays: pretrained and pruned models against thin ones, on few rows (docs/results/pretrained).

    python -m scripts.lab.pretrained DATA --out OUT [--seeds 0 1 2 3 4] [--rates 0.1 0.05 0.02]

DATA is an image folder of CIFAR-10. Each run is a row of rows.csv; a row that is there is skipped, and an interrupted
run resumes in OUT. Rates are chosen on the seeds 100 and 101, so run these first.

Declaration, committed before the first run; it becomes the page docs/results/pretrained/README.md with the rows.

Question. Does a pretrained model that is pruned at the start keep its accuracy on few rows, and does it beat a model
that is thin from the start?

Setting. CIFAR-10 in four quadrants, small CNN, labels at the server, cosine rate. The source run has 10,000 images of
five classes. The target has 512 images (30 rounds) or 2,560 (15 rounds) of the other five, and 2,500 test images. The
parties begin with the source's weights by `models.parties.NAME.weights`; the head begins anew.

Arms, at equal rounds and exchanges unless said: `pretrained` whole; `pruned_50`, `pruned_35`, `pruned_20` and the same
`refitted`, pruned in the first round (alpha = 1 - sqrt of the share of multiply-accumulates that stays; the rows have
the counts); `thin` (width 0.71) from scratch; `thin_longer` with twice the rounds; `thin_pretrained`, the control for
those who can afford it; `scratch`, whole.

Rates. 0.1, 0.05 and 0.02. Each arm and size takes the rate with the best mean on the seeds 100 and 101. Seeds 0 to 4
are then run at that rate, and no other rate of these seeds is reported.

Endpoint. Accuracy on the test images after the last round. Differences are paired by seed, with Student's 95 %
interval over the seeds 0 to 4.

Claims. First, `pruned_50` or `refitted_50` loses nothing against `pretrained`: the lower end is above -0.5 points.
Which
of the two is tested is chosen on the seeds 100 and 101. Second, it beats `thin` by 2 points or more with an interval
above 0, and beats `thin_longer`. Both must hold at 512 and at 2,560 rows. `thin_pretrained` is reported beside them.
"""

import argparse
import csv
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from vfl.config import parse_config
from vfl.predict.trained_run import open_federation
from vfl.runs.run import run_experiment
from vfl.runs.stored_run import Run
from vfl.runs.tensor_file import write_tensors

ROWS = Path("docs/results/pretrained/rows.csv")
HEADER = ("arm", "target_rows", "seed", "rate", "accuracy", "macs_per_sample", "train_macs", "uplink_bytes")
SOURCE_CLASSES = ("airplane", "automobile", "bird", "cat", "deer")
TARGET_CLASSES = ("dog", "frog", "horse", "ship", "truck")
SOURCE_ROWS = 10_000
TARGETS = {512: 30, 2560: 15}
"""Rounds by the target's rows."""
THIN = 0.71
"""Width of a model with half of the multiply-accumulates."""


class Arm(NamedTuple):
    """How a target run begins."""

    width: float = 1.0
    pretrained: bool = False
    alpha: float = 0.0
    refit: bool = False
    longer: int = 1
    """Factor of the rounds."""


PRUNED = {50: 0.29, 35: 0.41, 20: 0.55}
"""Ratio alpha, 1 - sqrt(share), by the share of the multiply-accumulates that stays, in percent."""
ARMS = {
    "scratch": Arm(),
    "thin": Arm(THIN),
    "thin_longer": Arm(THIN, longer=2),
    "pretrained": Arm(pretrained=True),
    "thin_pretrained": Arm(THIN, pretrained=True),
    **{f"pruned_{share}": Arm(pretrained=True, alpha=alpha) for share, alpha in PRUNED.items()},
    **{f"refitted_{share}": Arm(pretrained=True, alpha=alpha, refit=True) for share, alpha in PRUNED.items()},
}


def settings(root: Path, seed: int, rows: int, rounds: int, rate: float, width: float) -> dict[str, Any]:
    """Return the sections that all runs share: four quadrants, small CNN, labels at the server."""
    return {
        "name": "pretrained",
        "seed": seed,
        "threads": 1,
        "data": {"dataset": {"kind": "image_folder", "root": str(root)}, "train_samples": rows, "test_samples": 2500},
        "models": {"feature": {"kind": "cnn", "width": width, "embedding_size": 64}},
        "training": {
            "rounds": rounds,
            "batch_size": 64,
            "labels": "server",
            "optimizer": {"learning_rate": rate, "momentum": 0.9, "schedule": "cosine"},
        },
        "evaluation": {"every": rounds},
        "checkpoint": {"every": 5},
    }


def link_classes(data: Path, folder: Path, classes: tuple[str, ...]) -> Path:
    """Return an image folder with some classes of another one."""
    for part, name in product(("train", "test"), classes):
        link = folder / part / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to((data / part / name).absolute(), target_is_directory=True)
    return folder


def train(sections: dict[str, Any], folder: Path) -> Run:
    """Train, or go on, in a folder."""
    if not (folder / "summary.json").exists():
        run_experiment(parse_config(sections), folder, resume=True, console=Console(quiet=True))
    return Run(folder)


def source_weights(data: Path, out: Path, seed: int, width: float) -> dict[str, Path]:
    """Return a file of weights for each party, of a run on the other classes."""
    folder = out / f"source-{width}-{seed}"
    root = link_classes(data, out / "source-classes", SOURCE_CLASSES)
    run = train(settings(root, seed, SOURCE_ROWS, 15, 0.05, width), folder)
    files: dict[str, Path] = {}
    for party in open_federation(run, with_data=False).parties:
        files[party.name] = folder / f"{party.name}.weights.safetensors"
        write_tensors(files[party.name], party.model.state_dict())
    return files


def target_row(data: Path, out: Path, name: str, rows: int, seed: int, rate: float) -> tuple[object, ...]:
    """Run an arm and return its row."""
    arm = ARMS[name]
    root = link_classes(data, out / "target-classes", TARGET_CLASSES)
    sections = settings(root, seed, rows, TARGETS[rows] * arm.longer, rate, arm.width)
    if arm.pretrained:
        feature, files = sections["models"]["feature"], source_weights(data, out, seed, arm.width)
        sections["models"]["parties"] = {party: feature | {"weights": str(path)} for party, path in files.items()}
    sections["lightweighting"] = {"alpha": arm.alpha, "beta": 0.0, "pruning": {"refit": arm.refit}}
    summary = train(sections, out / f"{name}-{rows}-{seed}-{rate}").summary
    parties = summary["parties"].values()
    macs = sum(party["macs_per_sample"] for party in parties)
    accuracy = summary["test_accuracy"]
    return name, rows, seed, rate, accuracy, macs, summary["train_macs"], summary["uplink_bytes"]


def main() -> None:
    """Append the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.05, 0.02])
    parser.add_argument("--arms", nargs="+", default=[*ARMS], choices=[*ARMS])
    arguments = parser.parse_args()
    ROWS.parent.mkdir(exist_ok=True)
    if not ROWS.exists():
        ROWS.write_text(",".join(HEADER) + "\n", encoding="utf-8")
    with ROWS.open(encoding="utf-8", newline="") as file:
        there = {tuple(row[key] for key in HEADER[:4]) for row in csv.DictReader(file)}
    runs = product(arguments.arms, arguments.seeds, arguments.rates)
    for (name, seed, rate), rows in product(runs, TARGETS):
        if (name, str(rows), str(seed), str(rate)) in there:
            continue
        row = target_row(arguments.data, arguments.out, name, rows, seed, rate)
        with ROWS.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)


if __name__ == "__main__":
    main()
