"""Where pruning pays: pretrained and pruned models against thin ones, on few rows (docs/results/pretrained).

    python -m scripts.lab.pretrained choice DATA --out OUT     rates of each arm, on seed 100
    python -m scripts.lab.pretrained report DATA --out OUT     the seeds 0 to 4, each arm at its chosen rate
    python -m scripts.lab.pretrained resnet18 DATA --out OUT   the same once, with torchvision's ResNet-18

DATA is an image folder of CIFAR-10. Each run is a row of rows.csv; a row that exists is skipped, and an interrupted
run resumes in OUT.

Declaration, committed before the first run; it becomes the page docs/results/pretrained/README.md with the rows.

Question. Does a pretrained model that is pruned at the start keep its accuracy on few rows, and does it beat a model
that is thin from the start?

Setting. CIFAR-10 in four quadrants, small CNN of width 0.5, labels at the server, cosine rate. The source run has
10,000 images of five classes, 15 rounds at rate 0.05. The target has 512 images (30 rounds) or 2,560 (15 rounds) of
the other five, and their 5,000 test images. The parties begin with the source's weights by
`models.parties.NAME.weights`; the head begins anew.

Arms, at equal rounds and exchanges unless the arm says otherwise: `pretrained` whole; `pruned_50`, `pruned_35`,
`pruned_20` and the same `refitted`, pruned in the first round to about 49, 36 and 20 % of the multiply-accumulates
(the rows have the counts); `thin` (width 0.33, 48 %) from scratch; `thin_longer` with twice the rounds;
`thin_pretrained`, the control for those who can afford it; `scratch`, whole.

Rates. 0.1, 0.05 and 0.02. Each arm and size takes the rate with the best accuracy on seed 100; the arms that keep 35
and 20 % take that of the same arm at 50 %, which saves half of the choice's time. Seeds 0 to 4 then run at that rate.

Endpoint. Accuracy on the test images after the last round. Differences are paired by seed, with Student's 95 %
interval over the seeds 0 to 4. If time ends the runs early, the seeds that are complete count, three at least.

Claims. First, `pruned_50` or `refitted_50` loses nothing against `pretrained`: the lower end is above -0.5 points.
Which of the two is tested is chosen on seed 100, by the mean of both sizes. Second, it beats `thin` by 2
points or more with an interval above 0, and beats `thin_longer`. Both must hold at 512 and at 2,560 rows.
`thin_pretrained` is reported beside them.

ResNet-18: `scratch`, `pretrained`, `pruned_50` and `refitted_50` at 512 rows and rate 0.02 (no choice of rates), seed
0 and, if time allows, 1 and 2. With fewer than three seeds it is told as an example. Its source run has 2,560 images:
this was changed when only `scratch` had a row, because a round of 10,000 took five minutes of a processor.
"""

import argparse
import csv
import functools
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from vfl.config import parse_config
from vfl.data.sources import image_folder
from vfl.predict.trained_run import open_federation
from vfl.runs.run import run_experiment
from vfl.runs.stored_run import Run
from vfl.runs.tensor_file import write_tensors

ROWS = Path("docs/results/pretrained/rows.csv")
HEADER = ("arm", "target_rows", "seed", "rate", "accuracy", "macs_per_sample", "train_macs", "uplink_bytes")
SOURCE_CLASSES = ("airplane", "automobile", "bird", "cat", "deer")
TARGET_CLASSES = ("dog", "frog", "horse", "ship", "truck")
SOURCE_ROWS, RESNET_SOURCE_ROWS = 10_000, 2_560
TARGETS = {512: 30, 2560: 15}
"""Rounds by the target's rows."""
WIDTH, THIN = 0.5, 0.33
"""Widths of the small CNN, and of one with 48 % of its multiply-accumulates."""
RATES = (0.1, 0.05, 0.02)
CHOICE_SEED, REPORT_SEEDS = 100, (0, 1, 2, 3, 4)


class Arm(NamedTuple):
    """How a target run begins."""

    width: float = WIDTH
    pretrained: bool = False
    alpha: float = 0.0
    refit: bool = False
    longer: int = 1
    """Factor of the rounds."""
    network: str = ""
    """Name of a torchvision model; empty for the small CNN."""


PRUNED = {50: 0.33, 35: 0.43, 20: 0.59}
"""Ratio alpha by the share of the multiply-accumulates that stays, in percent, about."""
ARMS = {
    "scratch": Arm(),
    "thin": Arm(THIN),
    "thin_longer": Arm(THIN, longer=2),
    "pretrained": Arm(pretrained=True),
    "thin_pretrained": Arm(THIN, pretrained=True),
    **{f"pruned_{share}": Arm(pretrained=True, alpha=alpha) for share, alpha in PRUNED.items()},
    **{f"refitted_{share}": Arm(pretrained=True, alpha=alpha, refit=True) for share, alpha in PRUNED.items()},
}
RESNET = {
    f"resnet18_{name}": arm._replace(network="resnet18")
    for name, arm in ARMS.items()
    if name in ("scratch", "pretrained", "pruned_50", "refitted_50")
}


