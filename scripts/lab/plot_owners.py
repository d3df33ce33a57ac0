"""Draw accuracy against compute and bytes: python -m scripts.lab.plot_owners writes docs/saving.png.

A point is a method of docs/results/owners/study.csv: the mean over its seeds of the difference from the complete
training with one loss of the same seed, with Student's 95 % interval.
"""

from pathlib import Path

import matplotlib.pyplot as plt

from scripts.lab.measures import MACS, Measure, measured, relative_cost

DOCS = Path(__file__).parents[2] / "docs"
BYTES = ("uplink_bytes", "downlink_bytes")
SHOWN = {
    "auxiliary": "own classifiers",
    "thin, auxiliary": "thin, own classifiers",
    "coded, auxiliary": "4 bits, 18 of 24 rounds,\nown classifiers",
    "linear head at 0.2": "linear head",
    "thin": "thin",
    "alone": "alone, averaged",
}
"""Names in the picture, by method."""
COLOURS = dict(zip(SHOWN, ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"), strict=True))
"""Okabe and Ito's colours, which the colour-blind can tell apart."""


def main() -> None:
    """Write the picture."""
    figure, (compute, sent) = plt.subplots(1, 2, figsize=(10, 3.9), sharey=True, layout="constrained")
    for method, name in SHOWN.items():
        measure = Measure(
            rows="owners/study.csv",
            kind="score",
            metric="test_accuracy",
            first={"method": method},
            second={"method": "whole"},
        )
        effect = measured(measure, DOCS / "results")
        assert effect.low is not None, "of two seeds at least"
        for axes, costs in ((compute, MACS), (sent, BYTES)):
            share = relative_cost(measure, DOCS / "results", costs)
            assert share is not None, "the rows have costs"
            style = {"color": COLOURS[method], "capsize": 3, "fmt": "o", "label": name}
            axes.errorbar(100 * share, effect.value, effect.value - effect.low, **style)
    for axes in (compute, sent):
        axes.plot(100, 0, "ko", label="complete training, one loss")
        axes.axhline(0, color="lightgrey", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
    compute.set(xlabel="multiply-accumulates of the parties, %", ylabel="points of accuracy", xlim=(40, 105))
    sent.set(xlabel="bytes sent, %", xscale="log")
    sent.set_xticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    figure.legend(*sent.get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(DOCS / "saving.png", dpi=110)


if __name__ == "__main__":
    main()
