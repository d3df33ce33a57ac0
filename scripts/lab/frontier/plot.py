"""Draw accuracy against multiply-accumulates: python -m scripts.lab.frontier.plot writes frontier.png.

A point is a method of a protocol: the mean over its seeds of the difference from the whole training of the same seed,
with Student's 95 % interval.
"""

import csv
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from scipy.stats import t

FOLDER = Path(__file__).parents[3] / "docs/results/frontier"
PROTOCOLS = {"24 passes": "saved.csv", "72 passes": "saved_long.csv"}
WHOLE = "whole"
COLOURS = {
    "half": "tab:green",
    "half and thin": "tab:cyan",
    "thin": "tab:blue",
    "fewer": "tab:purple",
    "pruned": "tab:red",
}
"""Colours of methods, coded or not."""
ARROW = {"arrowstyle": "-", "color": "lightgrey"}


def main() -> None:
    """Write the picture."""
    figure, row = plt.subplots(1, len(PROTOCOLS), figsize=(11, 4.6), sharey=True, layout="constrained")
    for axes, (protocol, name) in zip(row, PROTOCOLS.items(), strict=True):
        draw(axes, FOLDER / name)
        axes.axhspan(-0.5, 0, color="grey", alpha=0.15)
        axes.set(title=protocol, xlabel="multiply-accumulates, % of the whole training", xlim=(25, 105))
    row[0].set_ylabel("points from the whole training")
    figure.suptitle("Grey: the margin of 0.5 points; hollow: 4 bits, coded; 95 % intervals over seeds", fontsize=10)
    figure.savefig(FOLDER / "frontier.png", dpi=110)


def draw(axes: Axes, path: Path) -> None:
    """Draw a protocol's methods, each with its name, the best first and none over another's."""
    accuracy, cost = read(path)
    axes.plot(100, 0, "ko")
    axes.annotate(WHOLE, (100, 0), xytext=(0, -14), textcoords="offset points", ha="center", fontsize=9)
    lost = {
        method: np.array([each - accuracy[WHOLE][seed] for seed, each in of_seed.items()])
        for method, of_seed in accuracy.items()
        if method != WHOLE
    }
    height = 0.0
    for method, points in sorted(lost.items(), key=lambda each: -each[1].mean()):
        half = t.ppf(0.975, len(points) - 1) * points.std(ddof=1) / np.sqrt(len(points))
        share, mean = 100 * cost[method] / cost[WHOLE], points.mean()
        colour, fill = COLOURS[method.removesuffix(", coded")], "none" if "coded" in method else None
        axes.errorbar(share, mean, half, fmt="o", color=colour, capsize=3, mfc=fill)
        height = min(mean, height - 0.42)
        axes.annotate(method, (share, mean), (56, height), color=colour, fontsize=9, va="center", arrowprops=ARROW)


def read(path: Path) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Return accuracy in percent by method and seed, and multiply-accumulates by method."""
    accuracy: dict[str, dict[str, float]] = {}
    cost: dict[str, float] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            accuracy.setdefault(row["method"], {})[row["seed"]] = 100 * float(row["test_accuracy"])
            cost[row["method"]] = float(row["train_macs"])
    return accuracy, cost


if __name__ == "__main__":
    main()