def settings(root: Path, seed: int, rows: int, rounds: int, rate: float, arm: Arm) -> dict[str, Any]:
    """Return the sections that all runs share: four quadrants, an arm's model, labels at the server."""
    model: dict[str, Any] = {"kind": "cnn", "width": arm.width}
    if arm.network:
        model = {"kind": "torchvision", "options": {"name": arm.network}}
    return {
        "name": "pretrained",
        "seed": seed,
        "threads": 1,
        "data": {"dataset": {"kind": "image_folder", "root": str(root)}, "train_samples": rows},
        "models": {"feature": model | {"embedding_size": 64}},
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
        outcome = run_experiment(parse_config(sections), folder, resume=True, console=Console(quiet=True))
        if not outcome.finished:
            raise KeyboardInterrupt
    return Run(folder)


def source_weights(data: Path, out: Path, seed: int, arm: Arm) -> dict[str, Path]:
    """Return a file of weights for each party, of a run on the other classes."""
    folder = out / f"source-{arm.network or arm.width}-{seed}"
    root = link_classes(data, out / "source-classes", SOURCE_CLASSES)
    rows = RESNET_SOURCE_ROWS if arm.network else SOURCE_ROWS
    run = train(settings(root, seed, rows, 15, 0.05, arm), folder)
    files: dict[str, Path] = {}
    for party in open_federation(run, with_data=False).parties:
        files[party.name] = folder / f"{party.name}.weights.safetensors"
        write_tensors(files[party.name], party.model.state_dict())
    return files


def target_row(data: Path, out: Path, name: str, rows: int, seed: int, rate: float) -> tuple[object, ...]:
    """Run an arm and return its row."""
    arm = (ARMS | RESNET)[name]
    root = link_classes(data, out / "target-classes", TARGET_CLASSES)
    sections = settings(root, seed, rows, TARGETS[rows] * arm.longer, rate, arm)
    if arm.pretrained:
        feature, files = sections["models"]["feature"], source_weights(data, out, seed, arm)
        sections["models"]["parties"] = {party: feature | {"weights": str(path)} for party, path in files.items()}
    sections["lightweighting"] = {"alpha": arm.alpha, "beta": 0.0, "pruning": {"refit": arm.refit}}
    summary = train(sections, out / f"{name}-{rows}-{seed}-{rate}").summary
    parties = summary["parties"].values()
    macs = sum(party["macs_per_sample"] for party in parties)
    accuracy = summary["test_accuracy"]
    return name, rows, seed, rate, accuracy, macs, summary["train_macs"], summary["uplink_bytes"]


def read_rows() -> list[dict[str, str]]:
    """Return the rows that exist."""
    if not ROWS.exists():
        return []
    with ROWS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def chosen_rate(name: str, rows: int) -> float:
    """Return the rate at which an arm, at a size, was best on the seed of the choice."""
    tried = re.sub("(35|20)$", "50", name)
    accuracies = {
        float(row["rate"]): float(row["accuracy"])
        for row in read_rows()
        if (row["arm"], row["target_rows"], row["seed"]) == (tried, str(rows), str(CHOICE_SEED))
    }
    return max(accuracies, key=accuracies.__getitem__)


def planned_runs(stage: str) -> Iterator[tuple[str, int, int, float]]:
    """Yield arm, rows, seed and rate of each run of a stage, a seed at a time."""
    if stage == "resnet18":
        yield from ((name, 512, seed, 0.02) for seed, name in product((0, 1, 2), RESNET))
    elif stage == "choice":
        for name, rows, rate in product(ARMS, TARGETS, RATES):
            if not name.endswith(("35", "20")):
                yield name, rows, CHOICE_SEED, rate
    else:
        for seed, name, rows in product(REPORT_SEEDS, ARMS, TARGETS):
            yield name, rows, seed, chosen_rate(name, rows)


def main() -> None:
    """Append the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["choice", "report", "resnet18"])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    image_folder._decode = functools.cache(image_folder._decode)  # pyright: ignore[reportPrivateUsage]
    ROWS.parent.mkdir(exist_ok=True)
    if not ROWS.exists():
        ROWS.write_text(",".join(HEADER) + "\n", encoding="utf-8")
    there = {tuple(row[key] for key in HEADER[:4]) for row in read_rows()}
    for name, rows, seed, rate in planned_runs(arguments.stage):
        if (name, str(rows), str(seed), str(rate)) in there:
            continue
        row = target_row(arguments.data, arguments.out, name, rows, seed, rate)
        with ROWS.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)


if __name__ == "__main__":
    main()
