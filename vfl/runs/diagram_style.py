"""The style of all diagrams, and diagrams as files.

PNG is for documents, PDF and SVG for print, and an SVG within a page, light or dark as its reader has.

Colours are Okabe and Ito's, which differ for all kinds of colour blindness; line styles and markers differ in grey.
"""
# pyright: reportUnknownMemberType=false
# matplotlib's signatures are partly untyped.

import io
import re
from collections.abc import Mapping
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, GRID = "#111111", "#DDDDDD"
COLORS = (INK, "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# COLORS[0] is INK, whose variable it shares.
THEMED = {INK: "ink", GRID: "grid"} | {color: f"series-{index}" for index, color in enumerate(COLORS) if index}
"""Colours of the figures that become variables of the page's style sheet."""


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


def png(figure: Figure) -> bytes:
    """Return the figure on white."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white")
    return buffer.getvalue()


def for_print(figure: Figure) -> dict[str, bytes]:
    """Return the figure for a paper, by the ending of its file. Text stays text, and equal figures have equal bytes."""
    found: dict[str, bytes] = {}
    for ending, dated in (("pdf", "CreationDate"), ("svg", "Date")):
        buffer = io.BytesIO()
        with mpl.rc_context({"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "figure"}):
            figure.savefig(buffer, format=ending, transparent=True, metadata={dated: None, "Creator": None})
        found[ending] = buffer.getvalue()
    return found


def inline_svg(figure: Figure, name: str, description: str, hover: Mapping[str, str]) -> str:
    """Return an ``<svg>`` element as wide as its container; ``name`` makes its ids differ from other figures'.

    ``hover`` are tooltips of parts of the figure, by the part's gid.
    """
    buffer = io.StringIO()
    # Text stays text: it can be read out, searched, and has the page's font. The salt makes ids the same every time.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]  # XML's own header has no place within a page
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for part, said in hover.items():  # before ids get their prefix: a gid is an id here
        text = text.replace(f'<g id="{part}">', f'<g id="{part}"><title>{escape(said)}</title>')
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    for color, variable in THEMED.items():
        text = re.sub(re.escape(color), f"var(--{variable})", text, flags=re.IGNORECASE)
    opening, rest = text.split(">", 1)
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    return f'{opening} role="img" aria-label="{description}">{rest}'
