"""Draw accuracy against bytes and multiply-accumulates: python -m scripts.lab.frontier.plot writes frontier.png.

A point is a method of a file: the mean over the seeds that all its methods have, with Student's 95 % interval of the
difference from the file's own runs in float32.
"""

import csv
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import ScalarFormatter
from scipy.stats import t

FOLDER = Path(__file__).parents[3] / "docs/results/frontier"
FILES = {
    "8 passes": ["rows.csv"],
    "24 passes": ["long.csv"],
    "72 passes": ["longer.csv", "frugal.csv", "fewer.csv"],
    "VGG16 of half the width, 30 passes": ["half.csv"],
}
"""Rows by protocol."""
WHOLE = "float32"
COLOURS = {
    f"{WHOLE}, exchanges": "black",
    "L as": "tab:brown",
    "pruned": "tab:red",
    "thin": "tab:blue",
    "sample pruning": "tab:green",
    "recipe": "tab:green",
    "exchanges of": "tab:pink",
    "rounds": "tab:purple",
    "exchanges": "tab:purple",
    "coded": "tab:orange",
    WHOLE: "black",
}
"""Colours of methods by the first of these words that their name has."""


FORMS = {(False, False): "o", (True, False): "^", (False, True): "s", (True, True): "D"}
"""Markers by whether samples are left out, and values are coded."""


def main() -> None:
    """Write the picture."""
    figure, rows = plt.subplots(len(FILES), 2, figsize=(12.4, 14.5), sharey="row", layout="constrained")
    for axes, (protocol, names) in zip(rows, FILES.items(), strict=True):
        for name in names:
            draw(axes, FOLDER / name, known=name != names[0])
        for axis, label in zip(
            axes, ("MB sent in training, both ways", "10⁹ multiply-accumulates of training"), strict=True
        ):
            axis.axhspan(-0.5, 0, color="grey", alpha=0.15)
            axis.set_xlabel(label)
        axes[0].set(xscale="log", xticks=[2, 5, 10, 20, 50, 100, 200, 500, 1000], ylabel="points from float32")
        axes[0].set_title(protocol, loc="left", fontsize=11)
        axes[0].xaxis.set_major_formatter(ScalarFormatter())
        axes[0].minorticks_off()
        axes[1].set_xlim(left=0)
        axes[1].legend(fontsize=9, loc="center left", bbox_to_anchor=(1.02, 0.5))
    forms = "triangles: sample pruning; squares: coded; diamonds: both; hollow: fresh seeds, 65 to 74"
    figure.suptitle(f"Grey: the margin of 0.5 points; intervals of single comparisons\n{forms}", fontsize=10)
    figure.savefig(FOLDER / "frontier.png", dpi=110)


def draw(axes: tuple[Axes, Axes], path: Path, known: bool) -> None:
    """Draw a file's methods into both axes, those in float32 unless they are known from another file."""
    accuracy, costs = read(path)
    whole = accuracy[WHOLE]
    for method, reached in accuracy.items():
        if method == WHOLE and known:
            continue
        lost = np.array([reached[seed] - whole[seed] for seed in reached])
        half = t.ppf(0.975, len(lost) - 1) * lost.std(ddof=1) / np.sqrt(len(lost)) if method != WHOLE else 0.0
        colour = next(colour for word, colour in COLOURS.items() if word in method)
        form = FORMS["sample pruning" in method or method == "recipe", "coded" in method or method == "recipe"]
        for axis, cost in zip(axes, np.mean(costs[method], axis=0), strict=True):
            axis.errorbar(
                cost, lost.mean(), half, fmt=form, color=colour, capsize=3, label=method, mfc="none" if known else None
            )


def read(path: Path) -> tuple[dict[str, dict[str, float]], dict[str, list[tuple[float, float]]]]:
    """Return accuracy in percent by method and seed, and costs by method, of the seeds that all methods have."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    of_method: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        of_method[row["method"]].add(row["seed"])
    # Some were run for their bytes alone, on few seeds.
    most = max(map(len, of_method.values()))
    kept = [method for method, seeds in of_method.items() if 2 * len(seeds) > most]
    common = set.intersection(*(of_method[method] for method in kept))
    accuracy: dict[str, dict[str, float]] = defaultdict(dict)
    costs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["method"] in kept and row["seed"] in common:
            accuracy[row["method"]][row["seed"]] = 100 * float(row["test_accuracy"])
            sent = int(row["uplink_bytes"]) + int(row["downlink_bytes"])
            costs[row["method"]].append((sent / 1e6, int(row["train_macs"]) / 1e9))
    return accuracy, costs


if __name__ == "__main__":
    main()
