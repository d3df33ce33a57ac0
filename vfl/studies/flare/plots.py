"""Panels of curves: mean over the seeds, band from the lowest to the highest."""
# pyright: reportUnknownMemberType=false
# matplotlib's signatures are partly untyped.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vfl.studies.horizontal.plots import STYLES, label_axes

Curve = tuple[Sequence[float], Sequence[float]]
"""x ascending, y."""
GRID = 200


@dataclass(frozen=True)
class Panel:
    """One diagram: a curve per seed of every method."""

    title: str
    across: str
    up: str
    curves: Mapping[str, Sequence[Curve]]


def draw_panels(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels beside each other, two to a row, with one legend."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.5 * columns, 3.6 * rows + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    for panel, axes in zip(panels, grid.flat, strict=False):
        for position, (method, curves) in enumerate(panel.curves.items()):
            color, linestyle = STYLES[position % len(STYLES)]
            across, values = _on_one_grid(curves)
            axes.plot(across, values.mean(axis=0), color=color, linestyle=linestyle, label=method)
            if len(values) > 1:
                axes.fill_between(across, values.min(axis=0), values.max(axis=0), color=color, alpha=0.12, lw=0)
        axes.set_title(panel.title, fontsize=10)
        axes.set_ylabel(panel.up)
        label_axes(axes, panel.across)
    handles, methods = grid[0, 0].get_legend_handles_labels()  # the same in all panels
    figure.legend(handles, methods, loc="outside lower center", ncols=7, frameon=False)
    figure.savefig(path, dpi=130)


def draw_bars(groups: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw a diagram of bars per quantity, one bar per method."""
    figure = Figure(figsize=(4.5 * len(groups), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, values) in zip(figure.subplots(1, len(groups), squeeze=False).flat, groups.items(), strict=True):
        colors = [STYLES[position % len(STYLES)][0] for position in range(len(values))]
        axes.bar(list(values), list(values.values()), color=colors)
        axes.set_title(title, fontsize=10)
        label_axes(axes, "")
    figure.savefig(path, dpi=130)


def _on_one_grid(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Return x [G] over the range that all curves cover, and y [S, G] interpolated: seeds differ in simulated time."""
    low, high = max(across[0] for across, _ in curves), min(across[-1] for across, _ in curves)
    grid = np.linspace(low, high, GRID)
    return grid, np.stack([np.interp(grid, across, values) for across, values in curves])
