"""Draw accuracy against multiply-accumulates: python -m scripts.lab.plot_frontier writes frontier.png.

A point is a method of a protocol: the mean over its seeds of the difference from the whole training of the same seed,
with Student's 95 % interval.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from scripts.lab.measures import MACS, Measure, measured, read_rows, relative_cost

RESULTS = Path(__file__).parents[2] / "docs/results"
PROTOCOLS = {"24 passes": "frontier/saved.csv", "72 passes": "frontier/saved_long.csv"}
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
    for axes, (protocol, rows) in zip(row, PROTOCOLS.items(), strict=True):
        draw(axes, rows)
        axes.axhspan(-0.5, 0, color="grey", alpha=0.15)
        axes.set(title=protocol, xlabel="multiply-accumulates, % of the whole training", xlim=(25, 105))
    row[0].set_ylabel("points from the whole training")
    figure.suptitle("Grey: the margin of 0.5 points; hollow: 4 bits, coded; 95 % intervals over seeds", fontsize=10)
    figure.savefig(RESULTS / "frontier/frontier.png", dpi=110)


def draw(axes: Axes, rows: str) -> None:
    """Draw a protocol's methods, each with its name, the best first and none over another's."""
    axes.plot(100, 0, "ko")
    axes.annotate(WHOLE, (100, 0), xytext=(0, -14), textcoords="offset points", ha="center", fontsize=9)
    methods = dict.fromkeys(row["method"] for row in read_rows(RESULTS / rows))
    measures = {
        method: Measure(
            rows=rows, kind="score", metric="test_accuracy", first={"method": method}, second={"method": WHOLE}
        )
        for method in methods
        if method != WHOLE
    }
    lost = {method: measured(measure, RESULTS) for method, measure in measures.items()}
    height = 0.0
    for method, effect in sorted(lost.items(), key=lambda each: -each[1].value):
        share, low = relative_cost(measures[method], RESULTS, MACS), effect.low
        assert share is not None, "the rows have costs"
        assert low is not None, "of two seeds at least"
        colour, fill = COLOURS[method.removesuffix(", coded")], "none" if "coded" in method else None
        place = (100 * share, effect.value)
        axes.errorbar(*place, effect.value - low, fmt="o", color=colour, capsize=3, mfc=fill)
        height = min(effect.value, height - 0.42)
        axes.annotate(method, place, (56, height), color=colour, fontsize=9, va="center", arrowprops=ARROW)


if __name__ == "__main__":
    main()
