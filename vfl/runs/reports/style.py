"""The style of all diagrams.

Colours are Okabe and Ito's, which differ for all kinds of colour blindness; line styles and markers differ in grey.
"""
# pyright: reportUnknownMemberType=false
# matplotlib's signatures are partly untyped.

from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, GRID = "#111111", "#DDDDDD"
COLORS = (INK, "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Axes, across: str, up: str = "") -> None:
    """Label the axes and remove frame lines that distract."""
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(up, color=INK)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK)


def curve_style(position: int, points: int) -> dict[str, Any]:
    """Return the style of a curve of ``points`` points: about eight markers; a single point is a dot."""
    position %= len(COLORS)
    return {
        "color": COLORS[position],
        "linestyle": LINES[position],
        "marker": MARKERS[position],
        "markevery": max(1, points // 8),
        "markersize": 5,
        "linewidth": 1.6,
    }


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """Place the legend of one of the axes below all axes, so that it hides nothing."""
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        labelcolor=INK,
        handlelength=2.4,
        columnspacing=1.0,
        fontsize=9,
    )
