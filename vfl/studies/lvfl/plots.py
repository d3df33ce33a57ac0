"""The plots of the paper's Fig. 2 and 3: mean over the seeds, with a band from the lowest to the highest."""
# pyright: reportUnknownMemberType=false
# matplotlib's signatures are partly untyped.

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import RcKeyType

from vfl.studies.lvfl.plan import Plan
from vfl.studies.lvfl.results import Result


class Style(NamedTuple):
    """How a curve looks."""

    color: str
    linestyle: str
    marker: str


# Okabe and Ito's colours stay apart for all kinds of colour blindness, line and marker stay apart in grey.
STYLES = (
    Style("#000000", "-", "o"),
    Style("#D55E00", "--", "s"),
    Style("#0072B2", "-.", "^"),
    Style("#009E73", ":", "D"),
)
TITLES = {
    "2": "Fig. 2: dynamic ratios",
    "3a": "Fig. 3a: one pruning at round {round}",
    "3b": "Fig. 3b: constant β, no pruning",
}
FILES = {"2": "fig2_accuracy.png", "3a": "fig3a.png", "3b": "fig3b.png"}
RATIO_CURVES = ((STYLES[1], "alpha", "α (filters removed)"), (STYLES[2], "beta", "β (entries not sent)"))
RATIO_FILE = "fig2_ratios.png"
FONT: dict[RcKeyType, float] = {
    "font.size": 13,
    "axes.labelsize": 14,
    "legend.fontsize": 11.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
}


def draw_figures(plan: Plan, results: Sequence[Result], folder: Path) -> list[str]:
    """Draw every figure of which a run is finished; return the names of the files."""
    drawn: list[str] = []
    for figure, curves in plan.curves.items():
        by_label = {
            label: [result for result in results if result.method == method] for label, method in curves.items()
        }
        if any(by_label.values()):
            draw_accuracy(figure, by_label, folder / FILES[figure])
            drawn.append(FILES[figure])
        if figure == "2" and by_label["L"]:
            draw_ratios(by_label["L"][0], folder / RATIO_FILE)
            drawn.append(RATIO_FILE)
    return drawn


def draw_accuracy(figure: str, curves: Mapping[str, Sequence[Result]], path: Path) -> None:
    """Draw test accuracy in percent over the rounds, a curve per label, thin lines where a run was pruned."""
    with mpl.rc_context(FONT):
        axes = _axes()
        prunings: set[int] = set()
        for style, (label, results) in zip(STYLES, curves.items(), strict=True):
            if not results:
                continue
            per_round = [
                [100 * value for value in values] for values in zip(*(r.accuracy for r in results), strict=True)
            ]
            means = [sum(values) / len(values) for values in per_round]
            _plot(axes, means, label, style)
            if len(results) > 1:
                low, high = [min(values) for values in per_round], [max(values) for values in per_round]
                axes.fill_between(range(len(means)), low, high, color=style.color, alpha=0.15, linewidth=0)
            prunings |= {pruning.round_index for result in results for pruning in result.prunings()}
        for position, start in enumerate(sorted(prunings)):
            axes.axvline(
                start,
                color="0.35",
                linestyle=(0, (1, 2)),
                linewidth=1.4,
                zorder=0,
                label="pruning" if position == 0 else None,
            )
        seeds = max(len(results) for results in curves.values())
        band = f" (mean and range of {seeds} seeds)" if seeds > 1 else " (1 seed)"
        axes.set_title(TITLES[figure].format(round=", ".join(map(str, sorted(prunings)))) + band, fontsize=13)
        axes.set_ylabel("Test accuracy (%)")
        _finish(axes, path)


def draw_ratios(result: Result, path: Path) -> None:
    """Draw alpha and beta over the rounds."""
    with mpl.rc_context(FONT):
        axes = _axes()
        for style, name, symbol in RATIO_CURVES:
            _plot(axes, result.ratio(name), symbol, style, drawstyle="steps-post")
        axes.set_title("Fig. 2: lightweighting ratios of every party", fontsize=13)
        axes.set_ylabel("Ratio (share, 0 to 1)")
        axes.set_ylim(-0.02, 1)
        _finish(axes, path)


def _axes() -> Axes:
    figure = Figure(figsize=(7, 4.8), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel("Round")
    axes.grid(visible=True, axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return axes


def _finish(axes: Axes, path: Path) -> None:
    """Put the legend below the axes, where it hides nothing, and write the file."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.legend(loc="outside lower center", ncols=5, handlelength=2.5, columnspacing=1.0, frameon=False)
    FigureCanvasAgg(figure).print_png(path)


def _plot(axes: Axes, values: Sequence[float], label: str, style: Style, drawstyle: str = "default") -> None:
    """Plot values by round with about eight markers, at other rounds than those of other styles."""
    every = max(1, len(values) // 8)
    axes.plot(
        range(len(values)),
        values,
        label=label,
        drawstyle=drawstyle,
        markevery=(STYLES.index(style) * every // len(STYLES), every),
        **style._asdict(),
    )
