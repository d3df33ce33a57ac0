"""Figures of the reasons in a run's ``predictions.csv``, if ``lvfl predict RUN --reasons`` has written them.

Shapes: N samples, B bars.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Signatures of matplotlib and numpy are partly untyped.

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vfl.reports.figures import Drawing, new_axes
from vfl.reports.styles import HATCHES
from vfl.runs.diagram_style import COLORS, INK

MOST_BARS = 15
"""Most columns of a figure, those that moved most."""
WITHOUT = "without_owners"
"""Heading before the owners."""
Floats = npt.NDArray[np.float64]


class ToldReasons(NamedTuple):
    """What owners and columns moved."""

    owners: tuple[str, ...]
    columns: tuple[str, ...]
    """``OWNER.COLUMN``; of owners that disclosed amounts."""
    moved_NB: Floats
    """Amounts of the owners, then of the columns; NaN where an owner has no row."""
    unit: str
    """Of the amounts."""
    first: str
    """Name of the first sample."""


def reason_drawings(path: Path) -> list[Drawing]:
    """Return the amounts of the first row and their mean sizes over all rows; none without reasons."""
    told = read_reasons(path) if path.exists() else None
    if told is None:
        return []
    names, moved_NB = (*told.owners, *told.columns), told.moved_NB
    present_NB = ~np.isnan(moved_NB)
    mean_B = np.where(present_NB, np.abs(moved_NB), 0).sum(axis=0) / np.maximum(present_NB.sum(axis=0), 1)
    caption = "Of predictions.csv, as lvfl predict --reasons wrote it."
    average = f"{caption} Sizes of what each moved, up or down, mean over rows in which the owner has one."
    one = f"{caption} Its first row, {told.first}: bars to the left lowered the score, those to the right raised it."
    return [
        _draw("reasons", "What moved scores, on average", average, f"Mean size, {told.unit}", told, names, mean_B),
        _draw("reasons_row", "What moved one score", one, f"Moved, {told.unit}", told, names, moved_NB[0]),
    ]


def read_reasons(path: Path) -> ToldReasons | None:
    """Read the table; None if it has no reasons or no row."""
    with path.open(newline="", encoding="utf-8") as file:
        heading, *rows = csv.reader(file)
    if WITHOUT not in heading or not rows:
        return None
    owners: list[str] = []
    columns: list[str] = []
    for name in heading[heading.index(WITHOUT) + 1 :]:
        if name.startswith(("rank_", "reference_", "reason_")):
            break
        (columns if any(name.startswith(f"{owner}.") for owner in owners) else owners).append(name)
    start = heading.index(WITHOUT) + 1
    cells = [row[start : start + len(owners) + len(columns)] for row in rows]
    moved_NB = np.array([[float(cell) if cell else math.nan for cell in row] for row in cells])
    unit = "log odds" if "log_odds" in heading else "the value's unit"
    return ToldReasons(tuple(owners), tuple(columns), moved_NB, unit, rows[0][0])


def _draw(
    name: str, title: str, caption: str, across: str, told: ToldReasons, names: Sequence[str], moved_B: Floats
) -> Drawing:
    """Draw the owners' bars, then those of the columns that moved most; an owner has one colour and one hatch."""
    count = len(told.owners)
    order = sorted(range(count, len(names)), key=lambda place: -abs(np.nan_to_num(moved_B[place])))
    shown = [*range(count), *order[:MOST_BARS]]
    figure, axes = new_axes(across, "")
    figure.set_figheight(1.2 + 0.22 * len(shown))
    for row, place in enumerate(shown):
        owner = (
            place
            if place < count
            else max(
                (each for each in range(count) if names[place].startswith(f"{told.owners[each]}.")),
                key=lambda each: len(told.owners[each]),
            )
        )
        axes.barh(
            row,
            np.nan_to_num(moved_B[place]),
            color=COLORS[owner % len(COLORS)],
            hatch=HATCHES[owner % len(HATCHES)],
            edgecolor=INK,
            linewidth=0.4,
        )
    axes.axvline(0, color=INK, linewidth=0.8)
    if len(shown) > count:
        axes.axhline(count - 0.5, color=INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(shown)), [names[place] for place in shown])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    left_out = len(names) - len(shown)
    return Drawing(
        name, title, f"{caption} {left_out} columns that moved less are left out." if left_out else caption, figure
    )
