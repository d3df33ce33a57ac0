"""Panels of curves: mean over the seeds, band from the lowest to the highest."""
# pyright: reportUnknownMemberType=false
# matplotlib's signatures are partly untyped.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scripts.lab.studies.runs import ACCURACY, StudyResult
from vfl.runs.diagram_style import COLORS, curve_style, dress, legend_below, new_figure

Curve = tuple[Sequence[float], Sequence[float]]
"""x ascending, y."""
GRID = 200
LONGEST_LEGEND = 7


@dataclass(frozen=True)
class Panel:
    """One diagram: a curve per seed of every method."""

    title: str
    across: str
    up: str
    curves: Mapping[str, Sequence[Curve]]
    marks: Sequence[float] = ()
    """Positions of thin vertical lines."""
    mark_label: str = ""
    steps: bool = False
    """Draw values as steps, constant until the next one."""


def curves_of(
    results: Sequence[StudyResult], metric: str = ACCURACY, across: str = "round", scale: float = 1.0
) -> dict[str, list[Curve]]:
    """Return a curve per seed by method, over the evaluated rounds."""
    curves: dict[str, list[Curve]] = {}
    for result in results:
        rows = [row for row in result.evaluated if metric in row]
        curve = [row[across] for row in rows], [scale * row[metric] for row in rows]
        curves.setdefault(result.method, []).append(curve)
    return curves


def draw_panels(panels: Sequence[Panel], path: Path, title: str = "") -> None:
    """Draw panels side by side, two to a row, with one legend."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(5.5 * columns, 3.6 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False)
    places = list(dict.fromkeys(method for panel in panels for method in panel.curves))
    for panel, axes in zip(panels, grid.flat, strict=False):
        for method, curves in panel.curves.items():
            position = places.index(method)  # one style in all panels, also where one lacks a method
            across, values = _on_one_grid(curves, steps=panel.steps)
            drawstyle = "steps-post" if panel.steps else "default"
            style = curve_style(position, len(across))
            axes.plot(across, values.mean(axis=0), drawstyle=drawstyle, label=method, **style)
            if len(values) > 1:
                low, high = values.min(axis=0), values.max(axis=0)
                axes.fill_between(across, low, high, color=style["color"], alpha=0.12, lw=0)
        for position, mark in enumerate(panel.marks):
            label = panel.mark_label if position == 0 else None
            axes.axvline(mark, color="0.35", linestyle=(0, (1, 2)), linewidth=1.4, zorder=0, label=label)
        axes.set_title(panel.title, fontsize=10)
        dress(axes, panel.across, panel.up)
    legend_below(figure, grid[0, 0], LONGEST_LEGEND)  # the first panel has all that any has
    if title:
        figure.suptitle(title)
    figure.savefig(path, dpi=130)


def draw_bars(groups: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw a diagram of bars per quantity, one bar per method."""
    figure = new_figure(4.5 * len(groups), 3.4)
    for axes, (title, values) in zip(figure.subplots(1, len(groups), squeeze=False).flat, groups.items(), strict=True):
        axes.bar(
            list(values), list(values.values()), color=[COLORS[place % len(COLORS)] for place in range(len(values))]
        )
        axes.set_title(title, fontsize=10)
        dress(axes, "")
    figure.savefig(path, dpi=130)


def _on_one_grid(curves: Sequence[Curve], *, steps: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return x [G] over the range that all curves cover, and y [S, G], interpolated where seeds differ: in time."""
    if steps or all(list(across) == list(curves[0][0]) for across, _ in curves):
        return np.array(curves[0][0]), np.array([values for _, values in curves])
    # Where all curves are: np.interp would go on with a curve's last value, and flatten the mean.
    low, high = max(across[0] for across, _ in curves), min(across[-1] for across, _ in curves)
    grid = np.linspace(low, high, GRID)
    return grid, np.stack([np.interp(grid, across, values) for across, values in curves])
