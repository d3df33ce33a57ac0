"""Test accuracy over the rounds and over simulated time: mean over the seeds, band from the lowest to the highest."""
# pyright: reportUnknownMemberType=false
# matplotlib's signatures are partly untyped.

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vfl.studies.horizontal.results import ACCURACY, CLOCK, Result

# Okabe and Ito's colours stay apart for all kinds of colour blindness; the line styles do in grey.
STYLES = (
    ("#000000", "-"),
    ("#E69F00", "--"),
    ("#56B4E9", "-."),
    ("#009E73", ":"),
    ("#0072B2", (0, (5, 1))),
    ("#D55E00", (0, (3, 1, 1, 1))),
    ("#CC79A7", (0, (1, 1))),
)


def draw_study(title: str, results: Sequence[Result], path: Path) -> None:
    """Draw one study's methods: left over the rounds, right over simulated seconds."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    methods = list(dict.fromkeys(result.method for result in results))
    for position, method in enumerate(methods):
        color, linestyle = STYLES[position % len(STYLES)]
        own = [result for result in results if result.method == method]
        rounds = np.array([row["round"] + 1 for row in own[0].rows])
        seconds = np.mean([[row[CLOCK] for row in result.rows] for result in own], axis=0)
        accuracy = 100 * np.array([[row[ACCURACY] for row in result.rows] for result in own])
        for axes, across in ((left, rounds), (right, seconds)):
            axes.plot(across, accuracy.mean(axis=0), color=color, linestyle=linestyle, label=method)
            if len(own) > 1:
                axes.fill_between(across, accuracy.min(axis=0), accuracy.max(axis=0), color=color, alpha=0.12, lw=0)
    label_axes(left, "round")
    label_axes(right, "simulated time (s)")
    left.set_ylabel("test accuracy (%)")
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=min(len(methods), 7), frameon=False
    )
    figure.suptitle(title)
    figure.savefig(path, dpi=130)


def label_axes(axes: Axes, across: str) -> None:
    """Name the x-axis and take away what distracts."""
    axes.set_xlabel(across)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
