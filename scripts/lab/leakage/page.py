"""Draw what the rows say: python -m scripts.lab.leakage.page writes the tables of README.md and plot.png.

Means over seeds of what gradients tell after the last round, and the price: test AUC less that of the undefended run of
the same seed, with Student's 95 % interval. Of the slower attacks means with that interval, and of their controls.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import t

from vfl.runs.atomic import write_atomically

FOLDER = Path(__file__).parents[3] / "docs/results/leakage"
SLOW = {
    "inversion: labels right": ("gradient inversion", "labels right", "0"),
    "completion: accuracy gained": ("model completion", "accuracy gained", "40"),
    "clusters: labels right": ("embedding clusters", "labels right", "0"),
    "decoder: error left": ("embedding decoder", "error left", "500"),
}
"""Attack, measure and known rows by heading."""
SHOWN = (
    "undefended",
    "deeper head",
    "max_norm 1.0",
    "gaussian 1.0",
    "distance_correlation 1.0",
    "beta 0.8",
    "alpha 0.6",
)
"""Methods in the table of the slower attacks: one strength of each."""
IMAGES = {
    "labels shared: error left": ("shared", "embedding decoder", "500"),
    "labels at the server: error left": ("server", "embedding decoder", "500"),
    "directions: AUC": ("server", "gradient direction", "1"),
    "inversion: labels right": ("server", "gradient inversion", "0"),
    "accuracy": ("server", "accuracy", "0"),
}
"""Label protocol, attack and known rows by heading."""
LAST = "6"
"""The attacked round, counted from 1."""
CROWDED = 0.95
NORM, DIRECTION = "gradient norm", "gradient direction"


def main() -> None:
    """Write the table and the plot."""
    with (FOLDER / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["round"] == LAST]
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    score: dict[str, dict[str, float]] = defaultdict(dict)
    sent: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        found[row["method"], row["attack"]].append(float(row["found"]))
        score[row["method"]][row["seed"]] = float(row["score"])
        sent[row["method"]].append((float(row["uplink_bytes"]) + float(row["downlink_bytes"])) / 1e6)
    lines = ["| method | lengths: AUC | directions: AUC | test AUC | price | sent [MB] | seeds |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    for method, scores in score.items():
        lengths, directions = np.mean(found[method, NORM]), np.mean(found[method, DIRECTION])
        prices = [value - score["undefended"][seed] for seed, value in scores.items()]
        price = "" if method == "undefended" else f"{np.mean(prices):+.3f}±{half(prices):.3f}"
        reached = np.mean(list(scores.values()))
        lines.append(
            f"| {method} | {lengths:.3f} | {directions:.3f} | {reached:.3f} | {price} | {np.mean(sent[method]):.1f} | "
            f"{len(scores)} |"
        )
        told = lengths > CROWDED  # these points lie side by side
        axes.plot(reached, lengths, "o", color="grey" if told else None)
        if not told:
            place = float(reached), float(lengths)
            axes.annotate(
                method, place, xytext=(-6, 0), textcoords="offset points", fontsize=8, ha="right", va="center"
            )
    axes.axhline(0.5, color="grey", linewidth=1)
    axes.set_title("grey: undefended, deeper head, alpha, beta, distance_correlation", fontsize=9)
    axes.set(xlabel="test AUC of the joint model", ylabel="AUC by which lengths tell the rare class")
    figure.savefig(FOLDER / "plot.png", dpi=150)
    place_in_page("table", lines)
    place_in_page("slow table", slow_table())
    place_in_page("images", images_table())


def slow_table() -> list[str]:
    """Return the table of the slower attacks, their controls below."""
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    control: dict[tuple[str, ...], list[float]] = defaultdict(list)
    with (FOLDER / "table_slow.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            what = row["attack"], row["measure"], row["known"]
            found[row["method"], *what].append(float(row["found"]))
            control[what].append(float(row["control"]))
    lines = [f"| method | {' | '.join(SLOW)} |", f"|---|{'--:|' * len(SLOW)}"]
    for method in SHOWN:
        means = [found[method, *what] for what in SLOW.values()]
        lines.append(f"| {method} | {' | '.join(f'{np.mean(each):.3f}±{half(each):.3f}' for each in means)} |")
    controls = [f"{np.mean(control[what]):.3f}" for what in SLOW.values()]
    return [*lines, f"| control, mean of all | {' | '.join(controls)} |"]


def images_table() -> list[str]:
    """Return the table of CIFAR-10's quadrants: means over seeds, and the change from alpha 0, beta 0 of a seed.

    Shown are pairs with one ratio at 0, and that of the largest ones.
    """
    found: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    with (FOLDER / "cifar10.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            labels, _, alpha, _, beta = row["method"].split()
            ratios = f"{float(alpha):g} | {float(beta):g}"
            found[ratios, labels, row["attack"], row["known"]][row["seed"]] = float(row["found"])
            found[ratios, labels, "accuracy", "0"][row["seed"]] = float(row["score"])
    lines = [f"| alpha | beta | {' | '.join(IMAGES)} |", f"|--:|--:|{'--:|' * len(IMAGES)}"]
    pairs = sorted({ratios for ratios, *_ in found})
    for ratios in [each for each in pairs if "0" in each.split(" | ") or each == pairs[-1]]:
        cells: list[str] = []
        for what in IMAGES.values():
            seeds, plain = found[ratios, *what], found["0 | 0", *what]
            changes = [value - plain[seed] for seed, value in seeds.items()]
            change = "" if ratios == "0 | 0" else f" ({np.mean(changes):+.2f}±{half(changes):.2f})"
            cells.append(f"{np.mean(list(seeds.values())):.2f}{change}")
        lines.append(f"| {ratios} | {' | '.join(cells)} |")
    return lines


def place_in_page(name: str, lines: list[str]) -> None:
    """Replace what stands between the page's marks of a name."""
    page, begin, end = FOLDER / "README.md", f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    packed = "\n".join(lines).replace(" | ", "|")
    write_atomically(page, f"{before}{begin}\n\n{packed}\n\n{end}{after}")


def half(values: list[float]) -> float:
    """Return half the width of Student's 95 % interval of a mean."""
    return float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))


if __name__ == "__main__":
    sys.exit(main())
