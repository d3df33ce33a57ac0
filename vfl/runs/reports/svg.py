"""Figures as files: PNG for documents, and SVG for a page whose colours follow the reader's light or dark setting."""
# pyright: reportUnknownMemberType=false
# matplotlib's signatures are partly untyped.

import io
import re
from collections.abc import Mapping
from html import escape

import matplotlib as mpl
from matplotlib.figure import Figure

from vfl.runs.reports.style import COLORS, GRID, INK

# COLORS[0] is INK, whose variable it shares.
THEMED = {INK: "ink", GRID: "grid"} | {color: f"series-{index}" for index, color in enumerate(COLORS) if index}
"""Colours of the figures that become variables of the page's style sheet."""


def png(figure: Figure) -> bytes:
    """Return the figure on white."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white")
    return buffer.getvalue()


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
